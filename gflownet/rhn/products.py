"""Products by stacked weights whose gradients are gathered over many steps and added up in one product.

The rows of one step are few: a gradient of every step would read and write whole weights for them. N is the number of
layers, R of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gflownet.rhn.cell import Multiply
from gflownet.rhn.fold import Fold


@dataclass(frozen=True)
class _Pending:
    """Steps of the same layers that are not yet in the gradient."""

    layers: slice
    inputs: list[Tensor]  # [N, R, in]
    gradients: list[Tensor]  # [N, R, out]


class _WeightGradient:
    """The gradient of one stacked weight."""

    def __init__(self, weight: Tensor) -> None:
        self._sum = torch.zeros_like(weight)
        self._pending: _Pending | None = None

    def add(self, layers: slice, x: Tensor, gradient: Tensor) -> None:
        """Take x [N, R, in] and the gradient [N, R, out] of what became of it."""
        if self._pending is None or self._pending.layers != layers:
            self._flush()
            self._pending = _Pending(layers, [], [])
        self._pending.inputs.append(x)
        self._pending.gradients.append(gradient)
        num_inputs, num_outputs = self._sum.shape[1:]
        # What waits is then as large as the gradient that it goes into: neither memory nor its traffic outgrows that.
        if len(self._pending.inputs) * x.shape[1] * (num_inputs + num_outputs) >= num_inputs * num_outputs:
            self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            x, gradient = torch.cat(self._pending.inputs, 1), torch.cat(self._pending.gradients, 1)
            self._sum[self._pending.layers].baddbmm_(x.mT, gradient)
            self._pending = None

    def total(self) -> Tensor:
        """Return the gradient; nothing is added after that."""
        self._flush()
        return self._sum


class FoldGradients:
    """The gradients of all weights of a `Fold`, of one backward pass at a time."""

    def __init__(self, weights: Fold) -> None:
        """Start from zero."""
        self._weights = weights
        self._of: dict[str, _WeightGradient] = {}

    def add(self, name: str, layers: slice, x: Tensor, gradient: Tensor) -> None:
        """Take what one product by the weight of that name contributes."""
        if name not in self._of:
            self._of[name] = _WeightGradient(getattr(self._weights, name))
        self._of[name].add(layers, x, gradient)

    def take(self) -> list[Tensor]:
        """Return the gradients in the order of the fields, and start from zero again."""
        names = [field.name for field in fields(Fold)]
        totals = [
            self._of[name].total() if name in self._of else torch.zeros_like(getattr(self._weights, name))
            for name in names
        ]
        self._of = {}
        return totals


class _Anchor(torch.autograd.Function):
    """A scalar that every product depends on: its gradient is complete only when those of all products are."""

    @staticmethod
    def forward(ctx: Any, gradients: FoldGradients, *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return weights[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients.take()


class _Product(torch.autograd.Function):
    """x @ weight, whose backward leaves the weight's share with `gradients`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: Tensor, gradients: FoldGradients, name: str, layers: slice
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gradients, ctx.name, ctx.layers, ctx.zero = gradients, name, layers, anchor
        return torch.bmm(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.gradients.add(ctx.name, ctx.layers, x, gradient)
        return torch.bmm(gradient, weight.mT), ctx.zero, None, None, None, None


class Products:
    """Multiplies by the weights of a fold.

    Weights that torch.autograd differentiates get their gradient from it; for those that it does not, `gradients` holds
    it after a backward pass through the products.
    """

    def __init__(self, weights: Fold) -> None:
        """Anchor the weights."""
        tensors = [getattr(weights, field.name) for field in fields(Fold)]
        self._weights = Fold(*(tensor.detach() for tensor in tensors))
        self.gradients = FoldGradients(self._weights)
        self._anchor = _Anchor.apply(self.gradients, *tensors)

    def of(self, layers: slice) -> Multiply:
        """Return the products by the weights of some layers."""

        def multiply(x: Tensor, name: str) -> Tensor:
            weight = getattr(self._weights, name)[layers]
            if not torch.is_grad_enabled():
                return torch.bmm(x, weight)
            return _Product.apply(x, self._anchor, weight, self.gradients, name, layers)

        return multiply
