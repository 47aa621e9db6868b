"""Compare the search methods on tables and on real trainings, by the runs of `python -m gflownet.compare`.

    python scripts/bench_search.py [--only SECTION,...] [--seeds S] [--tables FOLDER] [--quick] [--json FILE]

Sections: nb201 (12-epoch validation accuracy), nb201_long (1,000 evaluations), opgfn (12-epoch test accuracy, the
protocol of OP-GFN), macro, recorded (trainings of digits networks), digits and mnist1d (real trainings), surrogates
(rank correlations without a search; only here the goals are those of auto), proposals (their seconds and memory on
15,625 cells). The other goals are those of the searched
method, --searched; the other methods are figures. A repeated command continues in --out, where every seed's curve
stays. Tables are in --tables, $GFLOWNET_TABLES or shared/data beside the checkout.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.cli.console import make_console
from gflownet.cli.interrupts import stop_signals
from gflownet.comparison.plan import Method, Plan, read_methods
from gflownet.comparison.session import run_plan
from gflownet.report.compared.search_tables import write_searches
from gflownet.report.compared.searches import Accounting, Quantity, Searches, summary_of
from scripts.bench import Row, at_least, at_most, figure, finish, skip
from scripts.surrogate_ranks import NAMES, NUM_EVALUATIONS, NUM_SEEDS, QUICK_EVALUATIONS, proposal_rows, rank_rows

_ROOT = Path(__file__).resolve().parent.parent
METHODS = "random,evolution,local_search,tpe,surrogate,surrogate_gflownet"
FREE, EVERY = Accounting.EVALUATIONS, Accounting.PROPOSALS
QUICK_SEEDS, QUICK_BUDGET, QUICK_METHODS = 2, 20, "random,surrogate"
# Goals apply to the full number of seeds and evaluations.
_PERCENT = 100.0
_MIN_SHARE = 47 / 50
# The search does not enumerate the space; several candidates are proposed together, as trainings in parallel need.
_TOO_LARGE = ("search.proposals.num_enumerated=0", "search.batch_size=4")
_EVERY_CALLS = 110  # with every proposal counted, the goals of 100 evaluations


@dataclass(frozen=True)
class DataSet:
    """Goals on one data set of NAS-Bench-201: c10, c100, in16."""

    name: str
    signal_50: float
    signal_100: float
    test_100: float
    top_200: int
    top_1000: int


DATA_SETS = (
    DataSet("c10", 84.4, 84.83, 94.35, 85, 140),
    DataSet("c100", 61.1, 61.28, 72.7, 92, 140),
    DataSet("in16", 38.1, 38.5, 46.4, 58, 125),
)


@dataclass(frozen=True)
class Section:
    """One comparison and its rows."""

    name: str
    config: str
    table: Path | None
    overrides: tuple[str, ...]
    num_evaluations: int
    num_seeds: int
    rows: Callable[[Searches, str], Iterator[Row]]  # of the searched method; called with the full budget
    methods: str = METHODS


def sections(tables: Path) -> list[Section]:
    """Return all sections."""
    nb201, macro = tables / "nb201.csv.gz", tables / "nb_macro.csv.gz"
    recorded = _ROOT / "tests" / "data" / "recorded_digits.csv.gz"
    result = []
    for each in DATA_SETS:
        test = f"task_options.test_column={each.name}_test200"
        columns = (f"task_options.column={each.name}_val12", test)
        long = "random,local_search,surrogate,surrogate_gflownet"
        result += [
            Section(f"nb201_{each.name}", "cells", nb201, columns, 200, 50, partial(_nb201_rows, each)),
            Section(f"nb201_long_{each.name}", "cells", nb201, columns, 1_000, 50, partial(_long_rows, each), long),
            Section(
                f"opgfn_{each.name}",
                "cells",
                nb201,
                (f"task_options.column={each.name}_test12", test),
                250,
                50,
                _opgfn_rows,
            ),
        ]
    names = ("env.cells.name=nb_macro", "task_options.column=acc_mean", "task_options.test_column=acc_mean")
    real = ("final.top=10", "final.num_random=0")
    return [
        *result,
        Section("macro", "cells", macro, names, 100, 50, _macro_rows),
        Section("recorded", "recorded_digits", recorded, _TOO_LARGE, 300, 20, _recorded_rows),
        Section("digits", "digits", None, real, 200, 5, _real_rows, "random,evolution,tpe,surrogate_gflownet"),
        Section("mnist1d", "mnist1d", None, real, 200, 5, _real_rows, "random,evolution,tpe,surrogate_gflownet"),
    ]


def _mean(comparison: Searches, label: str, quantity: Quantity, at: int, accounting: Accounting = FREE) -> float:
    return comparison.summary(label, quantity, at, accounting=accounting).mean


def _nb201_rows(goals: DataSet, comparison: Searches, label: str) -> Iterator[Row]:
    signal, test = partial(_mean, comparison, label, Quantity.BEST), partial(_mean, comparison, label, Quantity.TEST)
    yield at_least("mean best signal @50", _PERCENT * signal(50), "%", goals.signal_50)
    yield at_least("mean best signal @100", _PERCENT * signal(100), "%", goals.signal_100)
    yield at_least("seeds with the optimum by 150", _share_by(comparison, label, 150), "", _MIN_SHARE)
    yield at_least("test of the best @100", _PERCENT * test(100), "%", goals.test_100)
    top = _mean(comparison, label, Quantity.TOP_TEST, 200)
    yield at_least("distinct top 1 % by test @200", top, "cells", goals.top_200)
    at = _EVERY_CALLS
    yield at_least(f"mean best signal after {at} proposals", _PERCENT * signal(at, EVERY), "%", goals.signal_100)
    yield at_least(f"test of the best after {at} proposals", _PERCENT * test(at, EVERY), "%", goals.test_100)
    yield at_most("own work per evaluation, median", comparison.own_seconds(label), "s", 0.2)
    yield from _calibration_rows(comparison, label)


def _long_rows(goals: DataSet, comparison: Searches, label: str) -> Iterator[Row]:
    top = _mean(comparison, label, Quantity.TOP_TEST, 1_000)
    yield at_least("distinct top 1 % by test @1,000", top, "cells", goals.top_1000)


def _opgfn_rows(comparison: Searches, label: str) -> Iterator[Row]:
    yield at_least("seeds with the optimum by 250", _share_by(comparison, label, 250), "", _MIN_SHARE)
    yield figure("test of the best @250", _PERCENT * _mean(comparison, label, Quantity.TEST, 250), "%")


def _macro_rows(comparison: Searches, label: str) -> Iterator[Row]:
    yield at_least("mean best @100", _PERCENT * _mean(comparison, label, Quantity.BEST, 100), "%", 93.12)
    yield from _calibration_rows(comparison, label)


def _recorded_rows(comparison: Searches, label: str) -> Iterator[Row]:
    for at in (100, 300):
        for other in ("evolution", "local_search"):
            yield from _above(comparison, label, other, Quantity.BEST, at)
    yield from _above(comparison, label, "surrogate", Quantity.NEAR_BEST, 300)
    yield from _calibration_rows(comparison, label)


def _above(comparison: Searches, label: str, other: str, quantity: Quantity, at: int) -> Iterator[Row]:
    """Yield the mean paired difference; it holds if its interval is above 0."""
    if other in comparison.records and other != label:
        each = comparison.difference(label, other, quantity, at, accounting=FREE)
        name = f"{quantity}: above {other} @{at} [{each.low:+.4f}, {each.high:+.4f}]"
        yield Row(name, each.mean, "", "interval > 0", each.low > 0)


def _real_rows(comparison: Searches, label: str) -> Iterator[Row]:
    """Yield the means of the best 10 architectures on new seeds; the interval has to be above random's."""
    scores = {
        name: summary_of(np.array([mean(record.final_scores) for record in records]))
        for name, records in comparison.records.items()
    }
    for name, summary in scores.items():
        yield figure(f"top 10 on new seeds: {name} [{summary.low:.4f}, {summary.high:.4f}]", summary.mean)
    for other in ("random", "evolution", "tpe"):
        if other in scores and other != label:
            difference = scores[label].mean - scores[other].mean
            holds = scores[label].low > scores[other].high if other == "random" else difference > 0
            goal = "intervals apart" if other == "random" else "> 0"
            yield Row(f"top 10 on new seeds: above {other}", difference, "", goal, holds)


