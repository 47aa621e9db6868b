"""The processes below a process: adopted when their parent ends, and ended together."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

# Options of prctl(2).
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
# Longest time for all descendants to end after SIGKILL, seconds.
_END_TIMEOUT_S = 5.0


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parent ends; Linux only."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Receive SIGKILL when the thread that started this process ends; Linux only."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def has_descendants() -> bool:
    """Return whether this process, which adopts orphans, has a descendant."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_descendants(*, spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process, which adopts orphans, and wait for their end.

    Args:
        spared: children that go on, with their descendants.
    """
    end = time.monotonic() + _END_TIMEOUT_S
    while time.monotonic() < end:
        children = [child for child in psutil.Process().children() if child.pid not in spared]
        if not children:
            return
        with suppress(psutil.Error):
            children += [each for child in children for each in child.children(recursive=True)]
        for process in children:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(children, timeout=_END_TIMEOUT_S)  # reaps those of this process


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
