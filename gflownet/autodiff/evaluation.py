"""What each kind of node computes, and how a gradient passes back through it, one node at a time, with torch.

Slow but sound: what the running graph is made of, and what the compiled programs are tested against.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflownet.autodiff.indices import Indices, negatives
from gflownet.autodiff.nodes import (
    CastNode,
    ElementwiseNode,
    LeafKind,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    TransformNode,
)
from gflownet.autodiff.quoting import shortened

# torch.einsum has a letter for each index.
MAX_LETTERS = 52


def topological_order(sinks: Iterable[Node]) -> list[Node]:
    """Return the sinks and all they depend on, every node once and after its inputs; any depth of graph."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(node, False) for node in reversed(list(sinks))]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source in reversed(node.inputs) if source not in seen)
    return order


def evaluate(outputs: Sequence[Node], leaves: Mapping[LeafNode, Any] | None = None) -> list[Tensor]:
    """Return the values of nodes, leaving what the nodes carry as it is; torch may differentiate through it.

    Args:
        outputs: whose values are wanted.
        leaves: what leaves hold here, see `bound`; the others hold what they were given.

    Raises:
        ValueError: a leaf that is needed holds nothing, or what it is to hold does not fit.
    """
    leaves = leaves or {}
    order = topological_order(outputs)
    values: dict[Node, Tensor] = {leaf: bound(leaf, value) for leaf, value in leaves.items()}
    device = device_of(order, values)
    last_use = {source: node for node in order for source in node.inputs}
    kept = {*outputs}
    for node in order:
        if node not in values:
            is_leaf = isinstance(node, LeafNode)
            values[node] = held(node, device) if is_leaf else compute(node, [values[source] for source in node.inputs])
        for source in {*node.inputs}:
            if last_use[source] is node and source not in kept:
                del values[source]
    return [values[node] for node in outputs]


def device_of(nodes: Iterable[Node], values: Mapping[Any, Tensor]) -> torch.device | None:
    """Return the device of the first leaf that is no constant, by its value or what it was given; none without one."""
    for node in nodes:
        if isinstance(node, LeafNode) and node.kind != LeafKind.CONSTANT:
            tensor = values.get(node, node.given)
            if tensor is not None:
                return tensor.device
    return None


def bound(leaf: LeafNode, value: Any) -> Tensor:
    """Return what a leaf is to hold as a tensor of its dtype.

    Args:
        leaf: the leaf.
        value: a tensor, array, nested list or number of its shape, whose dtype its own dtype can hold.

    Raises:
        ValueError: no numbers, another shape, or a dtype that would lose something.
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError, OverflowError) as error:
        message = f"expected numbers of shape {list(leaf.shape)}, got {shortened(value)}"
        raise ValueError(f"{leaf.label}: value: {message}") from error
    if tuple(tensor.shape) != leaf.shape:
        raise ValueError(f"{leaf.label}: value: expected shape {list(leaf.shape)}, got {list(tensor.shape)}")
    # Numbers of Python take the leaf's precision, arrays and tensors have one that is not to be lost.
    if hasattr(value, "dtype"):
        fits = torch.promote_types(tensor.dtype, leaf.dtype) == leaf.dtype
    else:
        fits = torch.can_cast(tensor.dtype, leaf.dtype)
    if not fits:
        raise ValueError(f"{leaf.label}: value: expected dtype {leaf.dtype} or one it can hold, got {tensor.dtype}")
    return tensor.to(leaf.dtype)


def held(leaf: LeafNode, device: torch.device | None) -> Tensor:
    """Return what a leaf was given, or the tensor that describes a constant.

    Args:
        leaf: the leaf.
        device: where a constant is wanted; by default where it is.

    Raises:
        ValueError: it holds nothing.
    """
    if leaf.given is not None:
        return leaf.given.to(device) if leaf.kind == LeafKind.CONSTANT else leaf.given
    if leaf.fill is not None:
        return torch.full((), leaf.fill, dtype=leaf.dtype, device=device).expand(leaf.shape)
    if leaf.is_identity:
        size = prod(leaf.shape[: leaf.rank // 2])
        return torch.eye(size, dtype=leaf.dtype, device=device).reshape(leaf.shape)
    raise ValueError(f"{leaf.label}: value: expected one of shape {list(leaf.shape)}, got none")


@singledispatch
def compute(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Return the value of a node that is no leaf.

    Args:
        node: the node.
        values: those of its inputs, in order.
    """
    raise TypeError(f"{node.label}: expected a node that is computed from others")


@compute.register
def _(node: TransformNode, values: Sequence[Tensor]) -> Tensor:
    src = _scoped(node)
    extents = dict(zip(node.index_dst, node.shape, strict=True))
    return _scaled(contract([(values[0], src)], node.index_dst, extents), node.alpha)


