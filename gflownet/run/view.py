"""Progress of a run on the console: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from gflownet.errors import printable
from gflownet.records.status import Phase
from gflownet.search.config import ORIGINS
from gflownet.terminal.console import duration, print_line

# Faster updates are hardly readable, and wandb keeps every one with the console output.
MAX_REFRESHES_PER_SECOND = 2
# Interval of plain lines within a stage or a step that takes long.
INTERVAL_S = 10.0
# Terminal width for two columns of metrics, and for the bars.
_TWO_COLUMN_WIDTH = 64
_TEXT_LINES = 8  # of a text in the panel
_MAX_MOMENTS = 1_000  # kept of a stage, evenly over its work


@dataclass(frozen=True)
class Figure:
    """Labels and format of a metric."""

    key: str
    label: str  # in the panel; empty: not there
    short: str | None  # in a line; None: not there
    form: Callable[[float], str]
    is_optional: bool = False  # not shown where the value is 0


FIGURES = (
    Figure("loss", "loss", "loss", "{:.4g}".format),
    Figure("likelihood_loss", "loss of maximum likelihood", "likelihood loss", "{:.4g}".format),
    Figure("log_Z", "log Z", "log Z", "{:.2f}".format),
    Figure("log_reward_mean", "mean log-reward", "log R", "{:.2f}".format),
    Figure("predicted_score_mean", "mean predicted score", "predicted", "{:.3f}".format),
    Figure("sampler_rank_correlation", "log p against log R", "log p, log R", "{:.2f}".format),
    Figure("score_mean", "mean score", "mean", "{:.3f}".format),
    Figure("score_best", "best score", "best", "{:.3f}".format),
    Figure("num_distinct", "distinct architectures", "distinct", "{:,.0f}".format),
    Figure("cached_share", "from cache", "cached", "{:.0%}".format),
    Figure("failed_share", "failed", "failed", "{:.0%}".format),
    Figure("evaluations_per_second", "evaluations / s", "eval/s", "{:.3g}".format),
)
STATUS_FIGURES = (
    Figure("in_flight", "in flight", "in flight", "{:,.0f}".format, is_optional=True),
    Figure("busy_share", "evaluators busy", "busy", "{:.0%}".format, is_optional=True),
    Figure("num_retried", "retried", "retried", "{:,.0f}".format, is_optional=True),
    Figure("num_timeout", "timeouts", "timeouts", "{:,.0f}".format, is_optional=True),
    Figure("num_crashed", "crashed", "crashed", "{:,.0f}".format, is_optional=True),
    Figure("num_out_of_memory", "out of memory", "out of memory", "{:,.0f}".format, is_optional=True),
    Figure("num_refused", "refused by budget", "refused", "{:,.0f}".format, is_optional=True),
)
FINAL_FIGURES = (
    Figure("num_finalists", "candidates", "candidates", "{:,.0f}".format),
    Figure("num_new_seeds", "new seeds, at most", "new seeds", "{:,.0f}".format),
    Figure("final_score_best", "best mean on new seeds", "best mean", "{:.3f}".format),
    Figure("num_random", "random architectures", "random", "{:,.0f}".format),
    Figure("random_score_best", "best of random", "best of random", "{:.3f}".format),
)


@dataclass(frozen=True)
class Look:
    """Title and figures of a kind of run."""

    title: str
    figures: tuple[Figure, ...]
    marker: str = ""  # key of steps that are always shown


SEARCH_LOOK = Look(
    "gflownet",
    (
        *FIGURES,
        *STATUS_FIGURES,
        *FINAL_FIGURES,
        Figure("surrogate_rank_correlation", "surrogate's rank correlation", "rank correlation", "{:.2f}".format),
        *(
            Figure(f"proposed_{name}_total", f"proposals: {words}", words, "{:,.0f}".format, is_optional=True)
            for name, words in ORIGINS.items()
        ),
    ),
)


@dataclass(frozen=True)
class PlannedWork:
    """The work that a search or a training may do; 0: no limit, or not known."""

    num_steps: int = 0  # of a training
    num_evaluations: int = 0
    seconds: float = 0.0
    num_after: int = 0  # trainings after the search
    num_sampler_steps: int = 0  # of the policy after the search
    phases: tuple[Phase, ...] = ()  # of the run, in order; the first one is that of the steps


class View(ABC):
    """Progress on the console: a row for each phase, and the figures of the running one."""

    def __init__(
        self,
        console: Console,
        planned: PlannedWork,
        look: Look = SEARCH_LOOK,
        *,
        is_resumed: bool = False,  # the steps before this process took no time of it
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._planned, self._look, self._now = console, planned, look, now
        self._is_resumed, self._start = is_resumed, now()
        bar = (BarColumn(None),) if console.width >= _TWO_COLUMN_WIDTH else ()
        name, times = (
            TextColumn(f"{{task.{field}}}", markup=False, table_column=Column(no_wrap=bool(bar)))
            for field in ("description", "fields[times]")
        )
        self._rows = Progress(name, *bar, times, console=console, expand=True, auto_refresh=False, get_time=now)
        totals = {Phase.SEARCH: planned.num_evaluations, Phase.SAMPLER: planned.num_sampler_steps}
        totals |= {Phase.FINAL: planned.num_after}
        self._phases = {
            phase: self._rows.add_task(_row(phase, 0, totals.get(phase, 0)), start=False, total=1.0, times="")
            for phase in planned.phases or (Phase.TRAINING,)
        }
        self._phase = self._main = next(iter(self._phases))
        self._values: Mapping[str, float] = {}  # of the running phase
        self._stage = "" if is_resumed else str(self._main)  # name of the running one
        self._moments = [(self._start, 0.0)]  # at which work of it was completed, with the completed work
        self._later: dict[Phase, float] = {}  # estimated seconds of phases that follow
        self._is_done, self._left = False, 0.0  # of the running phase; seconds, 0: not known
        self.best_words = ""  # of the best architecture so far; empty: not shown

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a step; the done share is that of steps, evaluations or seconds, whichever is largest."""
        self._values, planned = values, self._planned
        if self._phase != self._main:
            return
        num = round(values.get("num_distinct", 0))
        pairs = (step, planned.num_steps), (num, planned.num_evaluations), (values.get("seconds", 0.0), planned.seconds)
        share = min(1.0, max((done / total for done, total in pairs if total), default=0.0))
        is_search = self._main is Phase.SEARCH
        row = _row(self._main, num, planned.num_evaluations) if is_search else _row("step", step, planned.num_steps)
        seconds = self._advance(self._main, row, share, 1.0)
        if Phase.FINAL in self._phases and seconds and planned.num_evaluations:
            self._later[Phase.FINAL] = after = seconds / planned.num_evaluations * planned.num_after
            self._rows.update(self._phases[Phase.FINAL], times=f"about {duration(after)}")

    def show(self, values: Mapping[str, float]) -> None:  # noqa: B027
        """Show some values of the running step: at once where the view is redrawn in place, else if it takes long."""

    @abstractmethod
    def show_text(self, heading: str, text: str) -> None:
        """Show a text of the run."""

    def enter(self, phase: Phase) -> None:
        """Show the beginning of a phase; those before are done. Others than those of the plan have no row."""
        if phase not in self._phases:
            return
        for each in list(self._phases)[: list(self._phases).index(phase)]:
            number = self._phases[each]
            if self._rows.tasks[number].stop_time is None:
                self._rows.stop_task(number)
                seconds = duration(self._rows.tasks[number].elapsed or 0.0)
                self._rows.update(number, description=str(each), completed=1.0, times=f"done in {seconds}")
        self._rows.start_task(self._phases[phase])
        if phase == self._main and not self._is_resumed:
            self._stage, self._moments = str(phase), [(self._now(), 0.0)]
        self._phase, self._values, self._left, self._is_done = phase, {}, 0.0, False
        self._later.pop(phase, None)
        self._rows.update(self._phases[phase], times="")

    def stage(self, name: str, done: int, total: int, values: Mapping[str, float] | None = None) -> None:
        """Show the progress of a stage of the running phase; the first call of a name starts it."""
        self._values = self._values if values is None else values
        self._advance(name, _row(name, done, total), done, max(total, 1))
        self._show_stage(name, done, total)

    def _advance(self, name: str, row: str, done: float, total: float) -> float:
        """Update the row of the running phase, and return the seconds for its whole work, 0: not known."""
        now = self._now()
        if self._stage != name:
            self._stage, self._moments = name, [(now, done)]
        elif done > self._moments[-1][1]:
            self._moments.append((now, done))
            if len(self._moments) > _MAX_MOMENTS:
                del self._moments[1:-1:2]
        seconds = self._pace() * total
        self._is_done, number = done >= total, self._phases[self._phase]
        self._left = max(seconds * (1 - done / total) - (now - self._moments[-1][0]), 0.0)
        elapsed = duration(self._rows.tasks[number].elapsed or 0.0) if self._console.width >= _TWO_COLUMN_WIDTH else ""
        times = ", ".join(filter(None, (elapsed, self._left_words())))
        self._rows.update(number, description=row, completed=done / total, times=times)
        return seconds

    def _pace(self) -> float:
        """Return the seconds per work of the later half of the running stage, 0: not known.

        Its first completed work is left out: it has the time of imports, of first calls and of processes that start.
        """
        moments = self._moments
        half = bisect_left(moments, ((moments[0][0] + moments[-1][0]) / 2,))
        first = max(1, min(half, len(moments) - 2))
        if first >= len(moments) - 1:
            return 0.0
        (start, before), (end, done) = moments[first], moments[-1]
        return (end - start) / (done - before)

    def _left_words(self) -> str:
        """Return the time left of the running stage; less than a second is not shown: more may follow."""
        return f"{duration(self._left)} left" if self._left >= 1 else ""

    @abstractmethod
    def _show_stage(self, name: str, done: int, total: int) -> None:
        """Show the progress of a stage."""

    def close(self) -> None:  # noqa: B027
        """End the view."""

    def _is_always_shown(self) -> bool:
        return self._is_done or self._look.marker in self._values

    def _shown(self) -> list[Figure]:
        """Return the figures that have a value."""
        values = ((figure, self._values.get(figure.key, math.nan)) for figure in self._look.figures)
        return [figure for figure, value in values if math.isfinite(value) and (value or not figure.is_optional)]


