"""Progress of a run as a live panel on a terminal or as plain lines, and the closing tables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gflownet.errors import printable

# Faster updates are not readable.
MAX_REFRESHES_PER_SECOND = 8
# Terminal width for two columns of metrics.
_TWO_COLUMN_WIDTH = 64
# Width of the report's tables in a pipe, which has no width.
_PIPE_WIDTH = 120
_CURVE_WIDTH = 32
# Maximum number of rows of a front's table.
_MAX_FRONT_ROWS = 20
_CURVE_MARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Figure:
    """Labels and format of a metric."""

    key: str
    label: str  # in the panel
    short: str  # in a line
    form: Callable[[float], str]


FIGURES = (
    Figure("loss", "loss", "loss", "{:.4g}".format),
    Figure("log_Z", "log Z", "log Z", "{:.2f}".format),
    Figure("log_reward_mean", "mean log-reward", "log R", "{:.2f}".format),
    Figure("score_mean", "mean score", "mean", "{:.3f}".format),
    Figure("score_best", "best score", "best", "{:.3f}".format),
    Figure("num_distinct", "distinct architectures", "distinct", "{:,.0f}".format),
    Figure("cached_share", "from cache", "cached", "{:.0%}".format),
    Figure("failed_share", "failed", "failed", "{:.0%}".format),
    Figure("evaluations_per_second", "evaluations / s", "eval/s", "{:.1f}".format),
)

# Shown where the value is present and not 0.
STATUS_FIGURES = (
    Figure("seconds", "elapsed", "time", lambda seconds: duration(seconds)),
    Figure("in_flight", "in flight", "in flight", "{:,.0f}".format),
    Figure("busy_share", "evaluators busy", "busy", "{:.0%}".format),
    Figure("num_retried", "retried", "retried", "{:,.0f}".format),
    Figure("num_timeout", "timeouts", "timeouts", "{:,.0f}".format),
    Figure("num_crashed", "crashed", "crashed", "{:,.0f}".format),
    Figure("num_out_of_memory", "out of memory", "out of memory", "{:,.0f}".format),
    Figure("num_refused", "refused by budget", "refused", "{:,.0f}".format),
)


@dataclass(frozen=True)
class ReportRow:
    """One of the best architectures, or a reference."""

    rank: int | None  # None: a reference
    validation: float
    test: float | None
    num_parameters: int | None
    num_hidden: int | None
    num_edges: int | None
    picture: str  # file name, without its folder; name of a reference
    margin: float | None = None  # half the width of the interval of `validation`


def make_view(
    console: Console, *, num_training_steps: int, print_every: int, first_step: int = 0
) -> PlainLines | LivePanel:
    """Return a live panel for a terminal, plain lines otherwise. `first_step`: steps completed before a resume."""
    clock = Clock(num_training_steps, first_step=first_step)
    return LivePanel(console, clock) if console.is_terminal else PlainLines(console, clock, print_every=print_every)


class Clock:
    """Estimate of the remaining time from the steps of this process."""

    def __init__(self, num_steps: int, *, first_step: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self.num_steps = num_steps
        self.now = now
        self._first_step = first_step
        self._start = now()

    def time_left(self, step: int) -> str:
        """Return h:mm:ss until the last step, - before the first."""
        done = step - self._first_step
        if done <= 0:
            return "-"
        return duration((self.now() - self._start) / done * (self.num_steps - step))


class PlainLines:
    """One line every `print_every` steps, and for the last step."""

    def __init__(self, console: Console, clock: Clock, *, print_every: int) -> None:
        self._console = console
        self._clock = clock
        self._print_every = print_every

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Print every `print_every`-th step and the last one."""
        if step % self._print_every and step != self._clock.num_steps:
            return
        figures = [f"{figure.short} {_cell(figure, values)}" for figure in _shown(values)]
        line = " | ".join([f"step {step}/{self._clock.num_steps}", *figures, f"left {self._clock.time_left(step)}"])
        print_line(self._console, line)

    def show(self, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LivePanel:
    """A panel redrawn in place; it uses no thread, so that workers can be forked at any time."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._step = 0
        self._values: Mapping[str, float] = {}
        self._scores: list[float] = []
        self._drawn_at = -math.inf
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._panel)
        self._live.start()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Redraw the panel, at most `MAX_REFRESHES_PER_SECOND` times per second."""
        self._step, self._values = step, values
        self._scores.append(values.get("score_mean", math.nan))
        self._redraw(is_last=step == self._clock.num_steps)

    def show(self, values: Mapping[str, float]) -> None:
        """Redraw the panel with some values of the running step, as often as `write`."""
        self._values = {**self._values, **values}
        self._redraw()

    def _redraw(self, *, is_last: bool = False) -> None:
        now = self._clock.now()
        if now - self._drawn_at >= 1 / MAX_REFRESHES_PER_SECOND or is_last:
            self._drawn_at = now
            self._live.refresh()

    def close(self) -> None:
        """Draw the last values and restore the cursor."""
        self._live.stop()

    def _panel(self) -> Panel:
        progress = Table.grid(padding=(0, 1), expand=True)
        progress.add_column(no_wrap=True)
        progress.add_column(ratio=1)
        progress.add_column(no_wrap=True)
        progress.add_row(
            f"step {self._step}/{self._clock.num_steps}",
            ProgressBar(total=self._clock.num_steps, completed=self._step),
            f"{self._clock.time_left(self._step)} left",
        )
        rows: list[RenderableType] = [progress, self._figures()]
        if self._console.encoding.lower().startswith("utf") and len(self._scores) > 1:
            rows.append(Text.assemble(("mean score so far  ", "dim"), (curve(self._scores), "cyan")))
        return Panel(Group(*rows), title="gflownet", box=box.ROUNDED)

    def _figures(self) -> Table:
        num_columns = 2 if self._console.width >= _TWO_COLUMN_WIDTH else 1
        figures = _shown(self._values)
        num_rows = math.ceil(len(figures) / num_columns)
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in range(num_columns):
            table.add_column(style="dim", no_wrap=True)
            table.add_column(justify="right", no_wrap=True, ratio=1)
        for row in range(num_rows):
            cells = [cell for figure in figures[row::num_rows] for cell in (figure.label, _cell(figure, self._values))]
            table.add_row(*cells)
        return table


def duration(seconds: float) -> str:
    """Return h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _shown(values: Mapping[str, float]) -> list[Figure]:
    """Return the figures to show: all of FIGURES, and those of STATUS_FIGURES that are not 0."""
    return [*FIGURES, *(figure for figure in STATUS_FIGURES if values.get(figure.key))]


def curve(scores: Sequence[float]) -> str:
    """Plot scores as at most 32 block characters, each the mean of a section."""
    finite = [score for score in scores if math.isfinite(score)]
    width = min(_CURVE_WIDTH, len(finite))
    bounds = [round(i * len(finite) / width) for i in range(width + 1)] if width else [0]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(bounds)]
    if not means:
        return ""
    low, spread = min(means), max(means) - min(means)
    top = len(_CURVE_MARKS) - 1
    return "".join(_CURVE_MARKS[round((mean - low) / spread * top) if spread else 0] for mean in means)


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
    table = Table(title="best architectures", title_justify="left", box=box.SIMPLE_HEAD)
    for header in ("rank", "validation", "test", "parameters", "hidden", "edges"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("architecture" if any(row.rank is None for row in rows) else "picture", overflow="fold")
    for row, following in zip_longest(rows, rows[1:]):
        is_last_rank = row.rank is not None and following is not None and following.rank is None
        table.add_row(*_report_cells(row), Text(printable(row.picture)), end_section=is_last_rank)
    console.print(table)
    for note in notes:
        print_line(console, note)
    if pictures:
        print_line(console, f"pictures: {pictures}")
    if load_line is not None:
        console.print("Load one as an nn.Module in Python:")
        print_line(console, f"  {load_line}")


def _report_cells(row: ReportRow) -> Iterator[str]:
    """Yield the cells of a row of the best architectures, up to the picture."""
    yield _count(row.rank)
    yield f"{row.validation:.4f}" + ("" if row.margin is None else f" ± {row.margin:.4f}")
    yield "-" if row.test is None else f"{row.test:.4f}"
    yield _count(row.num_parameters)
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


def _cell(figure: Figure, values: Mapping[str, float]) -> str:
    value = values.get(figure.key)
    return "-" if value is None or not math.isfinite(value) else figure.form(value)
