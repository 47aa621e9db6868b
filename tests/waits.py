"""Count the operations that make the main process wait for a device: each reads a value that the device computes.

On a GPU such an operation empties the queue of kernels. The count is taken on the CPU, where the same operations run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_WAITS = frozenset(
    {*("nonzero", "masked_select", "equal", "bincount"), *("_unique", "_unique2", "unique_dim", "unique_consecutive")}
)
_READS: Mapping[Callable[..., Any], str] = {
    **{Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.cpu: "cpu", Tensor.item: "item"},
    **{torch.tensor: "tensor", torch.as_tensor: "tensor"},  # copies from memory that is not pinned
    **{Tensor.__int__: "int", Tensor.__float__: "float", Tensor.__bool__: "bool", Tensor.__index__: "int"},
}


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Count waits by operation within the context."""
    waits: Counter[str] = Counter()
    with _Functions(waits), _Operations(waits):
        yield waits


class _Functions(TorchFunctionMode):
    """Count reads that dispatch no operation on the CPU."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func in _READS:
            self.waits[_READS[func]] += 1
        elif func is Tensor.__getitem__ and any(isinstance(x, list) for x in _parts(args[1])):
            self.waits["list as index"] += 1
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        if name in _WAITS or (name == "repeat_interleave" and not (kwargs or {}).get("output_size")):
            self.waits[name] += 1
        elif any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in indices):
            self.waits["mask as index"] += 1
        elif any(isinstance(x, Tensor) and x.device != args[0].device for x in indices):
            self.waits["index from main memory"] += 1
        return func(*args, **(kwargs or {}))


def _parts(index: Any) -> Sequence[Any]:
    return index if isinstance(index, tuple) else (index,)
