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

from gflownet.errors import printable
from gflownet.records.status import Phase
from gflownet.search.config import MIXED_MODELS, ORIGINS
from gflownet.terminal.console import duration, print_line

# Faster updates are not readable.
MAX_REFRESHES_PER_SECOND = 8
# Minimum interval of plain lines about the progress of a stage.
STAGE_INTERVAL_S = 10.0
# Terminal width for two columns of metrics, and for both times of the progress bar.
_TWO_COLUMN_WIDTH = 64
_CURVE_WIDTH = 32
_CURVE_STEPS = 10_000  # last steps that the curve shows
_TEXT_LINES = 8  # of a text in the panel
_CURVE_MARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Figure:
    """Labels and format of a metric."""

    key: str
    label: str  # in the panel; empty: not there
    short: str | None  # in a line; None: not there
    form: Callable[[float], str]
    is_optional: bool = False  # shown where the value is present and not 0


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

STATUS_FIGURES = (
    Figure("seconds", "time of the search", "time", lambda seconds: duration(seconds), is_optional=True),
    Figure("in_flight", "in flight", "in flight", "{:,.0f}".format, is_optional=True),
    Figure("busy_share", "evaluators busy", "busy", "{:.0%}".format, is_optional=True),
    Figure("num_retried", "retried", "retried", "{:,.0f}".format, is_optional=True),
    Figure("num_timeout", "timeouts", "timeouts", "{:,.0f}".format, is_optional=True),
    Figure("num_crashed", "crashed", "crashed", "{:,.0f}".format, is_optional=True),
    Figure("num_out_of_memory", "out of memory", "out of memory", "{:,.0f}".format, is_optional=True),
    Figure("num_refused", "refused by budget", "refused", "{:,.0f}".format, is_optional=True),
)


@dataclass(frozen=True)
class Look:
    """Title, figures and curve of a kind of run."""

    title: str
    figures: tuple[Figure, ...]
    curve: tuple[str, str, int]  # key, label, and 1 or -1: the sign with which larger values are better
    marker: str = ""  # key of steps that are always shown


SEARCH_LOOK = Look(
    "gflownet",
    (
        *FIGURES,
        *STATUS_FIGURES,
        *(
            Figure(f"proposed_{name}", f"proposed: {words}", words, "{:,.0f}".format, is_optional=True)
            for name, words in ORIGINS.items()
        ),
        *(
            Figure(f"surrogate_weight_{name}", f"surrogate: {words}", None, "{:.0%}".format, is_optional=True)
            for name, words in MIXED_MODELS.items()
        ),
    ),
    ("score_mean", "mean score so far", 1),
)


@dataclass(frozen=True)
class Limits:
    """Budget of a search, as in BudgetConfig, or of a training; 0: no limit."""

    num_evaluations: int = 0
    seconds: float = 0.0
    num_after: int = 0  # trainings after the search
    words: str = ""  # plan of the run; empty: not shown
    phases: tuple[Phase, ...] = ()  # of the run, in order


