"""Compare the search methods on tables and on real trainings, by the runs of `python -m gflownet.compare`.

    python scripts/bench_search.py [--only SECTION,...] [--seeds S] [--tables FOLDER] [--quick] [--json FILE]

Sections: nb201 (12-epoch validation accuracy), nb201_long (1,000 evaluations), opgfn (12-epoch test accuracy, the
protocol of OP-GFN), macro, recorded (trainings of digits networks), digits and mnist1d (real trainings), surrogates
(rank correlations without a search). The other goals are those of the searched method, --searched; the other methods
are figures, read from the stores of their runs in --out, where a repeated command continues. Tables are in --tables,
$GFLOWNET_TABLES or shared/data beside the checkout.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.cli.comparison import Job, Plan, read_methods
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.files import parse_json
from gflownet.report.compared.figures import estimate_of, paired_difference
from gflownet.report.page import read_run
from gflownet.run.trainer import GFNTrainer
from gflownet.terminal.console import make_console
from gflownet.terminal.interrupts import stop_signals
from scripts.bench import ROOT, Row, at_least, at_most, figure, finish, parse_arguments, skip
from scripts.surrogate_ranks import NUM_SEEDS, rank_rows

SEARCHED, _OUT = "surrogate_gflownet", Path("logs", "bench_search")
METHODS = "random,evolution,local_search,surrogate,surrogate_gflownet"
QUICK_SEEDS, QUICK_BUDGET, QUICK_METHODS = 2, 20, "random,surrogate"
# Goals apply to the full number of seeds and evaluations.
_PERCENT = 100.0
_MIN_SHARE = 47 / 50
_TOGETHER = ("search.batch_size=4",)  # as trainings in parallel need
_CHECKPOINTS = (10, 50, 100, 200, 500)
_NEAR, _TOP = 0.01, 0.01  # shares: below the best score, and of the space by test score


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
class Curve:
    """The n evaluations of a search in order, from the store of its run."""

    scores: np.ndarray  # [n], NaN: failed
    tests: np.ndarray  # [n], NaN: no test score
    metrics: Mapping[str, float]  # last value of each
    final_scores: Sequence[float] = ()  # means of the best architectures on new seeds

    def best(self, at: int) -> float:
        """Return the best score after `at` evaluations."""
        return float(np.nanmax(self.scores[:at]))

    def test(self, at: int) -> float:
        """Return the test score of the architecture with the best score after `at` evaluations."""
        return float(self.tests[np.nanargmax(self.scores[:at])])


@dataclass(frozen=True)
class Searches:
    """The curves of a comparison, and values that they are measured against."""

    num_evaluations: int
    curves: Mapping[str, Sequence[Curve]]  # by method, one per seed
    optimum: float | None = None  # best score of the space, if known
    top_test: float = math.inf  # smallest test score among the best 1 % of the space

    def values(self, label: str, figure_at: Callable[[Curve], float]) -> np.ndarray:
        """Return a figure of every run of a method, [S]."""
        return np.array([figure_at(curve) for curve in self.curves[label]])

    def best(self, label: str, at: int) -> np.ndarray:
        """Return the best scores after `at` evaluations, [S]."""
        return self.values(label, lambda curve: curve.best(at))

    def num_near(self, label: str, at: int) -> np.ndarray:
        """Return the numbers of evaluated architectures within 1 % of the best known score, [S]."""
        known = max(curve.best(self.num_evaluations) for curves in self.curves.values() for curve in curves)
        limit = (1 - _NEAR) * (known if self.optimum is None else self.optimum)
        return self.values(label, lambda curve: float((curve.scores[:at] >= limit).sum()))

    def num_top(self, label: str, at: int) -> float:
        """Return the mean number of evaluated architectures among the best 1 % of the space by test score."""
        return self.values(label, lambda curve: float((curve.tests[:at] >= self.top_test).sum())).mean()

    def own_seconds(self, label: str) -> Iterator[float]:
        """Yield the median seconds of the method's own work per evaluation; nothing where it is not measured."""
        seconds = [curve.metrics.get("method_seconds_per_evaluation") for curve in self.curves[label]]
        if known := [each for each in seconds if each is not None]:
            yield median(known)


