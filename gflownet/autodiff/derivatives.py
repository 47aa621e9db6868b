"""Derivatives of nodes, which are nodes again: reverse and forward mode, to any order.

A derivative that is zero is a constant leaf with `fill=0.0`, the derivative of a tensor by itself a leaf with
`is_identity`: neither is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, overload

from gflownet.autodiff import derivation
from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import LeafNode, Node, TransformNode

Mode = Literal["reverse", "forward"]


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
    adjoint_of = derivation.adjoints(nodes, {output: cotangent}, set(wrt), free)
    return [adjoint_of.get(node) or nodes.full(0.0, (*node.shape, *free), node.dtype) for node in wrt]


def jvp(output: Node, tangents: Mapping[Node, Node]) -> Node:
    """Return the sum of the products of Jacobians and tangents (forward mode), `[output..., H...]`.

    Args:
        output: node to differentiate.
        tangents: by node, `[node..., H...]`, H any further axes; a node with a tangent counts as independent.

    Raises:
        ValueError: there is no tangent, one lacks the axes of its node or has another dtype, or their H differ.
    """
    return derivation.tangents(Nodes(), [output], tangents, _free_axes(tangents))[0]


@overload
def gradient(output: Node, wrt: Node) -> Node: ...
@overload
def gradient(output: Node, wrt: Sequence[Node]) -> list[Node]: ...
def gradient(output: Node, wrt: Node | Sequence[Node]) -> Node | list[Node]:
    """Return the gradient of a scalar by a node, or by each of several, in one reverse pass.

    Raises:
        ValueError: the output is not a scalar.
    """
    if output.rank:
        raise ValueError(f"{output.label}: gradient: expected a scalar (shape []), got shape {list(output.shape)}")
    gradients = derivation.gradient(Nodes(), output, [wrt] if isinstance(wrt, Node) else wrt)
    return gradients[0] if isinstance(wrt, Node) else gradients


def check_mode(owner: str, mode: str) -> None:
    """Raise ValueError for an unknown mode."""
    if mode not in ("reverse", "forward"):
        raise ValueError(f"{owner}: mode: expected 'reverse' or 'forward', got {mode!r}")


def jacobian(output: Node, wrt: Node, mode: Mode = "reverse") -> Node:
    """Return the derivative of a tensor by a tensor: `[wrt..., output...]`, in forward mode `[output..., wrt...]`.

    Raises:
        ValueError: unknown mode.
    """
    check_mode("jacobian", mode)
    derive = derivation.reverse_jacobian if mode == "reverse" else derivation.forward_jacobian
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
    tangents = dict(zip(nodes, vectors, strict=True))
    if len(tangents) < len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise ValueError(f"hvp: wrt: expected every node once, got {twice.label} twice")
    products = derivation.tangents(Nodes(), gradient(output, nodes), tangents, _free_axes(tangents))
    return products[0] if isinstance(wrt, Node) else products


def _free_axes(tangents: Mapping[Node, Node]) -> tuple[int, ...]:
    if not tangents:
        raise ValueError("jvp: tangents: expected one of at least one node, got none")
    for node, tangent in tangents.items():
        _check_fits("tangent", tangent, node)
    every = {tangent.shape[node.rank :] for node, tangent in tangents.items()}
    if len(every) > 1:
        raise ValueError(f"jvp: tangents: expected one shape after that of their nodes, got {sorted(every)}")
    return every.pop()


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
