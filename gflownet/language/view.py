"""Progress of a training on the console: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gflownet.console import duration, print_line
from gflownet.errors import printable
from gflownet.language.config import LanguageConfig
from gflownet.run.view import MAX_REFRESHES_PER_SECOND, curve

_SAMPLE_LINES = 8
_CURVE_POINTS = 400  # of the loss, before it is summarised


@dataclass(frozen=True)
class Shown:
    """State of a training after a step."""

    step: int
    num_steps: int | None  # None: the length is in seconds
    done: float  # share of the training
    seconds: float  # of this process
    done_before: float  # share at the start of this process
    bits: float  # per byte of the step's batch
    rate: float  # learning rate
    tokens_per_second: float
    validation: float = math.nan  # bits per byte of the last evaluation
    best: float = math.nan

    @property
    def time_left(self) -> str:
        """h:mm:ss until the end."""
        gained = self.done - self.done_before
        return duration(self.seconds / gained * max(0.0, 1 - self.done)) if gained > 0 else "-"

    @property
    def progress(self) -> str:
        """Steps, with their number if it is known."""
        return f"step {self.step}" + ("" if self.num_steps is None else f"/{self.num_steps}")


class View(ABC):
    """Progress on the console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @abstractmethod
    def write(self, shown: Shown, *, is_evaluated: bool) -> None:
        """Show a step."""

    @abstractmethod
    def sample(self, step: int, prompt: str, text: str) -> None:
        """Show a text of the model."""

    def print(self, text: str) -> None:
        """Print a line."""
        print_line(self.console, text)

    @abstractmethod
    def close(self) -> None:
        """End the view."""


class NoView(View):
    """Shows nothing, and no lines of the training."""

    def write(self, shown: Shown, *, is_evaluated: bool) -> None:
        """Do nothing."""

    def sample(self, step: int, prompt: str, text: str) -> None:
        """Do nothing."""

    def print(self, text: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainLines(View):
    """A line every `print_every` steps and for each evaluation; samples are indented."""

    def __init__(self, console: Console, *, print_every: int) -> None:
        super().__init__(console)
        self._print_every = print_every

    def write(self, shown: Shown, *, is_evaluated: bool) -> None:
        """Print some of the steps."""
        if shown.step % self._print_every and not is_evaluated:
            return
        words = [shown.progress, f"bits per byte {shown.bits:.3f}"]
        words += [f"validation {shown.validation:.3f}"] if is_evaluated else []
        words += [f"rate {shown.rate:.2g}", f"{shown.tokens_per_second:,.0f} tokens/s", f"left {shown.time_left}"]
        self.print(" | ".join(words))

    def sample(self, step: int, prompt: str, text: str) -> None:
        """Print the text."""
        self.print(f"sample after step {step}:")
        for line in (prompt + text).strip("\n").split("\n"):
            self.print(f"    {line}")

    def close(self) -> None:
        """Do nothing."""


class LivePanel(View):
    """A panel that is redrawn in place, with the last sample."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._shown: Shown | None = None
        self._sample = ""
        self._bits: list[float] = []
        self._drawn_at = -math.inf
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._panel)
        self._live.start()

    def write(self, shown: Shown, *, is_evaluated: bool) -> None:
        """Redraw, at most `MAX_REFRESHES_PER_SECOND` times per second."""
        self._shown = shown
        self._bits = [*self._bits[-_CURVE_POINTS + 1 :], shown.bits]
        now = time.monotonic()
        if now - self._drawn_at >= 1 / MAX_REFRESHES_PER_SECOND or is_evaluated:
            self._drawn_at = now
            self._live.refresh()

    def sample(self, step: int, prompt: str, text: str) -> None:
        """Show the text in the panel."""
        lines = (prompt + text).strip("\n").split("\n")[:_SAMPLE_LINES]
        self._sample = "\n".join([f"sample after step {step}:", *(f"  {printable(line)}" for line in lines)])
        self._live.refresh()

    def close(self) -> None:
        """Draw the last values and restore the cursor."""
        self._live.stop()

    def _panel(self) -> Panel:
        shown = self._shown
        if shown is None:
            return Panel(Text("first step ..."), title="language model", title_align="left")
        bars = Table.grid(padding=(0, 1), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(ratio=1)
        bars.add_column(no_wrap=True, justify="right")
        times = f"{duration(shown.seconds)}, left {shown.time_left}"
        bars.add_row(shown.progress, ProgressBar(total=1.0, completed=min(shown.done, 1.0)), times)
        figures = Table.grid(padding=(0, 2))
        rows = {
            "bits per byte, batch": f"{shown.bits:.3f}  {curve([-bits for bits in self._bits])}",
            "validation, best": f"{_number(shown.validation)}, {_number(shown.best)}",
            "learning rate": f"{shown.rate:.3g}",
            "tokens / s": f"{shown.tokens_per_second:,.0f}",
        }
        for label, value in rows.items():
            figures.add_row(label, value)
        parts = [bars, figures, *([Text(self._sample)] if self._sample else [])]
        return Panel(Group(*parts), title="language model", title_align="left")


def make_view(console: Console, config: LanguageConfig) -> View:
    """Return a live panel for a terminal, plain lines otherwise, nothing if quiet."""
    if config.console == "quiet":
        return NoView(console)
    if console.is_terminal and config.console == "normal":
        return LivePanel(console)
    return PlainLines(console, print_every=1 if config.console == "verbose" else config.print_every)


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