def read_searches(plan: Plan) -> Searches:
    """Return the curves of the runs of a plan, from their stores."""
    jobs = plan.jobs()
    trainer = GFNTrainer(jobs[0].config())
    tests = sorted(trainer.task.all_test_scores(), reverse=True)
    curves = {method.label: [_curve(job, trainer) for job in jobs if job.method == method] for method in plan.methods}
    optimum = max(trainer.task.all_scores(), default=None)
    return Searches(
        plan.num_evaluations, curves, optimum, tests[max(round(_TOP * len(tests)), 1) - 1] if tests else math.inf
    )


def _curve(job: Job, trainer: GFNTrainer) -> Curve:
    run, task, from_dict = read_run(job.folder), trainer.task, trainer.env.terminal_type.from_dict
    is_known = [row.status is EvaluationStatus.OK for row in run.searched]
    tests = [
        task.test(from_dict(parse_json(row.graph)), seed=job.seed) if task.is_cheap and known else None
        for row, known in zip(run.searched, is_known, strict=True)
    ]
    metrics = {key: value for row in run.metrics for key, value in row.items() if isinstance(value, int | float)}
    finals = [entry["final"]["mean"] for entry in run.top if "final" in entry]
    scores = [row.score if known else math.nan for row, known in zip(run.searched, is_known, strict=True)]
    return Curve(np.array(scores), np.array([math.nan if each is None else each for each in tests]), metrics, finals)


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
    recorded = ROOT / "tests" / "data" / "recorded_digits.csv.gz"
    result = []
    for each in DATA_SETS:
        test = f"task_options.test_column={each.name}_test200"
        columns = (f"task_options.column={each.name}_val12", test)
        after_12 = (f"task_options.column={each.name}_test12", test)
        long = "random,local_search,surrogate,surrogate_gflownet"
        result += [
            Section(f"nb201_{each.name}", "cells", nb201, columns, 200, 50, partial(_nb201_rows, each)),
            Section(f"nb201_long_{each.name}", "cells", nb201, columns, 1_000, 50, partial(_long_rows, each), long),
            Section(f"opgfn_{each.name}", "cells", nb201, after_12, 250, 50, _opgfn_rows),
        ]
    names = ("env.cells.name=nb_macro", "task_options.column=acc_mean", "task_options.test_column=acc_mean")
    real = ("final.top=10", "final.num_random=0")
    return [
        *result,
        Section("macro", "cells", macro, names, 100, 50, _macro_rows),
        Section("recorded", "recorded_digits", recorded, _TOGETHER, 300, 20, _recorded_rows),
        Section("digits", "digits", None, real, 200, 5, _real_rows, "random,evolution,surrogate_gflownet"),
        Section("mnist1d", "mnist1d", None, real, 200, 5, _real_rows, "random,evolution,surrogate_gflownet"),
    ]


def _nb201_rows(goals: DataSet, comparison: Searches, label: str) -> Iterator[Row]:
    yield at_least("mean best signal @50", _PERCENT * comparison.best(label, 50).mean(), "%", goals.signal_50)
    yield at_least("mean best signal @100", _PERCENT * comparison.best(label, 100).mean(), "%", goals.signal_100)
    yield at_least("seeds with the optimum by 150", _share_by(comparison, label, 150), "", _MIN_SHARE)
    yield at_least("test of the best @100", _PERCENT * _test(comparison, label, 100), "%", goals.test_100)
    yield at_least("distinct top 1 % by test @200", comparison.num_top(label, 200), "cells", goals.top_200)
    for seconds in comparison.own_seconds(label):
        yield at_most("own work per evaluation, median", seconds, "s", 0.2)
    yield from _calibration_rows(comparison, label)


def _long_rows(goals: DataSet, comparison: Searches, label: str) -> Iterator[Row]:
    yield at_least("distinct top 1 % by test @1,000", comparison.num_top(label, 1_000), "cells", goals.top_1000)


def _opgfn_rows(comparison: Searches, label: str) -> Iterator[Row]:
    yield at_least("seeds with the optimum by 250", _share_by(comparison, label, 250), "", _MIN_SHARE)
    yield figure("test of the best @250", _PERCENT * _test(comparison, label, 250), "%")


def _macro_rows(comparison: Searches, label: str) -> Iterator[Row]:
    yield at_least("mean best @100", _PERCENT * comparison.best(label, 100).mean(), "%", 93.12)
    yield from _calibration_rows(comparison, label)


def _recorded_rows(comparison: Searches, label: str) -> Iterator[Row]:
    for at in (100, 300):
        for other in ("evolution", "local_search"):
            yield from _above(f"best: above {other} @{at}", comparison, label, other, partial(comparison.best, at=at))
    near = partial(comparison.num_near, at=300)
    yield from _above("near_best: above surrogate @300", comparison, label, "surrogate", near)
    yield from _calibration_rows(comparison, label)


