"""Functions of the last axis that take -inf and huge entries as torch does: log-sum-exp, log-softmax, masked sum.

Their derivatives are products of the adjoint with exponentials, masks or entries: the package's other nodes, to any
order. In labels, the axes of an operand are 1, 2, ..., H follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.autodiff.custom_node import Applied, CustomNode
from gflownet.autodiff.functions import named_functions
from gflownet.autodiff.rules import Algebra, Shape


def _axes(shape: Shape, extra: Shape = ()) -> tuple[tuple[int, ...], tuple[int, ...], dict[int, int]]:
    """Return the labels of an operand's axes and of H, and all extents."""
    labels = tuple(range(1, len(shape) + len(extra) + 1))
    return labels[: len(shape)], labels[len(shape) :], dict(zip(labels, (*shape, *extra), strict=True))


class _RowNode(CustomNode):
    """Base of functions whose result has all axes of the first operand but the last; of operands of one shape."""

    def forward_(self, *values: Tensor) -> Tensor:
        """Return the value; subclasses have it."""
        raise NotImplementedError

    def shape_(self, *shapes: Shape) -> Sequence[int]:
        """Return the axes before the last; raise ValueError for a scalar or for operands that differ in shape."""
        if not shapes[0] or len({*shapes}) > 1:
            raise ValueError(f"expected operands of one shape with at least one axis, got {[*map(list, shapes)]}")
        return shapes[0][:-1]

    def dtype_(self, *dtypes: torch.dtype) -> torch.dtype:
        """Return the dtype of the operands; raise ValueError for two."""
        if len({*dtypes}) > 1:
            raise ValueError(f"expected operands of one dtype (see Cast), got {' and '.join(map(str, dtypes))}")
        return dtypes[0]

    @classmethod
    def weights(cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int) -> Any:
        """Return the derivative of each row's value by the entries of the row, in the shape of operand `which`."""
        raise NotImplementedError

    @classmethod
    def reversed_(
        cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int, adjoint: Any, extra: Shape
    ) -> Any:
        """Return the adjoint times the weights."""
        weights = cls.weights(algebra, function, inputs, which)
        axes, free, extents = _axes(weights.shape, extra)
        factors = [(adjoint, (*axes[:-1], *free)), (weights, axes)]
        return algebra.multiply(factors, (*axes, *free), extents, adjoint.dtype)

    @classmethod
    def pushed_(
        cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int, tangent: Any, extra: Shape
    ) -> Any:
        """Return the tangent times the weights, summed over the last axis."""
        weights = cls.weights(algebra, function, inputs, which)
        return _weighted_sum(algebra, weights, tangent, extra)


def _weighted_sum(algebra: Algebra[Any], weights: Any, part: Any, extra: Shape) -> Any:
    axes, free, extents = _axes(weights.shape, extra)
    return algebra.multiply([(part, (*axes, *free)), (weights, axes)], (*axes[:-1], *free), extents, part.dtype)


class LogSumExpNode(_RowNode):
    """`log sum exp` over the last axis."""

    def forward_(self, source: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the value of each row."""
        return torch.logsumexp(source, -1)

    @classmethod
    def weights(cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int) -> Any:
        """Return the softmax."""
        (source,), value = inputs, algebra.call(function, inputs)
        axes, _, extents = _axes(source.shape)
        parts = [(1.0, source, axes), (-1.0, value, axes[:-1])]
        difference = algebra.combine(parts, axes, extents, source.dtype)
        return algebra.map(named_functions()["exp"], difference)


class MaskedSumNode(_RowNode):
    """The sum of `mask * source` over the last axis, where entries outside the mask may be infinite."""

    def forward_(self, source: Tensor, mask: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the sum of each row."""
        return torch.where(mask != 0, mask * source, 0).sum(-1)

    def backward_(self, gradient: Tensor, value: Tensor, *values: Tensor) -> Sequence[Tensor | None]:
        """Return the gradients: that of the source is 0 outside the mask."""
        source, mask = values
        return gradient.unsqueeze(-1) * mask, gradient.unsqueeze(-1) * source

    @classmethod
    def weights(cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int) -> Any:
        """Return the other operand."""
        return inputs[1 - which]


class LogSoftmaxNode(CustomNode):
    """`x - log sum exp x` over the last axis, without loss of precision by an offset that all entries share."""

    def forward_(self, source: Tensor) -> Tensor:
        """Return the logarithms of the softmax."""
        return torch.log_softmax(source, -1)

    @classmethod
    def reversed_(
        cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int, adjoint: Any, extra: Shape
    ) -> Any:
        """Return the adjoint minus its sum times the softmax."""
        axes, free, extents = _axes(function.shape, extra)
        out, rows, dtype = (*axes, *free), (*axes[:-1], *free), adjoint.dtype
        softmax = algebra.map(named_functions()["exp"], algebra.call(function, inputs))
        total = algebra.combine([(1.0, adjoint, out)], rows, extents, dtype)
        share = algebra.multiply([(total, rows), (softmax, axes)], out, extents, dtype)
        return algebra.combine([(1.0, adjoint, out), (-1.0, share, out)], out, extents, dtype)

    @classmethod
    def pushed_(
        cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int, tangent: Any, extra: Shape
    ) -> Any:
        """Return the tangent minus its mean under the softmax."""
        axes, free, extents = _axes(function.shape, extra)
        softmax = algebra.map(named_functions()["exp"], algebra.call(function, inputs))
        parts = [(1.0, tangent, (*axes, *free))]
        parts += [(-1.0, _weighted_sum(algebra, softmax, tangent, extra), (*axes[:-1], *free))]
        return algebra.combine(parts, (*axes, *free), extents, tangent.dtype)


SOFTMAX_NODES: tuple[type[CustomNode], ...] = (LogSumExpNode, LogSoftmaxNode, MaskedSumNode)
