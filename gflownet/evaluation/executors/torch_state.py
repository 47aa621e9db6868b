"""Global settings of torch that a candidate's code may change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

import torch


class TorchState:
    """Global settings of torch that change results."""

    def __init__(self) -> None:
        self._values = [read() for read, _ in _SETTINGS]

    def restore(self) -> None:
        """Restore the settings that have changed since this object was created."""
        for (read, write), value in zip(_SETTINGS, self._values, strict=True):
            if read() != value:
                write(value)


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


def _attributes(*paths: str) -> Iterator[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Yield the attributes that this version of torch has."""
    for path in paths:
        folder, _, name = path.rpartition(".")
        with suppress(AttributeError):
            attrgetter(path)(torch)
            owner = attrgetter(folder)(torch)
            yield partial(getattr, owner, name), partial(setattr, owner, name)


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (_default_device, torch.set_default_device),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (_matmul_precision, _set_matmul_precision),
    (_deterministic, _set_deterministic),
    (lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal),
    *(
        (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
        for kind in ("cpu", "cuda")
    ),
    *_attributes(
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
    ),
)