def _above(
    name: str, comparison: Searches, label: str, other: str, values: Callable[[str], np.ndarray]
) -> Iterator[Row]:
    """Yield the mean paired difference; it holds if its interval is above 0."""
    if other in comparison.curves and other != label:
        each = paired_difference(values(label), values(other))
        yield Row(f"{name} [{each.low:+.4f}, {each.high:+.4f}]", each.mean, "", "interval > 0", each.low > 0)


def _real_rows(comparison: Searches, label: str) -> Iterator[Row]:
    """Yield the means of the best 10 architectures on new seeds; the interval has to be above random's."""
    scores = {
        name: estimate_of([mean(curve.final_scores) for curve in curves]) for name, curves in comparison.curves.items()
    }
    for name, estimate in scores.items():
        yield figure(f"top 10 on new seeds: {name} [{estimate.low:.4f}, {estimate.high:.4f}]", estimate.mean)
    for other in ("random", "evolution"):
        if other in scores and other != label:
            difference = scores[label].mean - scores[other].mean
            holds = scores[label].low > scores[other].high if other == "random" else difference > 0
            goal = "intervals apart" if other == "random" else "> 0"
            yield Row(f"top 10 on new seeds: above {other}", difference, "", goal, holds)


def _test(comparison: Searches, label: str, at: int) -> float:
    return comparison.values(label, lambda curve: curve.test(at)).mean()


def _share_by(comparison: Searches, label: str, at: int) -> float:
    return float((comparison.best(label, at) >= (comparison.optimum or math.inf)).mean())


def _calibration_rows(comparison: Searches, label: str) -> Iterator[Row]:
    """Yield the share of scores inside the surrogate's 90 % intervals, predicted before they were known."""
    key = "surrogate_coverage_all"
    shares = [curve.metrics[key] for curve in comparison.curves[label] if key in curve.metrics]
    if shares:
        share = mean(shares)
        yield Row("scores inside 90 % intervals", share, "", "0.85 to 0.95", 0.85 <= share <= 0.95)


def _figures(comparison: Searches, searched: str) -> Iterator[Row]:
    """Yield the figures of the methods without goals."""
    num = comparison.num_evaluations
    for label in comparison.curves:
        if label != searched or num <= QUICK_BUDGET:
            for at in [*(at for at in _CHECKPOINTS if at < num), num]:
                yield figure(f"{label}: mean best @{at}", comparison.best(label, at).mean())
            for seconds in comparison.own_seconds(label):
                yield figure(f"{label}: own work per evaluation, median", seconds, "s")


def run(section: Section, arguments: argparse.Namespace) -> list[Row] | None:
    """Return the rows of a section, None after a stop request."""
    num_evaluations = QUICK_BUDGET if arguments.quick else section.num_evaluations
    methods = read_methods(QUICK_METHODS if arguments.quick else arguments.methods or section.methods)
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
        is_finished = plan.run(console=make_console(), stop=stop)
    if not is_finished:
        return None
    comparison = read_searches(plan)
    rows = list(_figures(comparison, arguments.searched))
    if not arguments.quick and arguments.searched in comparison.curves:
        rows += section.rows(comparison, arguments.searched)
    return [replace(row, name=f"{section.name}: {row.name}") for row in rows]


def main() -> int:
    """Run the sections and return the exit status."""
    arguments = parse_arguments(
        __doc__,
        texts={
            "only": "sections, or the first words of their names",
            "methods": "default: those of the section",
            "searched": f"the method with the goals; default: {SEARCHED}",
        },
        numbers={"seeds": "seeds of each method; default: those of the section"},
        paths={"tables": "folder of the benchmark tables", "out": f"folder of all runs; default: {_OUT}"},
    )
    arguments.searched, arguments.out = arguments.searched or SEARCHED, arguments.out or _OUT
    tables = arguments.tables or Path(os.environ.get("GFLOWNET_TABLES", ROOT.parent / "shared" / "data"))
    chosen = arguments.only.split(",") if arguments.only else ["nb201_c10", "recorded"] if arguments.quick else []
    rows: list[Row] = []
    if not chosen or "surrogates" in chosen:
        num_seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else NUM_SEEDS)
        rows += rank_rows(tables, num_seeds=num_seeds)
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
