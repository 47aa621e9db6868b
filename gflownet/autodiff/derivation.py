"""Reverse and forward mode over whole graphs, of nodes and of terms alike; rules.py has the rule of each operation.

Only items between the outputs and the sources are differentiated, in time linear in their number and at any depth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch

from gflownet.autodiff.nodes import Node
from gflownet.autodiff.rules import Algebra, Form, Shape, forward, reverse, total
from gflownet.autodiff.tensor_slot import is_continuous
from gflownet.autodiff.terms import Term

Item = TypeVar("Item", Node, Term)


class Builder(Algebra[Item], Protocol[Item]):
    """An algebra over graph items: nodes or terms."""

    def form(self, item: Item) -> Form:
        """Return the operation that computes an item from its inputs."""
        ...

    def ordered(self, outputs: Iterable[Item], sources: Collection[Item]) -> list[Item]:
        """Return the items that outputs depend on, each after its inputs; items below all sources may be missing."""
        ...

    def full(self, value: float, shape: Shape, dtype: torch.dtype) -> Item:
        """Return the constant tensor."""
        ...

    def identity(self, shape: Shape, dtype: torch.dtype) -> Item:
        """Return the tensor of shape `[*shape, *shape]` that is 1 where both halves of the index agree, else 0."""
        ...


def dependents(builder: Builder[Item], outputs: Iterable[Item], sources: Collection[Item]) -> list[Item]:
    """Return the items between sources and outputs, both included, each after its inputs; integers have none."""
    reached: set[Item] = set()
    order: list[Item] = []
    for item in builder.ordered(outputs, sources):
        if is_continuous(item.dtype) and (item in sources or not reached.isdisjoint(item.inputs)):
            reached.add(item)
            order.append(item)
    return order


def adjoints(
    builder: Builder[Item], seeds: Mapping[Item, Item], sources: Collection[Item], extra: Shape = ()
) -> dict[Item, Item]:
    """Return the derivatives of `sum over seeds of <seed's adjoint, seed>` by all items between sources and seeds.

    Args:
        builder: builds the derivatives.
        seeds: outputs and their adjoints, `[output..., H]`.
        sources: the items to differentiate by.
        extra: extents of H.

    Returns:
        Adjoints, `[item..., H]`; an item is missing where its adjoint is zero.
    """
    order = dependents(builder, seeds, sources)
    between = set(order)
    parts: dict[Item, list[Item]] = {item: [seed] for item, seed in seeds.items()}
    adjoint_of: dict[Item, Item] = {}
    for item in reversed(order):
        if item not in parts:
            continue
        adjoint = adjoint_of[item] = total(builder, parts.pop(item))
        if between.isdisjoint(_inputs(item)):
            continue
        form = builder.form(item)
        for which, source in enumerate(_inputs(item)):
            if source in between:
                part = reverse(builder, form, _inputs(item), which, adjoint, extra)
                if part is not None:
                    parts.setdefault(source, []).append(part)
    return adjoint_of


def tangents(
    builder: Builder[Item], outputs: Sequence[Item], seeds: Mapping[Item, Item], extra: Shape = ()
) -> list[Item]:
    """Return the tangent of each output, `[output..., H]`, zero where it does not depend on the seeds.

    Args:
        builder: builds the derivatives.
        outputs: the items to differentiate.
        seeds: sources and their tangents, `[source..., H]`; a source counts as independent of the others.
        extra: extents of H.
    """
    tangent_of: dict[Item, Item] = dict(seeds)
    for item in dependents(builder, outputs, seeds.keys()):
        input_tangents = [tangent_of.get(source) for source in _inputs(item)]
        if item in seeds or all(tangent is None for tangent in input_tangents):
            continue
        tangent = forward(builder, builder.form(item), _inputs(item), input_tangents, extra)
        if tangent is not None:
            tangent_of[item] = tangent
    return [tangent_of.get(output) or builder.full(0.0, output.shape + extra, output.dtype) for output in outputs]


def gradient(builder: Builder[Item], output: Item, sources: Sequence[Item]) -> list[Item]:
    """Return the gradients of a scalar, zero where it does not depend on a source."""
    adjoint_of = adjoints(builder, {output: builder.full(1.0, (), output.dtype)}, set(sources))
    return [adjoint_of.get(source) or builder.full(0.0, source.shape, source.dtype) for source in sources]


def reverse_jacobian(builder: Builder[Item], output: Item, source: Item) -> Item:
    """Return `d output / d source`, `[source..., output...]`, in reverse mode."""
    seeds = {output: builder.identity(output.shape, output.dtype)}
    adjoint_of = adjoints(builder, seeds, {source}, output.shape)
    return adjoint_of.get(source) or builder.full(0.0, source.shape + output.shape, source.dtype)


def forward_jacobian(builder: Builder[Item], output: Item, source: Item) -> Item:
    """Return `d output / d source`, `[output..., source...]`, in forward mode."""
    seeds = {source: builder.identity(source.shape, source.dtype)}
    return tangents(builder, [output], seeds, source.shape)[0]


def _inputs(item: Item) -> tuple[Item, ...]:
    return item.inputs  # pyright: ignore[reportReturnType]  # of the same class
