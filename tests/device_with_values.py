"""A device whose tensors have the values of the CPU, to compute on what a GPU refuses and with what it returns.

It refuses an operation on tensors of two devices and a generator of another device, and a copy without a wait holds
zeros until the device is waited for. torch has the name lazy for a device without a build of its own, with autograd.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE, _NUMBERED = torch.device("lazy"), torch.device("lazy:0")  # as cuda, and the device of its tensors
_CPU = torch.device("cpu")
_COPIES = frozenset({"_to_copy", "copy_"})
# Their indices may lie on the CPU, as may numbers without dimensions.
_INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
_OPTIMISERS: Any = sys.modules[torch.optim.Optimizer.__module__]
_open_copies: list[tuple[Tensor, Tensor]] = []  # to the CPU, and their values
_KERNELS = ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices")


class MixedDevicesError(RuntimeError):
    """An operation that a GPU refuses."""


class DeviceTensor(Tensor):
    """A tensor of the device."""

    values: Tensor  # on the CPU

    @staticmethod
    def __new__(cls, values: Tensor) -> DeviceTensor:
        make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset()}
        with torch.inference_mode(values.is_inference()):  # a view of a tensor from outside is none of inference
            tensor = make(cls, values.shape, dtype=values.dtype, device=_NUMBERED, **layout)
        tensor.values = values
        return tensor

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: DeviceTensor) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.values = other.values

    def tolist(self) -> Any:
        return self.values.tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.values!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:  # as torch.load(map_location="cpu") reads it
        return self.values.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


@contextmanager
def device_with_values() -> Iterator[torch.device]:
    """Compute on `DEVICE` within the context, with the kernels of optimisers that a GPU has, in one precision."""
    autocast, lifts = torch.autocast, torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:
        for name in _KERNELS:
            names = [*getattr(_OPTIMISERS, name)(), DEVICE.type]
            stack.enter_context(patch.object(_OPTIMISERS, name, lambda names=names: names))
        stack.enter_context(patch.object(torch.accelerator, "synchronize", _finish_copies))
        stack.enter_context(patch.object(torch, "autocast", _without_effect_on_device(autocast)))
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        stack.callback(_open_copies.clear)
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor copies to a device by an operation
        stack.enter_context(_Device())
        yield DEVICE


def _finish_copies(device: torch.device) -> None:
    with torch.inference_mode():
        while _open_copies:
            target, values = _open_copies.pop()
            target.copy_(values)


def _without_effect_on_device(autocast: Callable[..., Any]) -> Callable[..., Any]:
    return lambda kind, *args, **kwargs: nullcontext() if kind == DEVICE.type else autocast(kind, *args, **kwargs)


def _computed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation on the CPU, as tensors of the device where a GPU would return its own."""
    name = func.overloadpacket.__name__
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, DeviceTensor)]
    target, generator = kwargs.get("device"), kwargs.get("generator")
    is_on_device = bool(tensors) if target is None else torch.device(target).type == DEVICE.type
    if not tensors and not is_on_device:
        return func(*args, **kwargs)
    if tensors and name not in _COPIES:
        _check_devices(func, name, args, kwargs)
    if is_on_device and generator is not None and generator.device.type != DEVICE.type:
        raise MixedDevicesError(f"{func}: expected a generator of the device, got one of {generator.device}")
    on_cpu = kwargs if target is None else {**kwargs, "device": _CPU}
    values = func(*tree_map(_values, args), **tree_map(_values, on_cpu))
    if torch.Tag.inplace_view in func.tags:
        _change_shape(func, args, kwargs)
    if name == "copy_":
        return args[0]
    if not is_on_device:
        if name != "_to_copy" or not kwargs.get("non_blocking"):
            return values
        _open_copies.append((torch.zeros_like(values), values))
        return _open_copies[-1][0]
    arguments = {id(each.values): each for each in tensors}  # results of in-place operations
    return tree_map(lambda each: _on_device(each, arguments), values)


def _values(value: Any) -> Any:
    return value.values if isinstance(value, DeviceTensor) else value


def _on_device(value: Any, arguments: dict[int, DeviceTensor]) -> Any:
    if not isinstance(value, Tensor):
        return value
    return arguments[id(value)] if id(value) in arguments else DeviceTensor(value)


def _change_shape(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Give the tensor of the device the shape of its values after transpose_ and others."""
    before = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def _check_devices(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise MixedDevicesError where a GPU refuses tensors of the CPU."""
    if name in _INDEXED:
        if not isinstance(args[0], DeviceTensor):
            raise MixedDevicesError(f"{func}: expected indices on the CPU, as the tensor")
        args = [args[0], *args[2:]]
    takes_numbers = name in _INDEXED or torch.Tag.pointwise in func.tags or "foreach" in name
    for each in tree_leaves((args, kwargs)):
        is_here = isinstance(each, Tensor) and not isinstance(each, DeviceTensor)
        if is_here and (each.ndim or not takes_numbers):
            raise MixedDevicesError(f"{func}: expected tensors of one device, got {list(each.shape)} on {each.device}")
