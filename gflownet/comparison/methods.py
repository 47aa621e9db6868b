"""The compared methods: a label and the options that differ from the common ones."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.errors import UserError
from gflownet.plugins import check_name
from gflownet.search.config import AUTO, GFLOWNET, SEARCH_METHODS

# Labels are names of folders.
_LABEL = re.compile(r"[A-Za-z0-9][\w.+=-]*")
_METHOD_KEY = "search.method"
# Options that the comparison sets itself, and how.
RESERVED = {
    "seed": "--seeds",
    "log_dir": "--out",
    "budget.evaluations": "--budget",
    "resume": "repeating the command",
    "overwrite_existing_exp": "another --out",
    "evaluation.store_url": "nothing: every run has its store",
}


@dataclass(frozen=True)
class Method:
    """One side of a comparison."""

    label: str  # in tables and pictures, and the name of its folder
    overrides: tuple[str, ...]  # KEY=VALUE, on top of the common ones


def read_methods(names: str, described: Sequence[str] = ()) -> list[Method]:
    """Return the methods of the command line.

    Args:
        names: search methods, separated by commas.
        described: texts "LABEL: KEY=VALUE KEY=VALUE ..." (`read_method`).

    Raises:
        UserError: an unknown method, an invalid text, a repeated label, or no method.
    """
    methods = [_named(name.strip()) for name in names.split(",") if name.strip()]
    methods += [read_method(text) for text in described]
    if not methods:
        raise UserError("--methods: expected at least one method, got none")
    labels = [method.label for method in methods]
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated is not None:
        raise UserError(f"--methods: expected different labels, got {repeated!r} twice")
    return methods


def read_method(text: str) -> Method:
    """Return the method of "LABEL: KEY=VALUE KEY=VALUE ..."; values with spaces are quoted as in a shell.

    Raises:
        UserError: no label, an option without a value, or one that the comparison sets.
    """
    label, colon, rest = text.partition(":")
    if not colon or not _LABEL.fullmatch(label.strip()):
        raise UserError(f"--method: expected LABEL: KEY=VALUE KEY=VALUE, got {text!r}")
    try:
        overrides = tuple(shlex.split(rest))
    except ValueError as error:
        raise UserError(f"--method: expected LABEL: KEY=VALUE KEY=VALUE, got {text!r} ({error})") from None
    check_overrides(overrides)
    return Method(label.strip(), overrides)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise UserError for an option that the comparison sets, or a text that is not KEY=VALUE."""
    for override in overrides:
        key, equals, _ = override.partition("=")
        if key in RESERVED:
            raise UserError(f"{key}: expected no such option in a comparison, which has {RESERVED[key]}")
        if not (key and equals):
            raise UserError(f"{override}: expected KEY=VALUE, for example search.num_initial=20")


def _named(name: str) -> Method:
    homes = {AUTO: "", GFLOWNET: "", **SEARCH_METHODS.homes}
    if ":" in name:
        raise UserError(f'--methods: expected names, got {name!r}; try --method "mine: {_METHOD_KEY}={name}"')
    check_name("--methods", name, homes)
    return Method(name, (f"{_METHOD_KEY}={name}",))
