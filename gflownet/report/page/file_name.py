"""Name and mark of the pages of gflownet, in a module that imports nothing of the package."""

from __future__ import annotations

from pathlib import Path

PAGE_NAME = "report.html"
# In the first bytes of every page, see templates/base.html.j2.
GENERATOR = b'<meta name="generator" content="gflownet">'
_HEAD_BYTES = 4_096


def is_own_page(path: Path) -> bool:
    """Return whether a file is a page that gflownet has written."""
    with path.open("rb") as file:
        return GENERATOR in file.read(_HEAD_BYTES)
