"""Options, rows and exit statuses shared by all scripts of this folder.

Exit status: HOLDS if every row holds, FALLS_SHORT if some row does not, SKIPPED if there is no row because something is
not installed. Any other status is an error (Python's own: 1 for an exception, 2 for wrong arguments).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
HOLDS, FALLS_SHORT = 0, 3
SKIPPED = 77  # as in automake's test protocol
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One measured figure."""

    name: str
    value: float
    unit: str
    goal: str  # e.g. "< 0.02"; empty without a goal
    holds: bool


def figure(name: str, value: float, unit: str = "") -> Row:
    """Return a row without a goal."""
    return Row(name, value, unit, "", True)


def at_least(name: str, value: float, unit: str, goal: float | None) -> Row:
    """Return a row with a lower bound; None: no goal."""
    return figure(name, value, unit) if goal is None else Row(name, value, unit, f">= {goal:g}", value >= goal)


def at_most(name: str, value: float, unit: str, goal: float | None) -> Row:
    """Return a row with an upper bound; None: no goal."""
    return figure(name, value, unit) if goal is None else Row(name, value, unit, f"<= {goal:g}", value <= goal)


def median_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(one / other for one, other in zip(slow, fast, strict=True))


def interleaved(sides: Mapping[K, Callable[[], T]], *, rounds: int, warm_up: int = 1) -> dict[K, list[T]]:
    """Call all sides in turn, in alternating order, and return their results of all rounds after the warm-up."""
    results: dict[K, list[T]] = {name: [] for name in sides}
    for number in range(rounds + warm_up):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            result = sides[name]()
            if number >= warm_up:
                results[name].append(result)
    return results


def cpu_seconds(call: Callable[[], object], num_calls: int = 1) -> float:
    """Return the CPU seconds per call."""
    start = time.process_time()
    for _ in range(num_calls):
        call()
    return (time.process_time() - start) / num_calls


def parse_arguments(
    description: str | None,
    *,
    texts: Mapping[str, str] | None = None,
    numbers: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
    **flags: str,
) -> argparse.Namespace:
    """Parse `--quick`, `--json` and the script's own options, given by name with their help.

    These are flags, texts, whole numbers and paths; None where they are not given.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, text in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    for name, text in (texts or {}).items():
        parser.add_argument(f"--{name}", metavar="NAME,...", help=text)
    for name, text in (numbers or {}).items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    for name, text in (paths or {}).items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)
    parser.add_argument("--quick", action="store_true", help="a smaller run of less than 60 CPU seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    return parser.parse_args()


def skip(name: str, reason: str) -> None:
    """Print the line that names a measurement that is skipped on this machine, and the reason."""
    print(f"skipped: {name}: {reason}", flush=True)


def finish(rows: Sequence[Row], *, json_path: Path | None) -> int:
    """Print the rows, write them as JSON if a path is given, and return the exit status."""
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        verdict = "" if not row.goal else f"   goal {row.goal}: {'holds' if row.holds else 'FALLS SHORT'}"
        print(f"{row.name:{width}}  {row.value:.4g} {row.unit}{verdict}")
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    if not rows:
        return SKIPPED
    return HOLDS if all(row.holds for row in rows) else FALLS_SHORT
