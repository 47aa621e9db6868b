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
_PAUSE_S = 0.002


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


def end_descendants() -> None:
    """Kill all descendants of this process, which adopts orphans, and wait for their end."""
    end = time.monotonic() + _END_TIMEOUT_S
    while has_descendants() and time.monotonic() < end:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        _reap()
        time.sleep(_PAUSE_S)


def end_descendants_of(pid: int) -> None:
    """Kill all descendants of another process, which adopts and reaps orphans, and wait for their end."""
    end = time.monotonic() + _END_TIMEOUT_S
    while time.monotonic() < end:
        try:
            processes = psutil.Process(pid).children(recursive=True)
        except psutil.Error:  # it has ended
            return
        if not processes:
            return
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=_END_TIMEOUT_S)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
