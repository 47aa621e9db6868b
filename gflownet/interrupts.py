"""Graceful stop on Ctrl-C and SIGTERM, and output to closed pipes."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

STOP_MESSAGE = (
    "\nstopping: running evaluations are cancelled, checkpoint and report are written; repeat to stop immediately\n"
)


@dataclass
class StopRequest:
    """The signal that requested the stop, once received."""

    signal: int | None = None
    react: Callable[[], None] = lambda: None  # called by the handler of the signal


def discard_output_without_reader() -> bool:
    """Return whether stdout is a pipe without a reader, as in `--help | head`, and discard further output.

    A BrokenPipeError does not name its pipe: it may also be the pipe of a dead worker.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # stdout is not a file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    _discard(descriptor)
    return True


def discard_output_that_fails() -> None:
    """Flush stdout; if that fails, for example on a full disk, discard further output."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _discard(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


@contextmanager
def stop_signals(*kinds: signal.Signals, message: str = STOP_MESSAGE) -> Iterator[StopRequest]:
    """Turn the first signal into a request to stop; a second one ends the process.

    Args:
        kinds: signals; default: SIGINT and SIGTERM.
        message: written to stderr on the first signal.
    """
    request, kinds = StopRequest(), kinds or (signal.SIGINT, signal.SIGTERM)
    usual = {kind: signal.getsignal(kind) for kind in kinds}

    def on_signal(number: int, frame: FrameType | None) -> None:
        request.signal = number
        for kind, handler in usual.items():
            signal.signal(kind, handler)
        sys.stderr.write(message)
        request.react()

    for kind in kinds:
        signal.signal(kind, on_signal)
    try:
        yield request
    finally:
        for kind, handler in usual.items():
            signal.signal(kind, handler)


@contextmanager
def on_alarm(react: Callable[[], None]) -> Iterator[None]:
    """Call a function when the SIGALRM of a timer arrives in the block."""
    handler = signal.signal(signal.SIGALRM, lambda number, frame: react())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
