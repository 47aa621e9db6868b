"""Global state that a candidate's code may change: of torch, Python and the process."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, ValuesView
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# More additional open files than this after a job: they leak.
_MAX_LEAKED_FILES = 16
_OPEN_FILES = Path("/proc/self/fd")
_OWN = f"{__name__.partition('.')[0]}."
_MISSING = object()
_ADDED_TO_CLASSES = ("__annotations__", "__slotnames__")


class TorchState:
    """Global settings of torch that change results."""

    def __init__(self) -> None:
        self._values = [read() for read, _ in _TORCH_SETTINGS]

    def restore(self) -> None:
        """Restore the settings that have changed since this object was created."""
        for (read, write), value in zip(_TORCH_SETTINGS, self._values, strict=True):
            if read() != value:
                write(value)
        if sys.float_info.min / 2 == 0.0:
            torch.set_flush_denormal(False)


class OwnNames:
    """Names in this package's loaded modules and classes, and the objects that they are bound to.

    A check takes 0.1 ms with 120 modules: identical objects are found equal without a call of Python code.
    """

    def __init__(self) -> None:
        self.first_changed = ""
        self._owners: dict[ModuleType | type, tuple[ValuesView[Any], list[Any], list[str]]] = {}  # now, before, names
        self._num_modules = 0
        self._add_modules()

    def changed(self) -> str:
        """Return the first name that was bound again, deleted, or added to a class; empty without one.

        Modules import further names on first use, and further modules are imported: these are checked from then on.
        """
        for owner, (now, before, _) in () if self.first_changed else self._owners.items():
            if before != list(now) and (name := self._changed_name(owner)):
                self.first_changed = f"{owner.__name__}.{name}"
                break
        if len(sys.modules) != self._num_modules:
            self._add_modules()
        return self.first_changed

    def _changed_name(self, owner: ModuleType | type) -> str | None:
        _, values, names = self._owners[owner]
        before, now = dict(zip(names, values, strict=True)), vars(owner)
        for name in {**before, **now}:
            if not _is_usual(owner, name, before.get(name, _MISSING), now.get(name, _MISSING)):
                return name
        self._add(owner)
        return None

    def _add_modules(self) -> None:
        modules = [module for name, module in list(sys.modules.items()) if f"{name}.".startswith(_OWN)]
        classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
        for owner in (*modules, *(each for each in classes if each.__module__.startswith(_OWN))):
            if owner not in self._owners:
                self._add(owner)
        self._num_modules = len(sys.modules)

    def _add(self, owner: ModuleType | type) -> None:
        self._owners[owner] = vars(owner).values(), list(vars(owner).values()), list(vars(owner))


def _is_usual(owner: ModuleType | type, name: str, before: Any, now: Any) -> bool:
    """Return whether Python, torch or an import bind a name like this on first use."""
    if before is _MISSING:
        return name in _ADDED_TO_CLASSES if isinstance(owner, type) else not hasattr(builtins, name)
    is_hooked = getattr(now, "hooked", False) is True and getattr(now, "__wrapped__", None) is before  # by torch.optim
    return now is before or is_hooked


class ProcessState(TorchState):
    """Global settings of torch, Python and the process, in a process for candidates alone."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = os.getcwd()
        self._environment = dict(os.environ)
        self._mask = _file_mask()
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._path, self._filters = list(sys.path), list(warnings.filters)
        self._recursion_limit = sys.getrecursionlimit()
        self._handlers = [(number, signal.getsignal(number)) for number in _CATCHABLE]
        self._num_threads, self._num_files = threading.active_count(), _num_open_files()
        self._priority = os.nice(0)

    def restore(self) -> None:
        """Restore the settings that have changed since this object was created."""
        super().restore()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._handlers:
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        with suppress(OSError):  # the folder is gone
            os.chdir(self._folder)
        os.umask(self._mask)
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.path[:] = self._path
        if warnings.filters != self._filters:
            warnings.filters[:] = self._filters  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        if sys.getrecursionlimit() != self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
        if not gc.isenabled():
            gc.enable()

    def is_clean(self) -> bool:
        """Return whether nothing is left that cannot be restored: threads, open files, a lower priority."""
        return (
            threading.active_count() <= self._num_threads
            and _num_open_files() <= self._num_files + _MAX_LEAKED_FILES
            and os.nice(0) == self._priority
        )


def _file_mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _num_open_files() -> int:
    return len(os.listdir(_OPEN_FILES)) if _OPEN_FILES.exists() else 0


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


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _autocast(kind: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: torch.is_autocast_enabled(kind), lambda value: torch.set_autocast_enabled(kind, value)


_CATCHABLE = [
    number
    for number in sorted(signal.valid_signals())
    if number not in (signal.SIGKILL, signal.SIGSTOP) and number < 32
]
_BACKENDS: Any = torch.backends
# Since torch 2.9; the precision of a backend holds where its operations have none.
_WITH_PRECISION = [_BACKENDS, _BACKENDS.cuda.matmul, _BACKENDS.cudnn, _BACKENDS.mkldnn] + [
    getattr(backend, name)
    for backend, names in ((_BACKENDS.cudnn, ("conv", "rnn")), (_BACKENDS.mkldnn, ("matmul", "conv", "rnn")))
    for name in names
    if hasattr(backend, name)
]
_TORCH_SETTINGS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (_default_device, torch.set_default_device),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (_matmul_precision, _set_matmul_precision),
    *(_attribute(each, "fp32_precision") for each in _WITH_PRECISION if hasattr(each, "fp32_precision")),
    (_deterministic, _set_deterministic),
    *(_autocast(kind) for kind in ("cpu", "cuda")),
    _attribute(torch.backends.mkldnn, "enabled"),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
]
