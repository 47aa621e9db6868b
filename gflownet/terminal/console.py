"""Lines on the console."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from gflownet.errors import printable

# Width of tables in a pipe, which has no width.
_PIPE_WIDTH = 120


def duration(seconds: float) -> str:
    """Return h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def print_line(console: Console, text: str) -> None:
    """Print a text without markup, with control characters escaped."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def make_console() -> Console:
    """Return a console for standard output, wide enough for a table in a pipe or file."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


# A finished step that took longer is printed where there is no terminal.
LONG_STEP_S = 5.0


class StartUp:
    """The steps before a run has its logs: one line that is replaced on a terminal, lines of long steps elsewhere."""

    def __init__(self, verbosity: str, *, now: Callable[[], float] = time.monotonic) -> None:
        """Take the value of the option console."""
        self._verbosity, self._now = verbosity, now
        self._console = make_console()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show the step of the block."""
        start, shows_line = self._now(), self._console.is_terminal and self._verbosity != "quiet"
        if shows_line:
            self._rewrite(f"start-up: {name} ...")
        try:
            yield
        finally:
            if shows_line:
                self._rewrite("")
        seconds = self._now() - start
        is_long = seconds >= LONG_STEP_S and self._verbosity == "normal" and not self._console.is_terminal
        if is_long or self._verbosity == "verbose":
            print_line(self._console, f"start-up: {name}, {seconds:.1f} s")

    def _rewrite(self, text: str) -> None:
        """Replace the line of the cursor."""
        self._console.file.write(f"\r\x1b[K{text}")
        self._console.file.flush()