def _share_by(comparison: Searches, label: str, at: int) -> float:
    best = comparison.values(label, Quantity.BEST, np.array([at]), accounting=FREE)[:, 0]
    return float((best >= comparison.references.best).mean())


def _calibration_rows(comparison: Searches, label: str) -> Iterator[Row]:
    """Yield the share of scores inside the surrogate's 90 % intervals, predicted before they were known."""
    key = "surrogate_coverage_all"
    shares = [record.metrics[key] for record in comparison.records[label] if key in record.metrics]
    if shares:
        share = mean(shares)
        yield Row("scores inside 90 % intervals", share, "", "0.85 to 0.95", 0.85 <= share <= 0.95)


def _figures(comparison: Searches, searched: str) -> Iterator[Row]:
    """Yield the figures of the methods without goals."""
    for label in comparison.labels:
        if label != searched or comparison.num_evaluations <= QUICK_BUDGET:
            for at in comparison.checkpoints:
                yield figure(f"{label}: mean best @{at}", _mean(comparison, label, Quantity.BEST, at))
            yield figure(f"{label}: own work per evaluation, median", comparison.own_seconds(label), "s")


def run(section: Section, arguments: argparse.Namespace) -> list[Row] | None:
    """Return the rows of a section, None after a stop request."""
    num_evaluations = QUICK_BUDGET if arguments.quick else section.num_evaluations
    methods = list[Method](read_methods(QUICK_METHODS if arguments.quick else arguments.methods or section.methods))
    table = () if section.table is None else (f"task_options.table={section.table}",)
    plan = Plan(
        config=section.config,
        methods=tuple(methods),
        num_evaluations=num_evaluations,
        seeds=tuple(range(arguments.seeds or (QUICK_SEEDS if arguments.quick else section.num_seeds))),
        overrides=(*table, *section.overrides),
        folder=arguments.out / ("quick" if arguments.quick else "full") / section.name,
    )
    plan.check()
    with stop_signals() as stop:
        comparison = run_plan(plan, num_processes=arguments.parallel, console=make_console(), stop=stop)
    if comparison is None:
        return None
    write_searches(comparison, plan.folder, command=sys.argv[1:])
    rows = list(_figures(comparison, arguments.searched))
    if not arguments.quick and arguments.searched in comparison.records:
        rows += section.rows(comparison, arguments.searched)
    return [replace(row, name=f"{section.name}: {row.name}") for row in rows]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the values of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", default="", metavar="SECTION,...", help="sections, or the first words of their names")
    add("--seeds", type=int, metavar="S", help="seeds of each method (default: those of the section)")
    add("--methods", default="", metavar="A,B", help="methods (default: those of the section)")
    add("--searched", default="surrogate_gflownet", metavar="METHOD", help="the method with the goals")
    add("--tables", type=Path, metavar="FOLDER", help="folder of the benchmark tables")
    add("--out", type=Path, default=Path("logs", "bench_search"), metavar="FOLDER", help="folder of all runs")
    add("--parallel", type=int, default=1, metavar="P", help="runs at the same time")
    add("--quick", action="store_true", help="a smaller run of less than 60 CPU seconds")
    add("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    return parser.parse_args(words)


def main() -> int:
    """Run the sections and return the exit status."""
    arguments = parse_arguments()
    tables = arguments.tables or Path(os.environ.get("GFLOWNET_TABLES", _ROOT.parent / "shared" / "data"))
    chosen = arguments.only.split(",") if arguments.only else ["nb201_c10", "recorded"] if arguments.quick else []
    rows: list[Row] = []
    if not chosen or "surrogates" in chosen:
        num_seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else NUM_SEEDS)
        rows += rank_rows(tables, num_seeds=num_seeds, names=NAMES[:1] if arguments.quick else NAMES)
    if not chosen or "proposals" in chosen:
        num, table = QUICK_EVALUATIONS if arguments.quick else NUM_EVALUATIONS, tables / "nb201.csv.gz"
        if table.is_file():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                rows += pool.submit(proposal_rows, table, num).result()
        else:
            skip("proposals", f"no table {table.name} in {tables}")
    for section in sections(tables):
        if chosen and not any(f"{section.name}_".startswith(f"{name}_") for name in chosen):
            continue
        if section.table is not None and not section.table.is_file():
            skip(section.name, f"no table {section.table.name} in {section.table.parent}")
            continue
        of_section = run(section, arguments)
        if of_section is None:
            return 130
        rows += of_section
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
