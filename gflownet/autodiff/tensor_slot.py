"""The part of a node that does not depend on its operation: name, shape, dtype, value and gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_continuous(dtype: torch.dtype) -> bool:
    """Return whether tensors of a dtype have derivatives: floating and complex ones."""
    return dtype.is_floating_point or dtype.is_complex


class TensorSlot:
    """A named tensor of known shape and dtype, whose value and gradient a `Graph` fills in."""

    __slots__ = ("__weakref__", "dtype", "forwarded", "gradient", "name", "requires_grad", "shape")

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, *, name: str | None, requires_grad: bool) -> None:
        self.shape, self.dtype, self.name = tuple(shape), dtype, name
        self.requires_grad = is_continuous(dtype) and requires_grad
        # Of the last forward and backward pass of a Graph; nothing else ever changes.
        self.forwarded: Tensor | None = None
        self.gradient: Tensor | None = None

    @property
    def label(self) -> str:
        """Return the class and the name, for messages."""
        return f"{type(self).__name__} {self.name!r}" if self.name else type(self).__name__

    @property
    def rank(self) -> int:
        """Return the number of axes: 0 for a scalar, 1 for shape [1]."""
        return len(self.shape)

    def value(self) -> Tensor:
        """Return the tensor that the last forward pass computed.

        Raises:
            ValueError: there was no forward pass, or a leaf holds nothing.
        """
        if self.forwarded is None:
            message = "expected a forward pass first (Graph.forward), or a leaf with a value"
            raise ValueError(f"{self.label}: value: {message}")
        return self.forwarded

    def has_grad(self) -> bool:
        """Return whether the node depends differentiably on a leaf with `requires_grad`."""
        return self.requires_grad

    def grad(self) -> Tensor:
        """Return the accumulated gradient; writing to it seeds a backward pass as `Graph.backward` does.

        Raises:
            ValueError: the node has no gradient (see `has_grad`) or no value yet.
        """
        if not self.requires_grad:
            raise ValueError(f"{self.label}: grad: expected a node that depends on a leaf with requires_grad=True")
        if self.gradient is None:
            self.gradient = torch.zeros(self.shape, dtype=self.dtype, device=self.value().device)
        return self.gradient

    def __repr__(self) -> str:
        """Return class, name, shape and dtype."""
        return f"<{self.label} {list(self.shape)} {str(self.dtype).removeprefix('torch.')}>"
