"""Evaluate nodes and pull back gradients one node at a time with torch.

The running graph uses this module, and compiled programs are tested against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflownet.autodiff import rules
from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import LeafKind, LeafNode, Node
from gflownet.autodiff.quoting import shortened
from gflownet.autodiff.rules import Labels
from gflownet.autodiff.terms import Extents

# torch.einsum has a letter for each index.
MAX_LETTERS = 52


def topological_order(sinks: Iterable[Node]) -> list[Node]:
    """Return the sinks and their direct and indirect inputs, every node once and after its inputs; at any depth."""
    order: list[Node] = []
    visited: set[Node] = set()
    stack = [(node, False) for node in reversed(list(sinks))]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            order.append(node)
        elif node not in visited:
            visited.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source in reversed(node.inputs) if source not in visited)
    return order


def evaluate(outputs: Sequence[Node], leaves: Mapping[LeafNode, Any] | None = None) -> list[Tensor]:
    """Return the values of nodes without changing the nodes; torch may differentiate through it.

    Args:
        outputs: nodes.
        leaves: values of leaves, see `bound`; other leaves keep their own.

    Raises:
        ValueError: a needed leaf has no value, or a value does not fit.
    """
    leaves = leaves or {}
    order = topological_order(outputs)
    values: dict[Node, Tensor] = {leaf: bound(leaf, value) for leaf, value in leaves.items()}
    device = device_of(order, values)
    last_use = {source: node for node in order for source in node.inputs}
    returned = {*outputs}
    for node in order:
        if node not in values:
            is_leaf = isinstance(node, LeafNode)
            values[node] = held(node, device) if is_leaf else compute(node, [values[source] for source in node.inputs])
        for source in {*node.inputs}:
            if last_use[source] is node and source not in returned:
                del values[source]
    return [values[node] for node in outputs]


def device_of(nodes: Iterable[Node], values: Mapping[Any, Tensor]) -> torch.device | None:
    """Return the device of the value of the first leaf that is not a constant, None without such a value."""
    for node in nodes:
        if isinstance(node, LeafNode) and node.kind != LeafKind.CONSTANT:
            tensor = values.get(node, node.given)
            if tensor is not None:
                return tensor.device
    return None


def bound(leaf: LeafNode, value: Any) -> Tensor:
    """Return a value for a leaf as a tensor of the leaf's dtype.

    Args:
        leaf: the leaf.
        value: a tensor, array, nested list or number of its shape and of a dtype that converts without loss.

    Raises:
        ValueError: not numeric, another shape, or a dtype that would lose precision.
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError, OverflowError) as error:
        message = f"expected numbers of shape {list(leaf.shape)}, got {shortened(value)}"
        raise ValueError(f"{leaf.label}: value: {message}") from error
    if tuple(tensor.shape) != leaf.shape:
        raise ValueError(f"{leaf.label}: value: expected shape {list(leaf.shape)}, got {list(tensor.shape)}")
    # Python numbers take the leaf's precision; the precision of arrays and tensors must fit.
    if hasattr(value, "dtype"):
        fits = torch.promote_types(tensor.dtype, leaf.dtype) == leaf.dtype
    else:
        fits = torch.can_cast(tensor.dtype, leaf.dtype)
    if not fits:
        raise ValueError(f"{leaf.label}: value: expected dtype {leaf.dtype} or one it can hold, got {tensor.dtype}")
    return tensor.to(leaf.dtype)


