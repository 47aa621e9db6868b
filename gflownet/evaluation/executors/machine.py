"""Cores, memory and CUDA devices that this process may use, without torch."""

from __future__ import annotations

import ctypes
import os
import runpy
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psutil

from gflownet.errors import UserError

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


def cause_of_no_cuda_device() -> str:
    """Return the reason where `num_cuda_devices` is 0."""
    if not _has_cuda():
        return f"torch {version('torch')} is built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(" ", "").split(",")
    return "CUDA_VISIBLE_DEVICES hides all" if {*visible} <= {"", "-1"} else "no driver"


def num_cuda_devices() -> int | None:
    """Return the number of visible CUDA devices, None if only torch can tell. CUDA itself is not initialised."""
    if not _has_cuda():
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [] if visible is None else [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    if visible is not None and not names:
        return 0
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None if Path("/dev/kfd").exists() else 0  # which GPUs of AMD have
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    num = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(num)):
        return None
    return num.value if visible is None else min(num.value, len(names))


def check_device(name: str) -> None:
    """Raise UserError for a CUDA device that the machine certainly lacks."""
    kind, _, index = name.partition(":")
    num = num_cuda_devices() if kind == "cuda" else None
    if num is not None and int(index or 0) >= num:
        cause = "" if num else f": {cause_of_no_cuda_device()}"
        raise UserError(f"device: expected cpu or one of {num} CUDA devices, got {name}{cause}")


@cache
def _has_cuda() -> bool:
    """Return whether torch is built with CUDA or ROCm; its version file says so without the import of torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    build = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    return bool(build.get("cuda") or build.get("hip"))
