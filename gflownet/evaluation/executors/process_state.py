"""Global state that a candidate's code may change: of torch, Python, the process and this package."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from itertools import chain
from operator import attrgetter, is_
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# More additional open files than this after a candidate: they leak.
_MAX_LEAKED_FILES = 16
_OPEN_FILES = Path("/proc/self/fd")
_OF_DRIVERS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "anon_inode:")  # 42 on an H100, on first use
_OWN = f"{__name__.partition('.')[0]}."
_MISSING = object()
# Variables that the first optimiser of torch sets, its profiler, torch.compile, and the import of scikit-learn.
_OF_LIBRARIES = {
    "DISABLE_CUPTI_LAZY_REINIT",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TEARDOWN_CUPTI",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_WARM_POOL",
    "TRITON_CACHE_DIR",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_PTXAS_PATH",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
}
_ADDED_TO_CLASSES = ("__annotations__", "__slotnames__")


class TorchState:
    """Global settings of torch that change results."""

    def __init__(self) -> None:
        self._values = [read() for read, _ in _TORCH_SETTINGS.values()]

    def restore(self) -> None:
        """Restore the settings that have changed since this object was created."""
        for (read, write), value in zip(_TORCH_SETTINGS.values(), self._values, strict=True):
            if read() != value:
                write(value)


class ProcessState:
    """Global state of a worker before its first candidate."""

    def __init__(self) -> None:
        self._values = _values()
        self._num_threads, self._num_files = threading.active_count(), _num_open_files()
        self._remember_names()

    def changed(self) -> str:
        """Return the name of a setting that differs, or of a name of this package; empty: none does.

        Modules import further names on first use, and further modules are imported: these are compared from then on.
        """
        if threading.active_count() > self._num_threads:
            return "the number of threads"
        if _num_open_files() > self._num_files + _MAX_LEAKED_FILES:
            return "the number of open files"
        now = _values()
        if now != self._values:
            names = {**self._values, **now}
            return next(name for name in names if now.get(name, _MISSING) != self._values.get(name, _MISSING))
        bound = list(chain.from_iterable(self._bindings))
        is_same = len(bound) == len(self._bound) and all(map(is_, bound, self._bound))  # 0.8 ms for 16,000 names
        if is_same and len(sys.modules) == self._num_modules:
            return ""
        for owner, before in self._names.items():
            for name in {**before, **vars(owner)}:
                if not _is_usual(owner, name, before.get(name, _MISSING), vars(owner).get(name, _MISSING)):
                    return f"{owner.__name__}.{name}"
        self._remember_names()
        return ""

    def _remember_names(self) -> None:
        """Keep the objects that the names in this package's loaded modules and classes are bound to."""
        self._num_modules = len(sys.modules)
        modules = [module for name, module in list(sys.modules.items()) if f"{name}.".startswith(_OWN)]
        classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
        owners = dict.fromkeys((*modules, *(each for each in classes if each.__module__.startswith(_OWN))))
        self._names: dict[ModuleType | type, dict[str, Any]] = {owner: dict(vars(owner)) for owner in owners}
        self._bindings = [vars(owner).values() for owner in owners]  # of the time when they are read
        self._bound = list(chain.from_iterable(self._bindings))


def _is_usual(owner: ModuleType | type, name: str, before: Any, now: Any) -> bool:
    """Return whether Python, torch or an import bind a name like this on first use."""
    if before is _MISSING:
        return name in _ADDED_TO_CLASSES if isinstance(owner, type) else not hasattr(builtins, name)
    is_hooked = getattr(now, "hooked", False) is True and getattr(now, "__wrapped__", None) is before  # by torch.optim
    return now is before or is_hooked


def _values() -> dict[str, Any]:
    mask = os.umask(0o077)
    os.umask(mask)
    return {name: read() for name, (read, _) in _TORCH_SETTINGS.items()} | {
        "the working folder": _folder(),
        **{f"os.environ[{name!r}]": value for name, value in os.environ.items() if name not in _OF_LIBRARIES},
        "the file mask": mask,
        "sys.stdin, stdout or stderr": (sys.stdin, sys.stdout, sys.stderr),
        "sys.path": list(sys.path),
        "warnings.filters": [each for each in warnings.filters if each[0] == "error"],  # imports add others
        "the recursion limit": sys.getrecursionlimit(),
        "a signal handler": [_handler(number) for number in _CATCHABLE],
        "a timer": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "the garbage collector": gc.isenabled(),
        "the priority": os.nice(0),
    }


def _handler(number: int) -> Any:
    """Return the handler of a signal; that of torch's loaders of data, which calls the earlier one, is the default."""
    handler = signal.getsignal(number)
    return signal.SIG_DFL if str(getattr(handler, "__module__", "")).startswith("torch.") else handler


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return ""


def _num_open_files() -> int:
    """Return the number of open files, without those of the drivers of GPUs."""
    files = _OPEN_FILES.iterdir() if _OPEN_FILES.exists() else ()
    return sum(not _target(each).startswith(_OF_DRIVERS) for each in files)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # the folder itself, which was open while it was listed
        return ""


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(value[0], warn_only=value[1])  # the public function imports a compiler


def _default_device() -> torch.device | None:
    """Return the default device, None if it was never set."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _matmul_precision() -> str | None:
    """Return the precision by torch's first function for it; None after a mixture with the later attributes."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_matmul_precision(value: str | None) -> None:
    if value is not None:
        torch.set_float32_matmul_precision(value)


def _attribute(path: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    folder, _, name = path.rpartition(".")
    owner = attrgetter(folder)(torch)
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _exists(path: str) -> bool:
    try:
        attrgetter(path)(torch)
    except AttributeError:  # of a later version of torch
        return False
    return True


def _autocast(kind: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: torch.is_autocast_enabled(kind), lambda value: torch.set_autocast_enabled(kind, value)


_CATCHABLE = sorted(number for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} if number < 32)
_ATTRIBUTES = (
    # Since torch 2.9; the precision of a backend holds where its operations have none.
    "backends.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.mkldnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.mkldnn.enabled",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
)
_TORCH_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.set_num_threads": (torch.get_num_threads, torch.set_num_threads),
    "torch.set_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.set_default_device": (_default_device, torch.set_default_device),
    "torch.autograd.set_detect_anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "torch.set_float32_matmul_precision": (_matmul_precision, _set_matmul_precision),
    "torch.use_deterministic_algorithms": (_deterministic, _set_deterministic),
    "torch.set_flush_denormal": (lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal),
    "torch.autocast of the CPU": _autocast("cpu"),
    "torch.autocast of CUDA": _autocast("cuda"),
    **{f"torch.{path}": _attribute(path) for path in _ATTRIBUTES if _exists(path)},
}
