"""Peak memory of tensors."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Living(TorchDispatchMode):
    """Record the maximum number of entries held at a time by new tensors, without the arguments."""

    def __init__(self, *arguments: Tensor) -> None:
        super().__init__()
        self.most = 0
        self._arguments = {tensor.untyped_storage().data_ptr() for tensor in arguments}
        self._tensors: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._tensors.append(weakref.ref(result))
        tensors = [tensor for reference in self._tensors if (tensor := reference()) is not None]
        by_storage = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // 8 for t in tensors}
        self.most = max(self.most, sum(n for place, n in by_storage.items() if place not in self._arguments))
        return result
