"""Options, rows and exit statuses shared by all scripts of this folder.

A script exits with HOLDS when every row holds, with FALLS_SHORT when it ran and some row does not hold, and with
SKIPPED when it has no row because something it needs is not on this machine. Any other status is a broken script
(Python's own are 1 for an error and 2 for wrong arguments).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

HOLDS, FALLS_SHORT = 0, 3
SKIPPED = 77  # as in automake's test protocol


@dataclass(frozen=True)
class Row:
    """One figure, measured in this very run."""

    name: str
    value: float
    unit: str
    goal: str  # in words, e.g. "< 0.02"; empty without a goal
    holds: bool


def figure(name: str, value: float, unit: str = "") -> Row:
    """Return a row without a goal."""
    return Row(name, value, unit, "", True)


def at_least(name: str, value: float, unit: str, goal: float | None) -> Row:
    """Return a row that holds from `goal` upwards; None: no goal."""
    return figure(name, value, unit) if goal is None else Row(name, value, unit, f">= {goal:g}", value >= goal)


def at_most(name: str, value: float, unit: str, goal: float | None) -> Row:
    """Return a row that holds up to `goal`; None: no goal."""
    return figure(name, value, unit) if goal is None else Row(name, value, unit, f"<= {goal:g}", value <= goal)


def equals(name: str, value: float, goal: float, unit: str = "") -> Row:
    """Return a row that holds at exactly `goal`, for counts."""
    return Row(name, value, unit, f"{goal:g}", value == goal)


def median_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(one / other for one, other in zip(slow, fast, strict=True))


def make_parser(description: str | None, **flags: str) -> argparse.ArgumentParser:
    """Return a parser of `--quick`, `--json` and the script's own flags, given by name with their help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, text in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--quick", action="store_true", help="a smaller run of less than 60 CPU seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    return parser


def parse_arguments(description: str | None, **flags: str) -> argparse.Namespace:
    """Return the options of `make_parser`."""
    return make_parser(description, **flags).parse_args()


def skip(what: str, reason: str) -> None:
    """Print the line that names what is not measured on this machine, and why."""
    print(f"skipped: {what}: {reason}", flush=True)


def require(*modules: str, extra: str) -> None:
    """Exit with SKIPPED and one line unless all modules are installed; `extra` of the package installs them."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        skip(Path(sys.argv[0]).name, f"not installed: {', '.join(missing)} (pip install 'gflownet[{extra}]')")
        raise SystemExit(SKIPPED)


def finish(rows: Sequence[Row], *, json_path: Path | None) -> int:
    """Print the rows, write them as JSON where a path is given, and return the exit status."""
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        verdict = "" if not row.goal else f"   goal {row.goal}: {'holds' if row.holds else 'FALLS SHORT'}"
        print(f"{row.name:{width}}  {row.value:.4g} {row.unit}{verdict}")
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    if not rows:
        return SKIPPED
    return HOLDS if all(row.holds for row in rows) else FALLS_SHORT
