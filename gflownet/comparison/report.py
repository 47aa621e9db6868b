"""Tables and verdicts of a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gflownet.comparison.accounting import Accounting, Quantity
from gflownet.comparison.result import Comparison, Summary
from gflownet.errors import printable
from gflownet.terminal.console import print_line

_CAPTIONS = {Accounting.EVALUATIONS: "repeats free", Accounting.PROPOSALS: "every proposal counts"}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the tables and the verdicts."""
    seeds = f"{len(comparison.seeds)} {'seed' if len(comparison.seeds) == 1 else 'seeds'}"
    for accounting in Accounting:
        title = f"best score, {_CAPTIONS[accounting]}: mean [95 % interval] of {seeds}"
        _print_checkpoints(comparison, console, title, Quantity.BEST, accounting, show=_mean)
    free = Accounting.EVALUATIONS
    title = f"best score, {_CAPTIONS[free]}: median [quartiles]"
    _print_checkpoints(comparison, console, title, Quantity.BEST, free, show=_quartiles)
    if Quantity.TEST in comparison.quantities:
        title = f"test score of the best, {_CAPTIONS[free]}: mean [95 % interval]"
        _print_checkpoints(comparison, console, title, Quantity.TEST, free, show=_mean)
    columns = _last_columns(comparison)
    _print_table(
        console,
        f"after {comparison.num_evaluations:,} evaluations: means",
        ["method", *columns],
        [[label, *(cells[row] for cells in columns.values())] for row, label in enumerate(comparison.labels)],
    )
    if comparison.references.is_optimum:
        print_line(console, f"best score of the space: {comparison.references.best:.4f}")
    for line in [*comparison.verdicts(comparison.baseline()), *_notes(comparison)]:
        print_line(console, line)


def _print_checkpoints(
    comparison: Comparison,
    console: Console,
    title: str,
    quantity: Quantity,
    accounting: Accounting,
    *,
    show: Callable[[Summary], str],
) -> None:
    """Print a table with one row per method and one column per checkpoint."""
    rows = [
        [
            label,
            *(show(comparison.summary(label, quantity, at, accounting=accounting)) for at in comparison.checkpoints),
        ]
        for label in comparison.labels
    ]
    _print_table(console, title, ["method", *(f"{at:,}" for at in comparison.checkpoints)], rows)


def _last_columns(comparison: Comparison) -> dict[str, list[str]]:
    """Return the columns of the table at the last checkpoint: header -> one cell per method."""
    at, accounting = comparison.num_evaluations, Accounting.EVALUATIONS

    def cells(quantity: Quantity) -> list[Summary]:
        return [comparison.summary(label, quantity, at, accounting=accounting) for label in comparison.labels]

    columns = dict[str, list[str]]()
    columns["within 1 % of the best"] = [f"{each.mean:.1f}" for each in cells(Quantity.NEAR_BEST)]
    if Quantity.TOP_TEST in comparison.quantities:
        columns["top 1 % by test"] = [f"{each.mean:.1f}" for each in cells(Quantity.TOP_TEST)]
    if comparison.references.is_optimum:
        columns["optimum"] = [_optimum(comparison, label) for label in comparison.labels]
    columns["proposals / evaluation"] = [
        f"{comparison.proposals_per_evaluation(label):.2f}" for label in comparison.labels
    ]
    columns["own s / evaluation"] = [f"{comparison.own_seconds(label):.2g}" for label in comparison.labels]
    return columns


def _optimum(comparison: Comparison, label: str) -> str:
    optimum = comparison.optimum(label, accounting=Accounting.EVALUATIONS)
    assert optimum is not None
    num = f"{optimum.num_reached}/{len(comparison.seeds)}"
    return num if math.isinf(optimum.median_cost) else f"{num}, median {optimum.median_cost:,.0f}"


def _notes(comparison: Comparison) -> list[str]:
    """Return lines on runs that ended before the budget was spent."""
    return [
        f"{label}: {len(short)} of {len(records)} runs ended early, the first after {short[0]:,} evaluations"
        for label, records in comparison.records.items()
        if (short := [len(each) for each in records if len(each) < comparison.num_evaluations - each.num_final])
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
