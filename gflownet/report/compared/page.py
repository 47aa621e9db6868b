"""Comparison of runs as data, and as one offline page: groups, their figures, curves and differences."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, compress
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from gflownet.errors import printable
from gflownet.files import json_text
from gflownet.pictures.chart import Chart, Table, duration_text, number_text
from gflownet.pictures.line_charts import Line, line_chart
from gflownet.records.marker import COMPARISON_FORMAT, PAGE_NAME
from gflownet.report.compared.figures import (
    CURVES,
    FIGURES,
    Estimate,
    FigureKind,
    GroupCurve,
    MeanDifference,
    best_score,
    figures_of,
    final_score,
    group_curve,
    paired_difference,
    unpaired_difference,
)
from gflownet.report.compared.groups import (
    SEED,
    Difference,
    Group,
    Problem,
    differences,
    groups_of,
    num_unknown_seeds,
    places_by_seed,
    problems_of,
    repeated_seeds,
    unknown_options,
)
from gflownet.report.page.best import Ranked, best_section
from gflownet.report.page.overview import minute_text
from gflownet.report.page.page import render
from gflownet.report.page.run_data import RunData, read_run
from gflownet.terminal.console import make_console, print_line

# Figures with paired differences; the first one that two groups have is in the verdict.
_COMPARED = ("test_score", "final_score", "best_score")


@dataclass(frozen=True)
class Comparison:
    """Everything that the page shows."""

    groups: Sequence[Group]
    figures: Sequence[Mapping[str, Estimate]]  # of each group, by key
    curves: Mapping[str, Sequence[GroupCurve | None]]  # by key of the chart, of each group
    differences: Sequence[Difference]

    @property
    def problems(self) -> list[Problem]:
        """Groups by task, data and budget."""
        return problems_of(self.groups)

    @property
    def runs(self) -> list[tuple[Group, RunData]]:
        """All runs with their groups, in order."""
        return [(group, run) for group in self.groups for run in group.runs]

    def paired(self, first: int, second: int, key: str) -> MeanDifference | None:
        """Return the difference of a figure between two groups, over the seeds of both; None without such a seed."""
        columns = []
        for place in (first, second):
            values = self.figures[place][key].values
            columns.append({seed: values[run] for seed, run in places_by_seed(self.groups[place]).items()})
        one, other = ({seed: value for seed, value in column.items() if math.isfinite(value)} for column in columns)
        seeds = sorted(one.keys() & other.keys())
        if not seeds:
            return None
        return paired_difference(np.array([one[seed] for seed in seeds]), np.array([other[seed] for seed in seeds]))

    def to_json(self) -> str:
        """Return the figures, curves and differences as JSON; unknown values are null."""
        content = {
            "format": COMPARISON_FORMAT,
            "groups": [self._group_entry(index) for index in range(len(self.groups))],
            "problems": [asdict(problem) for problem in self.problems],
            "differences": [asdict(difference) for difference in self.differences],
            "paired": [
                {"first": self.groups[first].name, "second": self.groups[second].name, "figure": key} | asdict(paired)
                for problem in self.problems
                for first, second in combinations(problem.places, 2)
                for key in _COMPARED
                if (paired := self.paired(first, second, key)) is not None
            ],
        }
        return json_text(content, indent=1)

    def _group_entry(self, index: int) -> dict[str, Any]:
        group = self.groups[index]
        return {
            "name": group.name,
            "runs": [
                {"folder": str(run.folder), "run": run.run_id, "seed": run.option(SEED), "state": state_of(run)}
                for run in group.runs
            ],
            "figures": {kind.key: asdict(self.figures[index][kind.key]) for kind in FIGURES},
            "curves": {
                key: asdict(curve) for key, curves in self.curves.items() if (curve := curves[index]) is not None
            },
        }


def comparison_of(folders: Sequence[Path]) -> Comparison:
    """Return the comparison of the runs in folders.

    Raises:
        UserError: no run in a folder.
    """
    groups = groups_of([read_run(folder) for folder in folders])
    return Comparison(
        groups=groups,
        figures=[figures_of(group) for group in groups],
        curves={kind.key: [group_curve(group, kind) for group in groups] for kind in CURVES},
        differences=differences(groups),
    )


def state_of(run: RunData) -> str:
    """Return the state of a run in a word."""
    return "unknown" if run.status is None else run.status.state.value


COMPARISON_NAME = "comparison.html"
# Maximum number of drawings.
MAX_CARDS = 12
# Maximum number of pairs of groups in a table; the JSON has all.
_MAX_PAIRS = 28


@dataclass(frozen=True)
class RunRow:
    """A run in the list of runs."""

    name: str
    href: str  # of its page, relative; empty without one
    group: str
    seed: str
    state: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class ProblemSection:
    """Figures and curves of the groups with the same task, data and budget."""

    name: str  # empty for the only problem
    figures: Table
    paired: Table | None  # None without two groups that share seeds
    charts: Sequence[Chart]


def comparison_page(comparison: Comparison, *, folder: Path, written: datetime | None = None) -> str:
    """Return the page: one HTML document without links to other files but the pages of the runs.

    Links are relative to its `folder`.
    """
    written = datetime.now(UTC) if written is None else written
    return render(
        "comparison.html.j2",
        comparison=comparison,
        num_runs=len(comparison.runs),
        num_groups=len(comparison.groups),
        verdicts=[sentence for problem in comparison.problems if (sentence := verdict_of(comparison, problem))],
        problems=[
            ProblemSection(
                problem.name,
                figure_table(comparison, problem),
                paired_table(comparison, problem),
                charts_of(comparison, number, problem),
            )
            for number, problem in enumerate(comparison.problems)
        ],
        differences=difference_table(comparison),
        architectures=top_architectures(comparison),
        runs=run_rows(comparison, folder=folder),
        run_header=[kind.title for kind in FIGURES],
        warnings=list(_warnings(comparison)),
        written=minute_text(written),
    )


def figure_table(comparison: Comparison, problem: Problem, kinds: Sequence[FigureKind] = FIGURES) -> Table:
    """Return final figures of a problem, a row per group."""
    rows = []
    for group, figures in ((comparison.groups[place], comparison.figures[place]) for place in problem.places):
        cells = [estimate_text(figures[kind.key], unit=kind.unit) for kind in kinds]
        rows.append([group.name, str(len(group.runs)), *cells])
    return Table(["group", "runs", *(kind.title for kind in kinds)], rows)


def paired_table(comparison: Comparison, problem: Problem) -> Table | None:
    """Return the paired differences of a problem, a row per pair of groups that share seeds; None without one."""
    rows, kinds = [], [kind for kind in FIGURES if kind.key in _COMPARED]
    for first, second in combinations(problem.places, 2):
        cells = [comparison.paired(first, second, kind.key) for kind in kinds]
        if num_seeds := max((each.num_seeds for each in cells if each is not None), default=0):
            pair = f"{comparison.groups[first].name} minus {comparison.groups[second].name}"
            rows.append(
                [pair, str(num_seeds), *(number_text(None) if each is None else each.figures for each in cells)]
            )
    return Table(["groups", "shared seeds", *(kind.title for kind in kinds)], rows[:_MAX_PAIRS]) if rows else None


def print_comparison(comparison: Comparison) -> None:
    """Print the final figures and the verdict of each problem."""
    console = make_console()
    for problem in comparison.problems:
        kinds = [kind for kind in FIGURES if kind.key in _COMPARED]
        is_known = [any(math.isfinite(each[kind.key].mean) for each in comparison.figures) for kind in kinds]
        figures = figure_table(comparison, problem, [*compress(kinds, is_known)])
        table = RichTable(title=printable(problem.name) or None, title_justify="left", box=box.SIMPLE_HEAD)
        for header in figures.header:
            table.add_column(header, overflow="fold")
        for row in figures.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        console.print(table)
        if verdict := verdict_of(comparison, problem):
            print_line(console, verdict)


def difference_table(comparison: Comparison) -> Table | None:
    """Return the options that differ, a row per option; None without one."""
    if not comparison.differences:
        return None
    rows = [[difference.key, *difference.values] for difference in comparison.differences]
    return Table(["option", *(group.name for group in comparison.groups)], rows)


def charts_of(comparison: Comparison, number: int, problem: Problem) -> list[Chart]:
    """Return the charts with the curves of a problem; `number` is in their keys."""
    charts = []
    for kind in CURVES:
        lines = [
            Line(comparison.groups[place].name, curve.x, curve.mean, low=curve.low, high=curve.high, colour=place)
            for place in problem.places
            if (curve := comparison.curves[kind.key][place]) is not None
        ]
        key = f"{kind.key}-{number}" if number else kind.key
        charts.append(line_chart(key, kind.title, lines, x_label=kind.x_label, y_label="score"))
    return [chart for chart in charts if chart is not None]


def top_architectures(comparison: Comparison) -> list[Ranked]:
    """Return the best architecture of each run; of more than MAX_CARDS runs, of the best run of each group."""
    runs = comparison.runs

    def score_of(run: RunData) -> float:
        return next(filter(math.isfinite, (final_score(run), best_score(run))), -math.inf)

    if len(runs) > MAX_CARDS:
        runs = [(group, max(group.runs, key=score_of)) for group in comparison.groups][:MAX_CARDS]
    cards = []
    for number, (group, run) in enumerate(runs):
        section = best_section(run)
        if section is not None:
            title = f"{group.name}, seed {run.option(SEED)}"
            best = section.ranked[0]
            cards.append(replace(best, key=f"best-{number}", title=title))
    return cards


def run_rows(comparison: Comparison, *, folder: Path) -> list[RunRow]:
    """Return the list of runs."""
    rows = []
    for group, run in comparison.runs:
        page = run.folder / PAGE_NAME
        values = [
            duration_text(kind.read(run)) if kind.key == "seconds" else number_text(kind.read(run)) for kind in FIGURES
        ]
        href = Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix() if page.is_file() else ""
        rows.append(RunRow(str(run.folder), href, group.name, str(run.option(SEED)), state_of(run), tuple(values)))
    return rows


def _warnings(comparison: Comparison) -> Iterator[str]:
    for group in comparison.groups:
        for seed in repeated_seeds(group):
            yield f"{group.name}: several runs have seed {seed}; intervals over seeds are too narrow."
        if (num := num_unknown_seeds(group)) > 1:
            yield f"{group.name}: the seeds of {num} runs are unknown; if equal, intervals over seeds are too narrow."
    for _, run in comparison.runs:
        if names := unknown_options(run):
            yield f"{run.folder.name}: a separate group, as the config lacks the value of {', '.join(names)}."
        if (state := state_of(run)) not in ("completed", "unknown"):
            yield f"{run.folder.name} is {state}: its figures are of the evaluations so far."
        for problem in run.problems:
            yield f"{run.folder.name}: {problem}"


def verdict_of(comparison: Comparison, problem: Problem) -> str:
    """Return the sentence about a problem, empty with less than two comparable groups."""
    for key in _COMPARED:
        kind = next(kind for kind in FIGURES if kind.key == key)
        estimates = [comparison.figures[place][key] for place in problem.places]
        finite = [index for index, estimate in enumerate(estimates) if math.isfinite(estimate.mean)]
        order = sorted(finite, key=lambda index: -estimates[index].mean)
        if len(order) > 1:
            first, second = (problem.places[index] for index in order[:2])
            names = [comparison.groups[place].name for place in (first, second)]
            start = f"{problem.name}: " if problem.name else ""
            sides = [estimates[index] for index in order[:2]]
            return start + _sentence(kind, names, sides, comparison.paired(first, second, key))
    return ""


def estimate_text(estimate: Estimate, *, unit: str = "") -> str:
    """Return a mean with its interval as text."""
    suffix = f" {unit}" if unit else ""
    if math.isnan(estimate.low):
        return number_text(estimate.mean) + (suffix if math.isfinite(estimate.mean) else "")
    low, high = number_text(estimate.low, 3), number_text(estimate.high, 3)
    return f"{number_text(estimate.mean)} [{low}, {high}]{suffix}"


def _sentence(
    kind: FigureKind, names: Sequence[str], estimates: Sequence[Estimate], paired: MeanDifference | None
) -> str:
    (first, second), (name, other) = estimates, names
    start = f"Highest {kind.title}: {estimate_text(first)} of {name}; next is {estimate_text(second)} of {other}."
    values = (np.array([each for each in side.values if math.isfinite(each)]) for side in estimates)
    how, difference = ("Seed by seed, ", paired) if paired else ("", unpaired_difference(*values))
    return f"{start} {how}{difference.line(name, other)}."