@compute.register
def _(node: ElementwiseNode, values: Sequence[Tensor]) -> Tensor:
    arrays = (node.index_src_l, node.index_src_r)
    if node.operation == "*":
        return contract(list(zip(values, arrays, strict=True)), node.index_dst, node.extents)
    left, right = (
        _scaled(contract([(value, array)], node.index_dst, node.extents), node.num_repeats(side))
        for side, (value, array) in enumerate(zip(values, arrays, strict=True))
    )
    return left + right if node.operation == "+" else left - right


@compute.register
def _(node: LinearNode, values: Sequence[Tensor]) -> Tensor:
    return contract([(values[0], node.index_src_l), (values[1], node.index_src_r)], node.index_dst, node.extents)


@compute.register
def _(node: NonlinearNode, values: Sequence[Tensor]) -> Tensor:
    return node.function(values[0])


@compute.register
def _(node: CastNode, values: Sequence[Tensor]) -> Tensor:
    return values[0].to(node.dtype)


@singledispatch
def pull_back(node: Node, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    """Return what a node's gradient adds to those of its inputs, None for an input without one.

    By the rules of docs/tensor-graphs.md. The derivative is the algebraic one: complex entries are not conjugated.

    Args:
        node: the node, not a leaf.
        values: those of its inputs, in order.
        gradient: of the node, of its shape.
    """
    raise TypeError(f"{node.label}: expected a node that is computed from others")


@pull_back.register
def _(node: TransformNode, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    src = _scoped(node)
    extents = dict(zip(src, node.source.shape, strict=True))
    return [_scaled(contract([(gradient, node.index_dst)], src, extents), node.alpha)]


@pull_back.register
def _(node: ElementwiseNode, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    if node.operation == "*":
        return _product_rule(node, values, gradient)
    signs = (1, -1 if node.operation == "-" else 1)
    return [
        _scaled(contract([(gradient, node.index_dst)], array, node.extents), signs[side] * node.num_repeats(side))
        for side, array in enumerate((node.index_src_l, node.index_src_r))
    ]


@pull_back.register
def _(node: LinearNode, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    return _product_rule(node, values, gradient)


@pull_back.register
def _(node: NonlinearNode, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    return [gradient * node.function.derivative()(values[0])]


@pull_back.register
def _(node: CastNode, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    return [gradient.to(node.source.dtype)]


def contract(operands: Sequence[tuple[Tensor, Indices]], indices: Indices, extents: Mapping[int, int]) -> Tensor:
    """Return the product of one or two tensors, summed over the indices that the result does not have.

    Args:
        operands: the tensors and their indices.
        indices: of the result; it is the same along those that no operand has.
        extents: of at least the indices of the result.
    """
    if len({index for _, array in operands for index in array}) > MAX_LETTERS:
        operands = [_squeezed(*operand) for operand in operands]
    there = {index for _, array in operands for index in array}
    shared = tuple(index for index in indices if index in there)
    result = _reduced(*operands[0], shared) if len(operands) == 1 else _product(operands[0], operands[1], shared)
    for axis, index in enumerate(indices):
        if index not in there:
            result = result.unsqueeze(axis)
    return result.expand([extents[index] for index in indices])


def _product(left: tuple[Tensor, Indices], right: tuple[Tensor, Indices], indices: Indices) -> Tensor:
    labels = {index: label for label, index in enumerate(dict.fromkeys([*left[1], *right[1]]))}
    first, second, result = ([labels[index] for index in array] for array in (left[1], right[1], indices))
    return torch.einsum(left[0], first, right[0], second, result)


def _squeezed(tensor: Tensor, own: Indices) -> tuple[Tensor, Indices]:
    """Return an operand without its axes of extent 1: of more indices than letters, most have to be such axes."""
    long = [(n, index) for n, index in zip(tensor.shape, own, strict=True) if n > 1]
    return tensor.reshape([n for n, _ in long]), tuple(index for _, index in long)


def _reduced(tensor: Tensor, own: Indices, indices: Indices) -> Tensor:
    """Return the tensor summed over what `indices` lacks, its axes in their order."""
    axes = [axis for axis, index in enumerate(own) if index not in indices]
    if axes:
        tensor = tensor.sum(axes, dtype=tensor.dtype)
    left = [index for index in own if index in indices]
    return tensor.permute([left.index(index) for index in indices])


def _product_rule(
    node: ElementwiseNode | LinearNode, values: Sequence[Tensor], gradient: Tensor
) -> list[Tensor | None]:
    given = (gradient, node.index_dst)
    left, right = (values[0], node.index_src_l), (values[1], node.index_src_r)
    return [
        contract([given, other], own[1], node.extents) if source.has_grad() else None
        for source, own, other in ((node.left, left, right), (node.right, right, left))
    ]


def _scoped(node: TransformNode) -> Indices:
    """Return `index_src` with negatives that `index_dst` does not have: there they are other indices."""
    offset = min([0, *negatives(node.index_dst)])
    return tuple(index + offset if index < 0 else index for index in node.index_src)


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else (tensor * factor).to(tensor.dtype)