class Clock:
    """Elapsed and remaining time of this process, by its steps and the budget."""

    def __init__(
        self,
        num_steps: int,  # 0: not known
        *,
        first_step: int = 0,
        limits: Limits | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_steps = num_steps
        self.now = now
        self._first_step = first_step
        self.limits = limits or Limits()
        self._start = now()
        self._first_evaluations: float | None = None

    def elapsed(self) -> str:
        """Return h:mm:ss since the start of the process."""
        return duration(self.now() - self._start)

    def time_left(self, step: int, values: Mapping[str, float] | None = None) -> str:
        """Return h:mm:ss until the end of the trainings after the search; - before the first step."""
        seconds, seconds_after = self.seconds_left(step, values or {})
        return "-" if seconds is None else duration(seconds + seconds_after)

    def seconds_left(self, step: int, values: Mapping[str, float]) -> tuple[float | None, float]:
        """Return the seconds of the remaining steps, None before the first one, and of the trainings after them.

        The search ends with its last step or its budget, whichever is first.

        Args:
            step: completed steps.
            values: metrics of the step, with the used budget.
        """
        elapsed, done = self.now() - self._start, step - self._first_step
        # Repeated proposals may take more steps than expected.
        estimates = [elapsed / done * (self.num_steps - step)] if done > 0 and step <= self.num_steps else []
        used, limits, seconds_after = values.get("num_distinct"), self.limits, 0.0
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
        return min(estimates, default=None), seconds_after

    def steps(self, step: int) -> str:
        """Return the completed steps in words."""
        return f"step {step}/{self.num_steps}" if self.num_steps else f"step {step}"

    def share(self, step: int, values: Mapping[str, float]) -> float:
        """Return the share of the steps that are done, or of the seconds where their number is not known."""
        if self.num_steps or not self.limits.seconds:
            return step / max(self.num_steps, 1)
        return values.get("seconds", 0.0) / self.limits.seconds


class StageProgress:
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

    def __init__(self, clock: Clock, look: Look = SEARCH_LOOK) -> None:
        self._clock, self._look = clock, look
        self._stage: StageProgress | None = None
        self._phase: Phase | None = None
        self.best_words = ""  # of the best architecture so far; empty: not shown

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a step."""

    @abstractmethod
    def show(self, values: Mapping[str, float]) -> None:
        """Show some values of the running step."""

    @abstractmethod
    def show_text(self, heading: str, text: str) -> None:
        """Show a text of the run."""

    def expect(self, num_steps: int) -> None:
        """Set the expected number of steps."""
        self._clock.num_steps = num_steps

    def enter(self, phase: Phase) -> None:
        """Show the beginning of a phase."""
        self._phase = phase

    def stage(self, name: str, done: int, total: int) -> None:
        """Show the progress of a stage; the first call of a name starts it."""
        if self._stage is None or self._stage.name != name:
            self._stage = StageProgress(name, now=self._clock.now, done=done)
        self._stage.update(done, total)
        self._show_stage(self._stage)

    @abstractmethod
    def _show_stage(self, stage: StageProgress) -> None:
        """Show the progress of a stage."""

    @abstractmethod
    def close(self) -> None:
        """End the view."""

    def _is_always_shown(self, step: int, values: Mapping[str, float]) -> bool:
        return step == self._clock.num_steps or self._look.marker in values

    def _shown(self, values: Mapping[str, float]) -> list[Figure]:
        """Return the figures with a value, and those that are not optional."""
        return [figure for figure in self._look.figures if not figure.is_optional or values.get(figure.key)]


class PlainLines(View):
    """One line every `print_every` steps, for the last step, and now and then for a stage."""

    def __init__(self, console: Console, clock: Clock, look: Look = SEARCH_LOOK, *, print_every: int) -> None:
        super().__init__(clock, look)
        self._console = console
        self._print_every = print_every
        self._stage_line_at = -math.inf

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Print every `print_every`-th step and the last one."""
        clock = self._clock
        left = clock.time_left(step, values)  # of every step: the clock sees the first evaluations
        if step % self._print_every and not self._is_always_shown(step, values):
            return
        shown = [figure for figure in self._shown(values) if figure.short is not None]
        figures = [f"{figure.short} {_cell(figure, values)}".lstrip() for figure in shown]
        best = [f"best: {self.best_words}"] if self.best_words else []
        print_line(self._console, " | ".join([clock.steps(step), *figures, f"left {left}", *best]))

    def show(self, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def show_text(self, heading: str, text: str) -> None:
        """Print the text, indented."""
        for line in (f"{heading}:", *(f"    {line}" for line in text.split("\n"))):
            print_line(self._console, line)

    def close(self) -> None:
        """Do nothing."""

    def _show_stage(self, stage: StageProgress) -> None:
        """Print a line every STAGE_INTERVAL_S seconds."""
        now = self._clock.now()
        if stage.elapsed < STAGE_INTERVAL_S or now - self._stage_line_at < STAGE_INTERVAL_S:
            return
        self._stage_line_at = now
        print_line(self._console, f"{stage} | time {duration(stage.elapsed)} | left {stage.time_left()}")


class LivePanel(View):
    """A panel redrawn in place; it uses no thread, so that workers can be forked at any time."""

    def __init__(self, console: Console, clock: Clock, look: Look = SEARCH_LOOK) -> None:
        super().__init__(clock, look)
        self._console = console
        self._step = 0
        self._values: Mapping[str, float] = {}
        self._curve: list[float] = []
        self._text = Text()
        self._drawn_at = -math.inf
        self._seconds: tuple[float | None, float] = (None, 0.0)  # of the remaining steps, and of what follows them
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._panel)
        self._live.start(refresh=True)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Redraw the panel, at most `MAX_REFRESHES_PER_SECOND` times per second."""
        self._step, self._values = step, values
        self._seconds = self._clock.seconds_left(step, values)
        key, _, sign = self._look.curve
        self._curve = [*self._curve[-_CURVE_STEPS:], sign * values.get(key, math.nan)]
        self._redraw(is_last=self._is_always_shown(step, values))

    def show(self, values: Mapping[str, float]) -> None:
        """Redraw the panel with some values of the running step, as often as `write`."""
        self._values = {**self._values, **values}
        self._redraw()

    def show_text(self, heading: str, text: str) -> None:
        """Show the beginning of the text in the panel."""
        lines = [f"  {printable(line)}" for line in text.split("\n")[:_TEXT_LINES]]
        self._text = Text("\n".join([f"{heading}:", *lines]), no_wrap=True, overflow="ellipsis")
        self._redraw(is_last=True)

    def enter(self, phase: Phase) -> None:
        """Mark the phase in the plan."""
        super().enter(phase)
        self._redraw(is_last=True)

    def _show_stage(self, stage: StageProgress) -> None:
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
        seconds, seconds_after = self._seconds
        left = "-" if seconds is None else duration(seconds + seconds_after)
        bars = Table.grid(padding=(0, 1), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(ratio=1)
        bars.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(total=1.0, completed=min(clock.share(self._step, self._values), 1.0))
        bars.add_row(clock.steps(self._step), bar, self._times(clock.elapsed(), left))
        if stage is not None:
            times = self._times(duration(stage.elapsed), stage.time_left())
            bar = ProgressBar(total=max(stage.total, 1), completed=stage.done)
            bars.add_row(f"{stage.name} {stage.done}/{stage.total}", bar, times)
        before = {"plan": clock.limits.words, "phases": self._phases()}
        after = {"best architecture": printable(self.best_words), self._look.curve[1]: self._marks()}
        rows: list[list[RenderableType]] = [
            [Text.assemble((f"{label}  ", "dim"), words) for label, words in each.items() if words]
            for each in (before, after)
        ]
        text = [self._text] if self._text else []
        panel = Group(bars, *rows[0], self._figures(), *rows[1], *text)
        return Panel(panel, title=self._look.title, box=box.ROUNDED)

    def _phases(self) -> str:
        """Return the phases of the run, with the time left of those that are to come."""
        phases, words = self._clock.limits.phases, []
        current = phases.index(self._phase) if self._phase in phases else 0
        for number, phase in enumerate(phases):
            if phase is Phase.FINAL and current < number and self._seconds[1]:
                left = self._seconds[1]
            else:
                left = self._seconds[0] if number == current == 0 else None
            time_left = "done" if number < current else "" if left is None else f"{duration(left)} left"
            words.append(f"{phase} {time_left}".rstrip())
        return " > ".join(words)

    def _marks(self) -> Text | str:
        is_drawn = self._console.encoding.lower().startswith("utf") and len(self._curve) > 1
        return Text(curve(self._curve), "cyan") if is_drawn else ""

    def _times(self, elapsed: str, left: str) -> str:
        return f"{elapsed} elapsed, {left} left" if self._console.width >= _TWO_COLUMN_WIDTH else f"{left} left"

    def _figures(self) -> Table:
        num_columns = 2 if self._console.width >= _TWO_COLUMN_WIDTH else 1
        figures = [figure for figure in self._shown(self._values) if figure.label]
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
    look: Look = SEARCH_LOOK,
    is_quiet: bool = False,
) -> View:
    """Return a live panel for a terminal that can redraw lines, plain lines otherwise, nothing if quiet.

    Args:
        console: terminal, pipe or file.
        num_training_steps: expected number of steps; 0: not known.
        print_every: steps between two lines.
        first_step: steps completed before a resume.
        limits: budget of the run.
        look: figures of the run.
        is_quiet: show nothing.
    """
    clock = Clock(num_training_steps, first_step=first_step, limits=limits)
    if is_quiet:
        console = Console(quiet=True)
    if console.is_terminal and not console.is_dumb_terminal and not is_quiet:
        return LivePanel(console, clock, look)
    return PlainLines(console, clock, look, print_every=print_every)


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
