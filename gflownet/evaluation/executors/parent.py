"""The end of a fork server that still imports modules with its parent; without effect in other processes.

Imported before all other modules. Once it serves, the server notices by itself that its parent has ended.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

PARENT_VARIABLE = "GFLOWNET_PARENT"  # process id of the parent of a fork server
_PERIOD_S = 0.5


def is_server() -> bool:
    """Return whether this process is a fork server."""
    return any("multiprocessing.forkserver" in argument for argument in sys.orig_argv)


def _watch() -> None:
    # A timer, not a parent-death signal, which is sent at the end of the thread that started the server.
    parent = int(os.environ.get(PARENT_VARIABLE, os.getppid()))  # it may have ended before this line

    def check(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, _PERIOD_S, _PERIOD_S)


def stop_watching() -> None:
    """End the timer: children of the server get none."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


if is_server():
    _watch()
