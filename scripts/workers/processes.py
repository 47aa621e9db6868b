"""What the kernel knows of processes (proc(5))."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def workers() -> dict[str, int]:
    """Return the names and ids of the worker processes that live now."""
    return {process.name: process.pid for process in multiprocessing.active_children() if process.pid is not None}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / _TICKS


def private_bytes(pid: int) -> int:
    """Return how much of a process is in memory, without files and shared memory; 0 of one that has ended."""
    return _status(pid).get("RssAnon", 0) * 1024


def shared_bytes(pid: int) -> int:
    """Return how much shared memory a process has mapped and used; 0 of one that has ended."""
    return _status(pid).get("RssShmem", 0) * 1024


def num_descriptors(pid: int) -> int:
    """Return the number of files that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def num_threads(pid: int) -> int:
    """Return the number of threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def _status(pid: int) -> dict[str, int]:
    """Return the fields of a process's status that are given in kB: none of a process that is ending or gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, value in pairs}
