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
def stop_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one ends the process as usual."""
    request, kinds = StopRequest(), (signal.SIGINT, signal.SIGTERM)
    usual = {kind: signal.getsignal(kind) for kind in kinds}

    def on_signal(number: int, frame: FrameType | None) -> None:
        request.signal = number
        for kind, handler in usual.items():
            signal.signal(kind, handler)
        sys.stderr.write("\nstopping after this step, then the report; once more stops at once\n")

    for kind in kinds:
        signal.signal(kind, on_signal)
    try:
        yield request
    finally:
        for kind, handler in usual.items():
            signal.signal(kind, handler)
