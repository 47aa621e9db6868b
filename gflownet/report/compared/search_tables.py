"""Tables and verdicts of planned searches, their picture, and comparison.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gflownet.cli.console import print_line
from gflownet.errors import printable
from gflownet.files import json_text, save_whole
from gflownet.pictures.chart import Chart, svg_of
from gflownet.pictures.line_charts import Line, line_chart
from gflownet.records.status import recorded_versions
from gflownet.report.compared.figures import bounded_intervals
from gflownet.report.compared.record import JSON_NAME, RESULT_KIND, SVG_NAME
from gflownet.report.compared.searches import Accounting, Quantity, Searches, Summary

_NUM_PLACES = 200  # of a curve
# Share of the budget after which the curves decide the range of the axis: the first evaluations are far below.
_START_SHARE = 0.2
_TITLES = {
    Quantity.BEST: "best score",
    Quantity.TEST: "test score of the best",
    Quantity.NEAR_BEST: "architectures within 1 % of the best",
    Quantity.TOP_TEST: "architectures of the top 1 % by test",
}
_COSTS = {Accounting.EVALUATIONS: "new evaluations (repeats free)", Accounting.PROPOSALS: "proposals (each one counts)"}


def draw(searches: Searches) -> str:
    """Return an SVG document: for each problem one row for each known quantity, one column for each accounting.

    Lines are means over the seeds, bands their 95 % intervals.
    """
    charts = [
        _chart(problem, quantity, accounting, colours=searches.labels)
        for problem in searches.problems
        for quantity in _TITLES
        if quantity in problem.quantities
        for accounting in Accounting
    ]
    return svg_of(*(chart for chart in charts if chart is not None), num_columns=len(Accounting))


def _chart(searches: Searches, quantity: Quantity, accounting: Accounting, *, colours: Sequence[str]) -> Chart | None:
    at = np.unique(np.linspace(1, searches.num_evaluations, _NUM_PLACES).round())
    lines = []
    for label in searches.labels:
        values = searches.values(label, quantity, at, accounting=accounting)
        low, high = bounded_intervals(values, upper=quantity.upper) if len(values) > 1 else (None, None)
        ends = (None, None) if low is None or high is None else (low.tolist(), high.tolist())
        lines.append(Line(label, at.tolist(), values.mean(axis=0).tolist(), *ends, colour=colours.index(label)))
    if quantity is Quantity.BEST and searches.references.is_optimum:
        lines.append(Line("best of the space", at.tolist(), [searches.references.best] * len(at), is_faint=True))
    start = at >= min(_START_SHARE * searches.num_evaluations, at[-1])
    return line_chart(
        f"{quantity}-{accounting}",
        _TITLES[quantity] if len(searches.labels) == len(colours) else f"{searches.title}: {_TITLES[quantity]}",
        lines,
        x_label=_COSTS[accounting],
        y_label="",
        is_log=False,
        from_x=float(at[start][0]),
    )


_FORMAT = 1


def write_searches(searches: Searches, folder: Path, *, command: Sequence[str], copy: Path | None = None) -> list[Path]:
    """Write comparison.json and its picture; return their paths. Raises UserError if one cannot be written."""
    text = to_json(searches, command=command)
    contents = {folder / JSON_NAME: text, folder / SVG_NAME: draw(searches)}
    if copy is not None:
        contents[copy] = text
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_whole(path, content)
    return [*contents]


def to_json(searches: Searches, *, command: Sequence[str]) -> str:
    """Return all figures, and the curves of every seed, as JSON."""
    content = {
        "kind": RESULT_KIND,
        "format": _FORMAT,
        "command": list(command),
        "versions": recorded_versions(),
        "title": searches.title,
        "num_evaluations": searches.num_evaluations,
        "seeds": list(searches.seeds),
        "checkpoints": list(searches.checkpoints),
        "references": asdict(searches.problems[0].references),
        "methods": {label: _method(problem, label) for problem in searches.problems for label in problem.labels},
        "problems": [
            {"name": problem.title, "methods": problem.labels, "references": asdict(problem.references)}
            for problem in searches.problems
        ],
        "differences": [each for problem in searches.problems for each in _differences(problem)],
    }
    return json_text(content)


def _differences(searches: Searches) -> list[dict[str, Any]]:
    """Return the differences of all pairs of methods, quantities, accountings and checkpoints."""
    cases = product(combinations(searches.labels, 2), searches.quantities, Accounting, searches.checkpoints)
    return [
        {"first": first, "second": second, "quantity": quantity, "accounting": accounting, "at": at}
        | asdict(searches.difference(first, second, quantity, at, accounting=accounting))
        | {"verdict": searches.verdict(first, second, quantity, at, accounting=accounting)}
        for (first, second), quantity, accounting, at in cases
    ]


def _method(searches: Searches, label: str) -> dict[str, Any]:
    records = searches.records[label]
    figures = {
        accounting.value: {
            quantity.value: {
                str(at): asdict(searches.summary(label, quantity, at, accounting=accounting))
                for at in searches.checkpoints
            }
            for quantity in searches.quantities
        }
        for accounting in Accounting
    }
    optimum = {
        accounting.value: None if (each := searches.optimum(label, accounting=accounting)) is None else asdict(each)
        for accounting in Accounting
    }
    return {
        "config": records[0].config,
        "figures": figures,
        "optimum": optimum,
        "own_seconds_per_evaluation": searches.own_seconds(label),
        "proposals_per_evaluation": searches.proposals_per_evaluation(label),
        "runs": [
            {"seed": seed, "scores": record.scores, "tests": record.tests, "proposals": record.proposals}
            | {"num_proposals": record.num_proposals, "end": record.end, "final_scores": record.final_scores}
            | {"evaluation_seconds": record.evaluation_seconds, "metrics": record.metrics}
            for seed, record in zip(searches.seeds, records, strict=True)
        ],
    }


_CAPTIONS = {Accounting.EVALUATIONS: "repeats free", Accounting.PROPOSALS: "every proposal counts"}


def print_searches(searches: Searches, console: Console) -> None:
    """Print the tables and the verdicts, of each problem alone."""
    if len(searches.problems) > 1:
        print_line(console, "the methods differ in task, data or budget: their scores are not ranked together")
        for problem in searches.problems:
            print_line(console, f"\n{problem.title}")
            _print_problem(problem, console)
    else:
        _print_problem(searches, console)


def _print_problem(searches: Searches, console: Console) -> None:
    seeds = f"{len(searches.seeds)} {'seed' if len(searches.seeds) == 1 else 'seeds'}"
    for accounting in Accounting:
        title = f"best score, {_CAPTIONS[accounting]}: mean [95 % interval] of {seeds}"
        _print_checkpoints(searches, console, title, Quantity.BEST, accounting, show=_mean)
    free = Accounting.EVALUATIONS
    title = f"best score, {_CAPTIONS[free]}: median [quartiles]"
    _print_checkpoints(searches, console, title, Quantity.BEST, free, show=_quartiles)
    if Quantity.TEST in searches.quantities:
        title = f"test score of the best, {_CAPTIONS[free]}: mean [95 % interval]"
        _print_checkpoints(searches, console, title, Quantity.TEST, free, show=_mean)
    columns = _last_columns(searches)
    _print_table(
        console,
        f"after {searches.num_evaluations:,} evaluations: means",
        ["method", *columns],
        [[label, *(cells[row] for cells in columns.values())] for row, label in enumerate(searches.labels)],
    )
    if searches.references.is_optimum:
        print_line(console, f"best score of the space: {searches.references.best:.4f}")
    for line in [*searches.verdicts(searches.baseline()), *_notes(searches)]:
        print_line(console, line)


def _print_checkpoints(
    searches: Searches,
    console: Console,
    title: str,
    quantity: Quantity,
    accounting: Accounting,
    *,
    show: Callable[[Summary], str],
) -> None:
    rows = [
        [label, *(show(searches.summary(label, quantity, at, accounting=accounting)) for at in searches.checkpoints)]
        for label in searches.labels
    ]
    _print_table(console, title, ["method", *(f"{at:,}" for at in searches.checkpoints)], rows)


def _last_columns(searches: Searches) -> dict[str, list[str]]:
    """Return the columns of the table at the last checkpoint: header -> one cell per method."""
    at, accounting = searches.num_evaluations, Accounting.EVALUATIONS

    def cells(quantity: Quantity) -> list[Summary]:
        return [searches.summary(label, quantity, at, accounting=accounting) for label in searches.labels]

    columns = dict[str, list[str]]()
    columns["within 1 % of the best"] = [f"{each.mean:.1f}" for each in cells(Quantity.NEAR_BEST)]
    if Quantity.TOP_TEST in searches.quantities:
        columns["top 1 % by test"] = [f"{each.mean:.1f}" for each in cells(Quantity.TOP_TEST)]
    if searches.references.is_optimum:
        columns["optimum"] = [_optimum(searches, label) for label in searches.labels]
    columns["proposals / evaluation"] = [f"{searches.proposals_per_evaluation(label):.2f}" for label in searches.labels]
    columns["own s / evaluation"] = [f"{searches.own_seconds(label):.2g}" for label in searches.labels]
    return columns


def _optimum(searches: Searches, label: str) -> str:
    optimum = searches.optimum(label, accounting=Accounting.EVALUATIONS)
    assert optimum is not None
    num = f"{optimum.num_reached}/{len(searches.seeds)}"
    return num if math.isinf(optimum.median_cost) else f"{num}, median {optimum.median_cost:,.0f}"


def _notes(searches: Searches) -> list[str]:
    return [
        f"{label}: {len(short)} of {len(records)} runs ended early, the first after {short[0]:,} evaluations"
        for label, records in searches.records.items()
        if (short := [len(each) for each in records if len(each) < searches.num_evaluations - each.num_final])
    ]


def _mean(summary: Summary) -> str:
    if math.isnan(summary.low):
        return "-" if math.isnan(summary.mean) else f"{summary.mean:.4f}"
    return f"{summary.mean:.4f} [{summary.low:.4f}, {summary.high:.4f}]"


def _quartiles(summary: Summary) -> str:
    return f"{summary.median:.4f} [{summary.lower_quartile:.4f}, {summary.upper_quartile:.4f}]"


def _print_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print_line(console, title)
    table = Table(box=box.SIMPLE_HEAD)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
