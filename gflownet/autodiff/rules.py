"""The differentiation rules of tensor graphs, written once for nodes, terms and torch tensors.

Everything that is computed has one of five forms: a linear combination, a product, a function of each entry, a
conversion to another dtype, or a function of whole tensors (custom_node.py). `value`, `reverse` and `forward` are
defined on these forms; an `Algebra` carries them out: `Nodes` builds nodes (node_builder.py), `Terms` builds terms
(term_builder.py), `Tensors` runs torch (tensor_algebra.py).

H are the axes of the tensor that is differentiated (reverse mode) or that one differentiates by (forward mode). They
come last in every derivative; a scalar has none. An operand without a derivative is represented by None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from gflownet.autodiff.functions import Constant, Function
from gflownet.autodiff.terms import Extents

Labels = Sequence[int]  # one label per axis; of n labels none is above n
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """`out = sum_k coefficient_k * input_k`; sums over labels that `out` lacks, repeats along labels an input lacks."""

    coefficients: tuple[float, ...]
    labels: tuple[Labels, ...]  # of each input
    out: Labels
    extents: Extents


@dataclass(frozen=True, slots=True)
class Product:
    """The product of the inputs, labels that the output lacks summed."""

    labels: tuple[Labels, ...]  # of each input
    out: Labels
    extents: Extents


@dataclass(frozen=True, slots=True)
class Entrywise:
    """A function of every entry of the input."""

    function: Function


@dataclass(frozen=True, slots=True)
class Conversion:
    """The entries of the input in another dtype."""

    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the inputs as whole tensors."""

    function: Any  # Applied of custom_node.py, which imports this module, as in `Algebra.call`


Form = Combination | Product | Entrywise | Conversion | Call


class Shaped(Protocol):
    """A node, a term or a tensor."""

    @property
    def shape(self) -> Shape:
        """Return the extents."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype."""
        ...


Item = TypeVar("Item", bound=Shaped)


