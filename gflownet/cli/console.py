"""Lines on the console."""

from __future__ import annotations

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
