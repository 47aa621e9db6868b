"""Cores and memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

# Memory limits of containers: cgroup version 2, version 1.
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_STATISTICS = Path("/proc/vmstat")
_GIGABYTE = 10**9


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Return the memory of this machine or container in bytes."""
    limits = [psutil.virtual_memory().total]
    for path in _MEMORY_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such control group, or the word max
            continue
    return min(limits)


def memory_per_process(limit: float | None, *, capacity: int) -> int:
    """Return evaluation.memory_limit in bytes; None: an equal share of the memory, one for the main process too."""
    return memory() // (capacity + 1) if limit is None else int(limit * _GIGABYTE)


def num_kills_without_memory() -> int:
    """Return the number of processes that Linux has killed for lack of memory since it started; 0 if unknown."""
    try:
        lines = _STATISTICS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
