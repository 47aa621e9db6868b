"""Progress of a run on the console: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gflownet.console import duration, print_line
from gflownet.errors import printable

# Faster updates are not readable.
MAX_REFRESHES_PER_SECOND = 8
# Minimum interval of plain lines about the progress of a stage.
STAGE_INTERVAL_S = 10.0
# Terminal width for two columns of metrics, and for both times of the progress bar.
_TWO_COLUMN_WIDTH = 64
_CURVE_WIDTH = 32
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
    Figure("seconds", "time of the search", "time", lambda seconds: duration(seconds)),
    Figure("in_flight", "in flight", "in flight", "{:,.0f}".format),
    Figure("busy_share", "evaluators busy", "busy", "{:.0%}".format),
    Figure("num_retried", "retried", "retried", "{:,.0f}".format),
    Figure("num_timeout", "timeouts", "timeouts", "{:,.0f}".format),
    Figure("num_crashed", "crashed", "crashed", "{:,.0f}".format),
    Figure("num_out_of_memory", "out of memory", "out of memory", "{:,.0f}".format),
    Figure("num_refused", "refused by budget", "refused", "{:,.0f}".format),
)

# Origins of proposed candidates (gflownet.search.history.ProposalOrigin), with their words.
ORIGINS = {
    "design": "first design",
    "space": "whole space",
    "mutation": "mutations",
    "policy": "policy",
    "random": "random",
}
# Models of the surrogate `auto` (gflownet.search.automatic.MODELS), with their words.
MIXED_MODELS = {
    "labels": "Gaussian process, labels",
    "numbers": "Gaussian process, numbers",
    "forest": "random forest",
    "networks": "graph networks",
}
# Origins of the candidates of a round, shown as STATUS_FIGURES.
ORIGIN_FIGURES = tuple(
    Figure(f"proposed_{name}", f"proposed: {words}", words, "{:,.0f}".format) for name, words in ORIGINS.items()
)
# Models of the surrogate, shown in the panel where they have a weight.
SURROGATE_FIGURES = tuple(
    Figure(f"surrogate_weight_{name}", f"surrogate: {words}", words, "{:.0%}".format)
    for name, words in MIXED_MODELS.items()
)


@dataclass(frozen=True)
class Limits:
    """Budget of a search, as in BudgetConfig; 0: no limit."""

    num_evaluations: int = 0
    seconds: float = 0.0
    num_after: int = 0  # trainings after the search
    words: str = ""  # plan of the run; empty: not shown


class Clock:
    """Elapsed and remaining time of this process, by its steps and the budget."""

    def __init__(
        self,
        num_steps: int,
        *,
        first_step: int = 0,
        limits: Limits | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_steps = num_steps
        self.now = now
        self._first_step = first_step
        self._limits = limits or Limits()
        self._start = now()
        self._first_evaluations: float | None = None

    @property
    def plan(self) -> str:
        """Return the plan of the run in words, empty without one."""
        return self._limits.words

    def elapsed(self) -> str:
        """Return h:mm:ss since the start of the process."""
        return duration(self.now() - self._start)

    def time_left(self, step: int, values: Mapping[str, float] | None = None) -> str:
        """Return h:mm:ss until the end of the trainings after the search; - before the first step.

        The search ends with its last step or its budget, whichever is first.

        Args:
            step: completed steps.
            values: metrics of the step, with the used budget.
        """
        values, elapsed = values or {}, self.now() - self._start
        done = step - self._first_step
        # Repeated proposals may take more steps than expected.
        estimates = [elapsed / done * (self.num_steps - step)] if done > 0 and step <= self.num_steps else []
        used, limits, seconds_after = values.get("num_distinct"), self._limits, 0.0
        if used is not None:
            if self._first_evaluations is None:
                self._first_evaluations = used if self._first_step else 0.0
            if used > self._first_evaluations:
                seconds_each = elapsed / (used - self._first_evaluations)
                seconds_after = seconds_each * limits.num_after
                if limits.num_evaluations:
                    estimates.append(max(0.0, seconds_each * (limits.num_evaluations - used)))
        if limits.seconds and "seconds" in values:
            estimates.append(max(0.0, limits.seconds - values["seconds"]))
        return duration(min(estimates) + seconds_after) if estimates else "-"


class Stage:
    """Progress of a stage with countable work, such as the trainings of the final stage."""

    def __init__(self, name: str, *, now: Callable[[], float], done: int = 0) -> None:
        """Start the stage; `done` is work of an earlier process."""
        self.name, self.done, self.total = name, done, 0
        self._now, self._start, self._done_before = now, now(), done

    def update(self, done: int, total: int) -> None:
        """Set the completed work."""
        self.done, self.total = done, total

    @property
    def elapsed(self) -> float:
        """Return the seconds since the start of the stage."""
        return self._now() - self._start

    def time_left(self) -> str:
        """Return h:mm:ss until its end, - before the first piece of work is done."""
        num_new = self.done - self._done_before
        return duration(self.elapsed / num_new * (self.total - self.done)) if num_new > 0 else "-"

    def __str__(self) -> str:
        share = f" ({self.done / self.total:.0%})" if self.total else ""
        return f"{self.name}: {self.done} of {self.total}{share}"


class View(ABC):
    """Progress on the console."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stage: Stage | None = None
        self.best_words = ""  # of the best architecture so far; empty: not shown

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a step."""

    @abstractmethod
    def show(self, values: Mapping[str, float]) -> None:
        """Show some values of the running step."""

    def stage(self, name: str, done: int, total: int) -> None:
        """Show the progress of a stage; the first call of a name starts it."""
        if self._stage is None or self._stage.name != name:
            self._stage = Stage(name, now=self._clock.now, done=done)
        self._stage.update(done, total)
        self._show_stage(self._stage)

    @abstractmethod
    def _show_stage(self, stage: Stage) -> None:
        """Show the progress of a stage."""

    @abstractmethod
    def close(self) -> None:
        """End the view."""


class PlainLines(View):
    """One line every `print_every` steps, for the last step, and now and then for a stage."""

    def __init__(self, console: Console, clock: Clock, *, print_every: int) -> None:
        super().__init__(clock)
        self._console = console
        self._print_every = print_every
        self._stage_line_at = -math.inf

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Print every `print_every`-th step and the last one."""
        clock = self._clock
        left = clock.time_left(step, values)  # of every step: the clock sees the first evaluations
        if step % self._print_every and step != clock.num_steps:
            return
        figures = [f"{figure.short} {_cell(figure, values)}" for figure in _shown(values)]
        best = [f"best: {self.best_words}"] if self.best_words else []
        print_line(self._console, " | ".join([f"step {step}/{clock.num_steps}", *figures, f"left {left}", *best]))

    def show(self, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _show_stage(self, stage: Stage) -> None:
        """Print a line every STAGE_INTERVAL_S seconds."""
        now = self._clock.now()
        if stage.elapsed < STAGE_INTERVAL_S or now - self._stage_line_at < STAGE_INTERVAL_S:
            return
        self._stage_line_at = now
        print_line(self._console, f"{stage} | time {duration(stage.elapsed)} | left {stage.time_left()}")


class LivePanel(View):
    """A panel redrawn in place; it uses no thread, so that workers can be forked at any time."""

    def __init__(self, console: Console, clock: Clock) -> None:
        super().__init__(clock)
        self._console = console
        self._step = 0
        self._values: Mapping[str, float] = {}
        self._scores: list[float] = []
        self._drawn_at = -math.inf
        self._left = "-"
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._panel)
        self._live.start(refresh=True)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Redraw the panel, at most `MAX_REFRESHES_PER_SECOND` times per second."""
        self._step, self._values = step, values
        self._left = self._clock.time_left(step, values)
        self._scores.append(values.get("score_mean", math.nan))
        self._redraw(is_last=step == self._clock.num_steps)

    def show(self, values: Mapping[str, float]) -> None:
        """Redraw the panel with some values of the running step, as often as `write`."""
        self._values = {**self._values, **values}
        self._redraw()

    def _show_stage(self, stage: Stage) -> None:
        self._redraw(is_last=stage.done == stage.total)

    def _redraw(self, *, is_last: bool = False) -> None:
        now = self._clock.now()
        if now - self._drawn_at >= 1 / MAX_REFRESHES_PER_SECOND or is_last:
            self._drawn_at = now
            self._live.refresh()

    def close(self) -> None:
        """Draw the last values and restore the cursor."""
        self._live.stop()

    def _panel(self) -> Panel:
        clock, stage = self._clock, self._stage
        steps = f"step {self._step}/{clock.num_steps}"
        bars = Table.grid(padding=(0, 1), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(ratio=1)
        bars.add_column(no_wrap=True, justify="right")
        bars.add_row(steps, self._bar(clock.num_steps, self._step), self._times(clock.elapsed(), self._left))
        if stage is not None:
            times = self._times(duration(stage.elapsed), stage.time_left())
            bars.add_row(f"{stage.name} {stage.done}/{stage.total}", self._bar(stage.total, stage.done), times)
        rows: list[RenderableType] = [bars]
        rows += [Text.assemble(("plan  ", "dim"), clock.plan)] if clock.plan else []
        rows.append(self._figures())
        if self.best_words:
            rows.append(Text.assemble(("best architecture  ", "dim"), printable(self.best_words)))
        if self._console.encoding.lower().startswith("utf") and len(self._scores) > 1:
            rows.append(Text.assemble(("mean score so far  ", "dim"), (curve(self._scores), "cyan")))
        return Panel(Group(*rows), title="gflownet", box=box.ROUNDED)

    def _bar(self, total: int, done: int) -> ProgressBar:
        return ProgressBar(total=max(total, 1), completed=done)

    def _times(self, elapsed: str, left: str) -> str:
        return f"{elapsed} elapsed, {left} left" if self._console.width >= _TWO_COLUMN_WIDTH else f"{left} left"

    def _figures(self) -> Table:
        num_columns = 2 if self._console.width >= _TWO_COLUMN_WIDTH else 1
        figures = [*_shown(self._values), *(each for each in SURROGATE_FIGURES if self._values.get(each.key))]
        num_rows = math.ceil(len(figures) / num_columns)
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in range(num_columns):
            table.add_column(style="dim", no_wrap=True)
            table.add_column(justify="right", no_wrap=True, ratio=1)
        for row in range(num_rows):
            cells = [cell for figure in figures[row::num_rows] for cell in (figure.label, _cell(figure, self._values))]
            table.add_row(*cells)
        return table


def make_view(
    console: Console,
    *,
    num_training_steps: int,
    print_every: int,
    first_step: int = 0,
    limits: Limits | None = None,
    is_quiet: bool = False,
) -> View:
    """Return a live panel for a terminal, plain lines otherwise, nothing if quiet.

    Args:
        console: terminal, pipe or file.
        num_training_steps: expected number of steps.
        print_every: steps between two lines.
        first_step: steps completed before a resume.
        limits: budget of the run.
        is_quiet: show nothing.
    """
    clock = Clock(num_training_steps, first_step=first_step, limits=limits)
    if is_quiet:
        return PlainLines(Console(quiet=True), clock, print_every=print_every)
    return LivePanel(console, clock) if console.is_terminal else PlainLines(console, clock, print_every=print_every)


def _shown(values: Mapping[str, float]) -> list[Figure]:
    """Return the figures to show: all of FIGURES, and those of STATUS_FIGURES and ORIGIN_FIGURES that are not 0."""
    return [*FIGURES, *(figure for figure in (*STATUS_FIGURES, *ORIGIN_FIGURES) if values.get(figure.key))]


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


def _cell(figure: Figure, values: Mapping[str, float]) -> str:
    value = values.get(figure.key)
    return "-" if value is None or not math.isfinite(value) else figure.form(value)
