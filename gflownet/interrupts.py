"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """The signal that asked the run to stop, once there was one."""

    signal: int | None = None


@contextmanager
def stop_signals(
    *kinds: signal.Signals, message: str = "\nstopping after this step, then the report; once more stops at once\n"
) -> Iterator[StopRequest]:
    """Turn the first signal into a request to stop; a second one ends the process as usual.

    Args:
        kinds: of signals; SIGINT and SIGTERM if none is given.
        message: what the first one writes to stderr.
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
