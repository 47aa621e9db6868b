"""Derivatives of nodes, which are nodes again: reverse and forward mode, to any order.

Both modes run over whole graphs, of nodes and of terms alike; rules.py has the rule of each operation. Only items
between the outputs and the sources are differentiated, in time linear in their number and at any depth.

A derivative that is zero is a constant leaf with `fill=0.0`, the derivative of a tensor by itself a leaf with
`is_identity`: neither is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar, overload

import torch

from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import LeafNode, Node, TransformNode, is_continuous
from gflownet.autodiff.rules import Algebra, Form, Shape, forward, reverse, total
from gflownet.autodiff.terms import Term

Item = TypeVar("Item", Node, Term)
Mode = Literal["reverse", "forward"]


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

    `seeds` are outputs and their adjoints, `[output..., H]`, `extra` the extents of H. An item, `[item..., H]`, is
    missing where its adjoint is zero.
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

    `seeds` are sources and their tangents, `[source..., H]`, `extra` the extents of H; a source counts as independent
    of the others.
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


def gradients(builder: Builder[Item], output: Item, sources: Sequence[Item]) -> list[Item]:
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


def vjp(output: Node, wrt: Sequence[Node], cotangent: Node) -> list[Node]:
    """Return the products of a cotangent and the Jacobians (reverse mode), `[wrt..., H...]` for each node of `wrt`.

    Args:
        output: node to differentiate.
        wrt: nodes to differentiate by; the derivative by one includes paths through the others.
        cotangent: `[output..., H...]`, H any further axes.

    Raises:
        ValueError: the cotangent lacks the axes of the output or has another dtype.
    """
    _check_fits("cotangent", cotangent, output)
    nodes, free = Nodes(), cotangent.shape[output.rank :]
    adjoint_of = adjoints(nodes, {output: cotangent}, set(wrt), free)
    return [adjoint_of.get(node) or nodes.full(0.0, (*node.shape, *free), node.dtype) for node in wrt]


def jvp(output: Node, tangents: Mapping[Node, Node]) -> Node:
    """Return the sum of the products of Jacobians and tangents (forward mode), `[output..., H...]`.

    Args:
        output: node to differentiate.
        tangents: by node, `[node..., H...]`, H any further axes; a node with a tangent counts as independent.

    Raises:
        ValueError: there is no tangent, one lacks the axes of its node or has another dtype, or their H differ.
    """
    return _pushed_forward([output], tangents)[0]


def check_scalar(owner: str, output: Node) -> None:
    """Raise ValueError for a node that is not a scalar."""
    if output.rank:
        raise ValueError(f"{output.label}: {owner}: expected a scalar (shape []), got shape {list(output.shape)}")


@overload
def gradient(output: Node, wrt: Node) -> Node: ...
@overload
def gradient(output: Node, wrt: Sequence[Node]) -> list[Node]: ...
def gradient(output: Node, wrt: Node | Sequence[Node]) -> Node | list[Node]:
    """Return the gradient of a scalar by a node, or by each of several, in one reverse pass.

    Raises:
        ValueError: the output is not a scalar.
    """
    check_scalar("gradient", output)
    by_node = gradients(Nodes(), output, [wrt] if isinstance(wrt, Node) else wrt)
    return by_node[0] if isinstance(wrt, Node) else by_node


def jacobian(output: Node, wrt: Node, mode: Mode = "reverse") -> Node:
    """Return the derivative of a tensor by a tensor: `[wrt..., output...]`, in forward mode `[output..., wrt...]`.

    Raises:
        ValueError: unknown mode.
    """
    if mode not in ("reverse", "forward"):
        raise ValueError(f"jacobian: mode: expected 'reverse' or 'forward', got {mode!r}")
    derive = reverse_jacobian if mode == "reverse" else forward_jacobian
    return derive(Nodes(), output, wrt)


def hessian(output: Node, first: Node, second: Node | None = None) -> Node:
    """Return the derivative of a tensor by two nodes, `[output..., first..., second...]`: forward over reverse mode.

    Args:
        output: node to differentiate.
        first: node of the first derivative.
        second: node of the second derivative, by default the same.
    """
    twice = jacobian(jacobian(output, first), second or first, mode="forward")
    return _rolled(twice, first.rank, output.rank)


@overload
def hvp(output: Node, wrt: Node, vector: Node) -> Node: ...
@overload
def hvp(output: Node, wrt: Sequence[Node], vector: Sequence[Node]) -> list[Node]: ...
def hvp(output: Node, wrt: Node | Sequence[Node], vector: Node | Sequence[Node]) -> Node | list[Node]:
    """Return the product of a scalar's Hessian and a vector, without the Hessian: forward over reverse mode.

    Args:
        output: a scalar.
        wrt: one node, or several, for a list of products with the joint Hessian.
        vector: of the node's shape and dtype, or one for each node.

    Raises:
        ValueError: the output is not a scalar, the vectors do not fit the nodes, or a node occurs twice.
    """
    nodes = [wrt] if isinstance(wrt, Node) else list(wrt)
    vectors = [vector] if isinstance(vector, Node) else list(vector)
    if len(nodes) != len(vectors):
        raise ValueError(f"hvp: vector: expected one for each of the {len(nodes)} nodes, got {len(vectors)}")
    directions = dict(zip(nodes, vectors, strict=True))
    if len(directions) < len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise ValueError(f"hvp: wrt: expected every node once, got {twice.label} twice")
    products = _pushed_forward(gradient(output, nodes), directions)
    return products[0] if isinstance(wrt, Node) else products


def _pushed_forward(outputs: Sequence[Node], seeds: Mapping[Node, Node]) -> list[Node]:
    if not seeds:
        raise ValueError("jvp: tangents: expected one of at least one node, got none")
    for node, tangent in seeds.items():
        _check_fits("tangent", tangent, node)
    every = {tangent.shape[node.rank :] for node, tangent in seeds.items()}
    if len(every) > 1:
        raise ValueError(f"jvp: tangents: expected one shape after that of their nodes, got {sorted(every)}")
    return tangents(Nodes(), outputs, seeds, every.pop())


def _check_fits(name: str, derivative: Node, node: Node) -> None:
    if derivative.shape[: node.rank] != node.shape:
        message = f"expected a shape that starts with {list(node.shape)}, got {list(derivative.shape)}"
        raise ValueError(f"{node.label}: {name}: {message}")
    if derivative.dtype != node.dtype:
        raise ValueError(f"{node.label}: {name}: expected dtype {node.dtype}, got {derivative.dtype}")


def _rolled(node: Node, start: int, count: int) -> Node:
    """Return a tensor with `count` axes from `start` on moved to the front."""
    axes = range(1, node.rank + 1)
    dst = (*axes[start : start + count], *axes[:start], *axes[start + count :])
    if not start or not count:
        return node
    if isinstance(node, LeafNode) and node.fill is not None:
        return Nodes().full(node.fill, tuple(node.shape[index - 1] for index in dst), node.dtype)
    return TransformNode(node, dst, axes)