def held(leaf: LeafNode, device: torch.device | None) -> Tensor:
    """Return the value of a leaf; a constant is moved to the device, by default it stays where it is.

    Raises:
        ValueError: the leaf has no value.
    """
    if leaf.given is not None:
        return leaf.given.to(device) if leaf.kind == LeafKind.CONSTANT else leaf.given
    if leaf.fill is not None:
        return torch.full((), leaf.fill, dtype=leaf.dtype, device=device).expand(leaf.shape)
    if leaf.is_identity:
        size = prod(leaf.shape[: leaf.rank // 2])
        return torch.eye(size, dtype=leaf.dtype, device=device).reshape(leaf.shape)
    raise ValueError(f"{leaf.label}: value: expected one of shape {list(leaf.shape)}, got none")


def compute(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Return the value of a node that is not a leaf.

    Args:
        node: the node.
        values: values of its inputs, in order.
    """
    return rules.value(Tensors(), rules.node_form(node), values, node.dtype)


def pull_back(node: Node, values: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    """Return the contribution of a node's gradient to the gradient of each input, None for an input without gradient.

    The derivative is algebraic: complex entries are not conjugated.

    Args:
        node: the node, not a leaf.
        values: values of its inputs, in order.
        gradient: of the node, of its shape.
    """
    form = rules.node_form(node)
    return [
        rules.reverse(Tensors(), form, values, which, gradient) if source.has_grad() else None
        for which, source in enumerate(node.inputs)
    ]


class Tensors:
    """Carries out the operations of gflownet/autodiff/rules.py with torch."""

    def combine(
        self, parts: Sequence[tuple[float, Tensor, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Tensor:
        """Return a linear combination, see `Algebra.combine`."""
        (alpha, first, labels), *further_parts = parts
        total = _scaled(contract([(first, labels)], out, extents), alpha)
        for alpha, tensor, labels in further_parts:
            part = _scaled(contract([(tensor, labels)], out, extents), abs(alpha))
            total = total + part if alpha >= 0 else total - part
        return total

    def multiply(
        self, factors: Sequence[tuple[Tensor, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Tensor:
        """Return a product of two tensors, see `Algebra.multiply`."""
        return contract(factors, out, extents)

    def map(self, function: Function, source: Tensor) -> Tensor:
        """Return a function of every entry."""
        return function(source)

    def cast(self, source: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the entries in another dtype."""
        return source.to(dtype)


def contract(operands: Sequence[tuple[Tensor, Labels]], indices: Labels, extents: Extents) -> Tensor:
    """Return the product of one or two tensors, summed over the indices that the result lacks.

    Args:
        operands: the tensors and their indices.
        indices: of the result, which repeats along indices that no operand has.
        extents: of at least the indices of the result.
    """
    if len({index for _, array in operands for index in array}) > MAX_LETTERS:
        operands = [_squeezed(*operand) for operand in operands]
    present = {index for _, array in operands for index in array}
    shared = tuple(index for index in indices if index in present)
    result = _reduced(*operands[0], shared) if len(operands) == 1 else _product(operands[0], operands[1], shared)
    for axis, index in enumerate(indices):
        if index not in present:
            result = result.unsqueeze(axis)
    return result.expand([extents[index] for index in indices])


def _product(left: tuple[Tensor, Labels], right: tuple[Tensor, Labels], indices: Labels) -> Tensor:
    labels = {index: label for label, index in enumerate(dict.fromkeys([*left[1], *right[1]]))}
    first, second, result = ([labels[index] for index in array] for array in (left[1], right[1], indices))
    return torch.einsum(left[0], first, right[0], second, result)


def _squeezed(tensor: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """Return an operand without its axes of extent 1."""
    long = [(n, index) for n, index in zip(tensor.shape, labels, strict=True) if n > 1]
    return tensor.reshape([n for n, _ in long]), tuple(index for _, index in long)


def _reduced(tensor: Tensor, labels: Labels, indices: Labels) -> Tensor:
    """Return the tensor summed over the labels that `indices` lacks, its axes in the order of `indices`."""
    axes = [axis for axis, index in enumerate(labels) if index not in indices]
    if axes:
        tensor = tensor.sum(axes, dtype=tensor.dtype)
    left = [index for index in labels if index in indices]
    return tensor.permute([left.index(index) for index in indices])


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else (tensor * factor).to(tensor.dtype)