class Algebra(Protocol[Item]):
    """The operations that values and derivatives are made of."""

    def combine(
        self, parts: Sequence[tuple[float, Item, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Item:
        """Return the `Combination` of at least one (coefficient, item, labels)."""
        ...

    def multiply(
        self, factors: Sequence[tuple[Item, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Item:
        """Return the `Product` of items with their labels."""
        ...

    def map(self, function: Function, source: Item) -> Item:
        """Return a function of every entry."""
        ...

    def cast(self, source: Item, dtype: torch.dtype) -> Item:
        """Return the entries in another dtype."""
        ...

    def call(self, function: Any, inputs: Sequence[Item]) -> Item:
        """Return a function of whole tensors."""
        ...


def value(algebra: Algebra[Item], form: Form, inputs: Sequence[Item], dtype: torch.dtype) -> Item:
    """Return the value of a form of inputs, of a dtype."""
    match form:
        case Combination():
            parts = list(zip(form.coefficients, inputs, form.labels, strict=True))
            return algebra.combine(parts, form.out, form.extents, dtype)
        case Product():
            return algebra.multiply(list(zip(inputs, form.labels, strict=True)), form.out, form.extents, dtype)
        case Entrywise(function):
            return algebra.map(function, inputs[0])
        case Conversion():
            return algebra.cast(inputs[0], form.dtype)
        case Call(function):
            return algebra.call(function, inputs)


def reverse(
    algebra: Algebra[Item], form: Form, inputs: Sequence[Item], which: int, adjoint: Item, extra: Shape = ()
) -> Item | None:
    """Return the contribution of the adjoint `[result..., H]` to that of input `which`, `[input..., H]`.

    None where it is zero everywhere; `extra` are the extents of H.
    """
    dtype = adjoint.dtype
    match form:
        case Combination():
            free, extents = _with_free_labels(form, extra)
            part = (form.coefficients[which], adjoint, (*form.out, *free))
            return algebra.combine([part], (*form.labels[which], *free), extents, dtype)
        case Product():
            free, extents = _with_free_labels(form, extra)
            factors = list(zip(inputs, form.labels, strict=True))
            factors = [(adjoint, (*form.out, *free)), *factors[:which], *factors[which + 1 :]]
            return algebra.multiply(factors, (*form.labels[which], *free), extents, dtype)
        case Entrywise(function):
            return _times_slope(algebra, function.derivative(), inputs[0], adjoint)
        case Conversion():
            return algebra.cast(adjoint, inputs[which].dtype)
        case Call(function):
            return function.reversed(algebra, inputs, which, adjoint, extra)


def forward(
    algebra: Algebra[Item], form: Form, inputs: Sequence[Item], tangents: Sequence[Item | None], extra: Shape = ()
) -> Item | None:
    """Return the tangent of a form's result, `[result..., H]`, or None where it is zero everywhere.

    `tangents` are the derivatives of the inputs, `[input..., H]`, or None, but not all None; `extra` are the extents of
    H.
    """
    (first, dtype), *_ = [(tangent, tangent.dtype) for tangent in tangents if tangent is not None]
    match form:
        case Combination():
            free, extents = _with_free_labels(form, extra)
            rows = zip(form.coefficients, tangents, form.labels, strict=True)
            parts = [(alpha, tangent, (*labels, *free)) for alpha, tangent, labels in rows if tangent is not None]
            return algebra.combine(parts, (*form.out, *free), extents, dtype)
        case Product():
            free, extents = _with_free_labels(form, extra)
            factors = list(zip(inputs, form.labels, strict=True))
            products: list[Item] = []
            for k, tangent in enumerate(tangents):
                if tangent is not None:
                    replaced = [*factors[:k], (tangent, (*form.labels[k], *free)), *factors[k + 1 :]]
                    products.append(algebra.multiply(replaced, (*form.out, *free), extents, dtype))
            return total(algebra, products)
        case Entrywise(function):
            return _times_slope(algebra, function.derivative(), inputs[0], first)
        case Conversion():
            return algebra.cast(first, form.dtype)
        case Call(function):
            rows = enumerate(tangents)
            return total(algebra, [function.pushed(algebra, inputs, k, t, extra) for k, t in rows if t is not None])


def total(algebra: Algebra[Item], items: Sequence[Item]) -> Item:
    """Return the sum of items of one shape, at least one."""
    if len(items) == 1:
        return items[0]
    axes = tuple(range(1, len(items[0].shape) + 1))
    extents = dict(zip(axes, items[0].shape, strict=True))
    return algebra.combine([(1.0, item, axes) for item in items], axes, extents, items[0].dtype)


def times_rows(algebra: Algebra[Item], matrix: Item, rows: Item) -> Item:
    """Return `matrix[I, H] * rows[I]`."""
    axes = tuple(range(1, len(matrix.shape) + 1))
    extents = dict(zip(axes, matrix.shape, strict=True))
    return algebra.multiply([(matrix, axes), (rows, axes[: len(rows.shape)])], axes, extents, matrix.dtype)


def _times_slope(algebra: Algebra[Item], slope: Function, source: Item, derivative: Item) -> Item | None:
    """Return `derivative[I, H] * slope(source[I])`, None for a slope of 0."""
    if not isinstance(slope, Constant):
        return times_rows(algebra, derivative, algebra.map(slope, source))
    if slope.value in (0.0, 1.0):
        return derivative if slope.value else None
    axes = tuple(range(1, len(derivative.shape) + 1))
    extents = dict(zip(axes, derivative.shape, strict=True))
    return algebra.combine([(slope.value, derivative, axes)], axes, extents, derivative.dtype)


def _with_free_labels(form: Combination | Product, extra: Shape) -> tuple[tuple[int, ...], Extents]:
    """Return labels for H above all labels of a form, and the extents of all labels."""
    if not extra:
        return (), form.extents
    first = 1 + len(form.extents)
    free = tuple(range(first, first + len(extra)))
    return free, {**form.extents, **dict(zip(free, extra, strict=True))}
