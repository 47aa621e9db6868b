"""Lines and tables on the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gflownet.errors import printable

# Width of the report's tables in a pipe, which has no width.
_PIPE_WIDTH = 120
# Terminal width for hidden nodes and edges in every table of the report.
_SIZES_WIDTH = 100
# Maximum number of rows of a front's table.
_MAX_FRONT_ROWS = 20


@dataclass(frozen=True)
class ReportRow:
    """One of the best architectures, or a reference."""

    rank: int | None  # None: a reference
    validation: float
    test: float | None
    num_parameters: int | None
    num_hidden: int | None
    num_edges: int | None
    picture: str  # words, or file name without its folder; name of a reference
    margin: float | None = None  # half the width of the interval of `validation`


def duration(seconds: float) -> str:
    """Return h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def print_report(
    rows: Sequence[ReportRow],
    *,
    load_line: str | None,
    pictures: str = "",
    notes: Sequence[str] = (),
    no_rows: str = "no architecture could be evaluated",
    console: Console | None = None,
) -> None:
    """Print the table of the best architectures, and the Python line that loads one as an nn.Module.

    Hidden nodes and edges are left out where the console is too narrow for them.

    Args:
        rows: best first, then references.
        load_line: the Python line; None if the objects are not computation graphs.
        pictures: folder of the pictures.
        notes: lines below the table.
        no_rows: line in place of an empty table.
        console: default: standard output.
    """
    console = console or make_console()
    if not rows:
        print_line(console, no_rows)
        return
    table = _report_table(rows, has_sizes=any(row.num_hidden is not None for row in rows))
    widest = console.measure(table, options=console.options.update(width=1_000)).maximum
    if console.width < min(widest, _SIZES_WIDTH):
        table = _report_table(rows, has_sizes=False)
    console.print(table)
    for note in notes:
        print_line(console, note)
    if pictures:
        print_line(console, f"pictures: {pictures}")
    if load_line is not None:
        console.print("Load one as an nn.Module in Python:")
        print_line(console, f"  {load_line}")


def _report_table(rows: Sequence[ReportRow], *, has_sizes: bool) -> Table:
    table = Table(title="best architectures", title_justify="left", box=box.SIMPLE_HEAD)
    for header in ("rank", "validation", "test", "parameters", *(("hidden", "edges") if has_sizes else ())):
        table.add_column(header, justify="right", no_wrap=True)
    is_picture = rows[0].num_hidden is not None and all(row.rank is not None for row in rows)
    table.add_column("picture" if is_picture else "architecture", overflow="fold")
    for row, following in zip_longest(rows, rows[1:]):
        is_last_rank = row.rank is not None and following is not None and following.rank is None
        table.add_row(*_report_cells(row, has_sizes=has_sizes), Text(printable(row.picture)), end_section=is_last_rank)
    return table


def _report_cells(row: ReportRow, *, has_sizes: bool) -> Iterator[str]:
    yield _count(row.rank)
    yield f"{row.validation:.4f}" + ("" if row.margin is None else f" ± {row.margin:.4f}")
    yield "-" if row.test is None else f"{row.test:.4f}"
    yield _count(row.num_parameters)
    if has_sizes:
        yield _count(row.num_hidden)
        yield _count(row.num_edges)


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def print_front(
    objectives: Sequence[str], values: Sequence[Sequence[float]], *, console: Console | None = None
) -> None:
    """Print the table of a Pareto front, at most `_MAX_FRONT_ROWS` evenly spaced rows.

    Args:
        objectives: column names.
        values: of each architecture, in order of rank.
        console: default: standard output.
    """
    num_rows = min(len(values), _MAX_FRONT_ROWS)
    ranks = [round(i * (len(values) - 1) / max(num_rows - 1, 1)) for i in range(num_rows)]
    title = "Pareto front" if num_rows == len(values) else f"Pareto front, {num_rows} of {len(values)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for header in ("rank", *map(printable, objectives)):
        table.add_column(Text(header), justify="right", no_wrap=True)
    for rank in ranks:
        table.add_row(str(rank), *(_format(value) for value in values[rank]))
    (console or make_console()).print(table)


def _format(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def print_line(console: Console, text: str) -> None:
    """Print a text without markup, with control characters escaped."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def make_console() -> Console:
    """Return a console for standard output, wide enough for a table in a pipe or file."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
