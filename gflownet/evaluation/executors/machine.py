"""Cores, memory and CUDA devices that this process may use, without torch."""

from __future__ import annotations

import ctypes
import math
import os
import runpy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psutil

from gflownet.errors import UserError

# Control groups of containers, and the line of this process for each version. Files of quotas: version 2, version 1.
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CPU_QUOTAS = (("", ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")))
_MEMORY_LIMITS = (("", ("memory.max",)), ("memory", ("memory.limit_in_bytes",)))
# Private memory of a process with torch, and of a small candidate.
_TORCH_BYTES = 400_000_000
_STATISTICS = Path("/proc/vmstat")
_GIGABYTE = 10**9


def num_cores(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Return the number of cores that this process may use: a quota of its container counts, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [limit for limit in _limits(_CPU_QUOTAS, groups, own) if len(limit) == 2 and min(limit) > 0]
    return min([cores, *(math.ceil(quota / period) for quota, period in quotas)])


def memory(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Return the memory of this machine or container in bytes."""
    return min([psutil.virtual_memory().total, *(size for (size,) in _limits(_MEMORY_LIMITS, groups, own))])


def _limits(kinds: Sequence[tuple[str, Sequence[str]]], groups: Path, own: Path) -> Iterator[list[int]]:
    """Yield the numbers in the files of the control groups of this process, from the outermost to its own."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    for controller, names in kinds:
        paths = [path for _, controllers, path in lines if controller in controllers.split(",")]
        parts = paths[0].strip("/").split("/") if paths else []
        for depth in range(len(parts) + 1):
            folder = (groups / controller).joinpath(*parts[:depth])
            with suppress(OSError, ValueError):  # no such control group, or the word max
                yield [int(number) for name in names for number in (folder / name).read_text().split()]


def memory_per_process(limit: float | None, *, capacity: int) -> int:
    """Return evaluation.memory_limit in bytes; None: an equal share of the memory, one for the main process too.

    Raises:
        UserError: torch cannot start in that much.
    """
    size = memory() // (capacity + 1) if limit is None else int(limit * _GIGABYTE)
    if size >= _TORCH_BYTES:
        return size
    least = f"expected at least {_TORCH_BYTES / _GIGABYTE:g} GB per process, in which torch can start, got"
    if limit is not None:
        raise UserError(f"evaluation.memory_limit: {least} {limit:g}")
    places = memory() // _TORCH_BYTES - 1
    fit = f"{places} fit: evaluation.capacity={places}" if places > 0 else "none fits: evaluation.executor=inline"
    raise UserError(f"evaluation.capacity: {least} {size / _GIGABYTE:.2g} for each of {capacity} places; {fit}")


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
