"""How much memory tensors hold at a time."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Living(TorchDispatchMode):
    """Knows the most entries that tensors made within it, beside those given, held at one time."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.most = 0
        self._given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self._found: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._found.append(weakref.ref(result))
        tensors = [tensor for reference in self._found if (tensor := reference()) is not None]
        by_storage = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // 8 for t in tensors}
        self.most = max(self.most, sum(n for place, n in by_storage.items() if place not in self._given))
        return result
