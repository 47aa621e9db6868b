"""Masks for credentials, so that a page can be shared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
# user:password@ in a URL; a password from the environment, ${oc.env:NAME}, stays.
_PASSWORD = re.compile(r"(\w[\w+.-]*://[^\s/:@\"']*:)(?!\$\{[^}]*\}@)([^\s@\"']+)(?=@)")
_PARAMETER = re.compile(r"(?i)((?:password|passwd|secret|token|api_?key)=)(?!\$\{)([^\s&\"']+)")
_SECRET_NAME = re.compile(r"(?i)(?:^|_)(?:password|passwd|secret|token|api_?key|credentials?)$")


def masked(text: str) -> str:
    """Return the text without passwords of URLs and values of parameters such as token=."""
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}", text))


def masked_options(tree: Any, name: str = "") -> Any:
    """Return nested options without passwords: in texts, and values of names such as api_key."""
    if isinstance(tree, Mapping):
        return {key: masked_options(value, str(key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [masked_options(value, name) for value in tree]
    if isinstance(tree, str):
        is_secret = _SECRET_NAME.search(name) and tree and not tree.startswith("${")
        return MASK if is_secret else masked(tree)
    return tree
