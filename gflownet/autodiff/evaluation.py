"""Evaluate nodes one at a time with torch; compiled programs are tested against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflownet.autodiff.nodes import LeafKind, LeafNode, Node
from gflownet.autodiff.tokens import shortened


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
            values[node] = (
                node.held(device)
                if isinstance(node, LeafNode)
                else node.computed([values[source] for source in node.inputs])
            )
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
    """Return a value for a leaf as a tensor of the leaf's dtype: a tensor, array, nested list or number.

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
