"""Docstrings of this project as reStructuredText: they are plain text, in which * and | have no meaning."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"(`[^`\n]+`)")
_SPECIAL = re.compile(r"([\\*|]|(?<=\w)_(?!\w))")


def escaped(line: str) -> str:
    """Return a line with code in double backticks, and every other character as it is."""
    sections = _CODE.split(line)
    return "".join(
        f"`{section}`" if _CODE.fullmatch(section) else _SPECIAL.sub(r"\\\1", section) for section in sections
    )


def escape_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the lines of a docstring in place, for Sphinx's autodoc-process-docstring."""
    lines[:] = [escaped(line) for line in lines]
