"""The processes below a process: adopted when their parent ends, and ended together."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

import psutil

# Options of prctl(2).
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
# Longest time for all descendants to end after SIGKILL, seconds.
_END_TIMEOUT_S = 5.0


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parent ends; Linux only."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals) -> None:
    """Receive a signal when the parent of this process ends; Linux only."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)


def has_descendants() -> bool:
    """Return whether this process, which adopts orphans, has a descendant."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_descendants(pid: int | None = None) -> None:
    """Kill all descendants of a process that adopts and reaps orphans, by default this one, and wait for their end."""
    end = time.monotonic() + _END_TIMEOUT_S
    with suppress(psutil.NoSuchProcess):  # it has ended
        root = psutil.Process(pid)
        while (processes := root.children(recursive=True)) and time.monotonic() < end:
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(processes, timeout=_END_TIMEOUT_S)  # reaps those of this process


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
