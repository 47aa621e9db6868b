"""Signals and closed pipes: Ctrl-C and SIGTERM ask a run to stop, and stdout may lose its reader."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """The signal that requested the stop, once received."""

    signal: int | None = None


def discard_output_without_reader() -> bool:
    """Return whether stdout is a pipe whose reader has left, as in `--help | head`; what is left to write is discarded.

    A BrokenPipeError does not say which pipe it is about: it may also be one of a worker that died.
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
    """Flush stdout; where that fails, as in a file on a full disk, discard what is left to write."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def stop_signals(
    *kinds: signal.Signals, message: str = "\nstopping after this step, then the report; once more stops at once\n"
) -> Iterator[StopRequest]:
    """Turn the first signal into a request to stop; a second one ends the process as usual.

    Args:
        kinds: of signals; SIGINT and SIGTERM if none is given.
        message: written to stderr on the first signal.
    """
    request, kinds = StopRequest(), kinds or (signal.SIGINT, signal.SIGTERM)
    usual = {kind: signal.getsignal(kind) for kind in kinds}

    def on_signal(number: int, frame: FrameType | None) -> None:
        request.signal = number
        for kind, handler in usual.items():
            signal.signal(kind, handler)
        sys.stderr.write(message)

    for kind in kinds:
        signal.signal(kind, on_signal)
    try:
        yield request
    finally:
        for kind, handler in usual.items():
            signal.signal(kind, handler)
