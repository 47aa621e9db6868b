"""How good a cell of NAS-Bench-201 is found with at most 200 rewards, with and without replay and local search.

    python scripts/sample_efficiency.py [--quick] [--json FILE]

A reward is the CIFAR-10 validation accuracy after 12 epochs of a cell that was not asked for before. What is reported
is the best one, the test accuracy after 200 epochs of the cell that it belongs to, and how many of the best hundredth
of all 15,625 cells were asked for: means over the seeds with standard deviations. Searches without a policy stand
beside. With a policy every seed's best validation accuracy and number of the best hundredth are printed, too. Needs
../shared/data/nb201.csv.gz.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench import Row, finish, parse_arguments, skip
from scripts.efficiency.policies import VARIANTS, run
from scripts.efficiency.searches import SEARCHES, Budget, BudgetSpentError, Search, Table

TABLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "nb201.csv.gz"
NUM_CALLS, NUM_QUICK_CALLS = 200, 60  # the second one of policies alone
NUM_SEEDS, NUM_QUICK_SEEDS = 20, 2
NUM_SEEDS_OF_SEARCHES = 200  # they take milliseconds
# Test accuracies of ../shared/data/README.md, where a repeated question costs a call, too; here it costs none.
PUBLISHED = {"random": 93.86, "evolution (10, 3)": 94.15, "evolution (50, 10)": 94.25, "local search": 94.31}
TOLERANCE = 0.08


@dataclass(frozen=True)
class Outcome:
    """What one run has found."""

    validation: float  # of the best cell by validation
    test: float  # of the same cell
    num_top: int
    num_calls: int


def outcome(budget: Budget) -> Outcome:
    """Return what the cells that were asked for amount to."""
    table, best = budget.table, max(budget.asked, key=budget.table.validation.__getitem__)
    num_top = len(table.top & budget.known)
    return Outcome(table.validation[best], table.test[best], num_top, len(budget.asked))


def searched(search: Search, budget: Budget, *, seed: int) -> None:
    """Search until the budget is spent."""
    try:
        search(budget, random.Random(seed))
    except BudgetSpentError:
        return


def rows_of(name: str, outcomes: list[Outcome]) -> Iterator[Row]:
    """Yield the figures of one method."""
    most_calls = max(outcome.num_calls for outcome in outcomes)
    for label, values in (
        ("best validation accuracy", [o.validation for o in outcomes]),
        ("its test accuracy", [o.test for o in outcomes]),
        ("of the best hundredth", [float(o.num_top) for o in outcomes]),
    ):
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        unit = "cells" if label.startswith("of") else "%"
        near = PUBLISHED.get(name) if label.startswith("its") else None
        goal = "" if near is None else f"{near} +- {TOLERANCE}, as measured before"
        holds = near is None or abs(mean - near) <= TOLERANCE
        yield Row(
            f"{name}, {most_calls} calls: {label}",
            mean,
            f"{unit} +- {deviation:.2f} ({len(outcomes)} seeds)",
            goal,
            holds,
        )


def line(name: str, outcomes: list[Outcome]) -> str:
    """Return one line of the table."""
    columns = []
    for values in ([o.validation for o in outcomes], [o.test for o in outcomes], [o.num_top for o in outcomes]):
        columns.append(f"{statistics.mean(values):7.2f} +- {statistics.stdev(values):5.2f}")
    calls = statistics.mean(o.num_calls for o in outcomes)
    return f"{name:48} {'   '.join(columns)}   {calls:5.0f}"


def measured(spend: Callable[[Budget, int], object], table: Table, seeds: range, *, num_calls: int) -> list[Outcome]:
    """Return the outcome of every seed."""
    outcomes = []
    for seed in seeds:
        budget = Budget(table, num_calls)
        spend(budget, seed)
        outcomes.append(outcome(budget))
    return outcomes


def main() -> int:
    """Measure everything, print the table, and return 0 iff the searches come out as they did before."""
    arguments = parse_arguments(__doc__)
    if not TABLE.is_file():
        skip("sample_efficiency.py", f"no table of NAS-Bench-201: {TABLE}")
        return finish([], json_path=arguments.json)
    table, rows, started = Table.read(TABLE), [], time.perf_counter()
    print(f"{'':48} {'validation':>16}   {'test':>16}   {'best hundredth':>16}   calls")
    methods: dict[str, tuple[Callable[[Budget, int], object], range]] = {}
    for name, search in SEARCHES.items():
        methods[name] = (lambda budget, seed, s=search: searched(s, budget, seed=seed)), range(NUM_SEEDS_OF_SEARCHES)
    for name, overrides in VARIANTS.items():
        seeds = range(NUM_QUICK_SEEDS if arguments.quick else NUM_SEEDS)
        methods[name] = (lambda budget, seed, o=overrides: run(o, budget, table=TABLE, seed=seed)), seeds
    for name, (spend, seeds) in methods.items():
        num_calls = NUM_QUICK_CALLS if arguments.quick and name in VARIANTS else NUM_CALLS
        outcomes = measured(spend, table, seeds, num_calls=num_calls)
        print(line(name, outcomes), flush=True)
        if name in VARIANTS:
            print(f"  by seed: {', '.join(f'{o.validation:.2f} ({o.num_top})' for o in outcomes)}", flush=True)
        rows += rows_of(name, outcomes)
    print(f"{time.perf_counter() - started:.0f} s")
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