class PlainLines(View):
    """One line every `print_every` steps, for the last step, and now and then within a long step or stage."""

    def __init__(self, *arguments: Any, print_every: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._print_every = print_every
        self._line_at = self._start

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Print every `print_every`-th step and the last one."""
        super().write(step, values)
        if step % self._print_every and not self._is_always_shown():
            return
        row = str(self._rows.tasks[self._phases[self._phase]].description)
        place = row if row.startswith("step") else f"step {step} | {row}"
        best = f"best: {self.best_words}" if self.best_words else ""
        self._print_line(place, self._left_words(), best)

    def show_text(self, heading: str, text: str) -> None:
        for line in (f"{heading}:", *(f"    {line}" for line in text.split("\n"))):
            print_line(self._console, line)

    def show(self, values: Mapping[str, float]) -> None:
        """Print a line where a step takes long."""
        if self._now() - self._line_at >= INTERVAL_S:
            self._values = {**self._values, **values}
            self._print_line(str(self._rows.tasks[self._phases[self._phase]].description), self._left_words())

    def _print_line(self, place: str, *ends: str) -> None:
        self._line_at = self._now()
        shown = [figure for figure in self._shown() if figure.short is not None]
        figures = [f"{figure.short} {figure.form(self._values[figure.key])}".lstrip() for figure in shown]
        print_line(self._console, " | ".join(filter(None, (place, *figures, *ends))))

    def _show_stage(self, name: str, done: int, total: int) -> None:
        """Print a line every INTERVAL_S seconds; the steps of a policy have lines of their own."""
        now, start = self._now(), self._moments[0][0]
        if name == Phase.SAMPLER or min(now - start, now - self._line_at) < INTERVAL_S:
            return
        share = f" ({done / total:.0%})" if total else ""
        self._print_line(f"{name}: {done} of {total}{share}", f"time {duration(now - start)}", self._left_words())


class LivePanel(View):
    """A panel redrawn in place, by a thread of rich too while one piece of work takes long.

    The process of a run forks none: its workers come from servers.
    """

    def __init__(self, *arguments: Any, seconds: float = 1.0, **options: Any) -> None:
        """`seconds`: between two redraws of the thread; 0: there is none."""
        super().__init__(*arguments, **options)
        self._step = 0
        self._text = Text()
        self._drawn_at = -math.inf
        pace = {"auto_refresh": seconds > 0, "refresh_per_second": 1 / (seconds or 1.0)}
        self._live = Live(console=self._console, get_renderable=self._panel, **pace)
        self._live.start(refresh=True)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Redraw the panel, at most `MAX_REFRESHES_PER_SECOND` times per second."""
        super().write(step, values)
        self._step = step
        self._redraw(is_last=self._is_always_shown())

    def show(self, values: Mapping[str, float]) -> None:
        self._values = {**self._values, **values}
        self._redraw()

    def show_text(self, heading: str, text: str) -> None:
        lines = [f"  {printable(line)}" for line in text.split("\n")[:_TEXT_LINES]]
        self._text = Text("\n".join([f"{heading}:", *lines]), no_wrap=True, overflow="ellipsis")
        self._redraw(is_last=True)

    def enter(self, phase: Phase) -> None:
        super().enter(phase)
        self._redraw(is_last=True)

    def _show_stage(self, name: str, done: int, total: int) -> None:
        self._redraw(is_last=self._is_done)

    def _redraw(self, *, is_last: bool = False) -> None:
        now = self._now()
        if now - self._drawn_at >= 1 / MAX_REFRESHES_PER_SECOND or is_last:
            self._drawn_at = now
            self._live.refresh()

    def close(self) -> None:
        """Draw the last values and restore the cursor."""
        self._live.stop()

    def _panel(self) -> Panel:
        best = [Text.assemble(("best architecture  ", "dim"), printable(self.best_words))] if self.best_words else []
        rows = [*best, *([self._text] if self._text else [])]
        step = f", step {self._step}" if self._step and self._main is Phase.SEARCH else ""
        elapsed, panel = duration(self._now() - self._start), Group(self._rows, self._figures(), *rows)
        left = self._left + math.fsum(self._later.values()) if self._console.width >= _TWO_COLUMN_WIDTH else 0.0
        times = f"{elapsed} elapsed" + (f", at least {duration(left)} left" if len(self._phases) > 1 <= left else "")
        return Panel(panel, title=f"{self._look.title}{step}", subtitle=times)

    def _figures(self) -> Table:
        num_columns, values = 2 if self._console.width >= _TWO_COLUMN_WIDTH else 1, self._values
        figures = [figure for figure in self._shown() if figure.label and figure.key in values]
        num_rows = math.ceil(len(figures) / num_columns)
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in range(num_columns):
            table.add_column(style="dim", no_wrap=True)
            table.add_column(justify="right", no_wrap=True, ratio=1)
        for row in range(num_rows):
            cells = ((figure.label, figure.form(values[figure.key])) for figure in figures[row::num_rows])
            table.add_row(*chain.from_iterable(cells))
        return table


def _row(name: str, done: int, total: int) -> str:
    """Return a name with its completed work."""
    return f"{name} {done:,}/{max(done, total):,}" if total else f"{name} {done:,}" if done else name


def make_view(
    console: Console,
    *,
    planned: PlannedWork,
    print_every: int,
    is_resumed: bool = False,
    look: Look = SEARCH_LOOK,
    is_quiet: bool = False,
) -> View:
    """Return a live panel for a terminal that can redraw lines, else a line every `print_every` steps, or none."""
    if console.is_terminal and not console.is_dumb_terminal and not is_quiet:
        return LivePanel(console, planned, look, is_resumed=is_resumed)
    console = Console(quiet=True) if is_quiet else console
    return PlainLines(console, planned, look, is_resumed=is_resumed, print_every=print_every)
