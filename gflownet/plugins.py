"""Pluggable parts by name: a short name out of a dict, or `module:Class` for a user's own.

Nothing but a subclass of the part's contract is ever returned, so a config cannot call arbitrary code.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")
_MODULE_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def check_name(key: str, name: str, known: Mapping[str, str]) -> None:
    """Raise ValueError unless `name` is known or of the form module:Class; import nothing."""
    if name in known or _MODULE_CLASS.fullmatch(name):
        return
    expected = f"{key}: expected one of {', '.join(known)} or module:Class, got {name!r}"
    raise ValueError(f"{expected}; did you mean {_nearest(name, known)}?")


def load_class(key: str, name: str, known: Mapping[str, str], *, contract: type[T]) -> type[T]:
    """Return the subclass of `contract` behind a known name or `module:Class`.

    Raises:
        ValueError: no such name or module, or what it names is not a subclass of `contract`.
    """
    check_name(key, name, known)
    module_name, class_name = known.get(name, name).split(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"{key}: expected an importable module, got {module_name!r} ({error})") from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, contract)):
        expected = f"{key}: expected a subclass of {contract.__name__}, got {name!r}"
        raise ValueError(f"{expected}; did you mean {_nearest(name, known)}?")
    return found


def _nearest(name: str, known: Mapping[str, str]) -> str:
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
