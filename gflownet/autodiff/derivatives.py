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
    """Return the products of a cotangent and the Jacobians: reverse mode.

    Args:
        output: what is differentiated.
        wrt: by which nodes; the derivative by one of them includes what reaches the output through another.
        cotangent: `[output..., H...]`, H any further axes.

    Returns:
        Of each, `[wrt..., H...]`.

    Raises:
        ValueError: the cotangent has not the output's axes first, or not its dtype.
    """
    _check_fits("cotangent", cotangent, output)
    nodes, free = Nodes(), cotangent.shape[output.rank :]
    adjoint_of = derivation.adjoints(nodes, {output: cotangent}, set(wrt), free)
    return [adjoint_of.get(node) or nodes.full(0.0, (*node.shape, *free), node.dtype) for node in wrt]


def jvp(output: Node, tangents: Mapping[Node, Node]) -> Node:
    """Return the product of the Jacobians and tangents, summed over the nodes they are of: forward mode.

    Args:
        output: what is differentiated.
        tangents: by node, `[node..., H...]`, H any further axes; a node of them is taken to depend on nothing.

    Returns:
        `[output..., H...]`.

    Raises:
        ValueError: there is no tangent, one has not its node's axes first or not its dtype, or their H differ.
    """
    return derivation.tangents(Nodes(), [output], tangents, _free_axes(tangents))[0]


@overload
def gradient(output: Node, wrt: Node) -> Node: ...
@overload
def gradient(output: Node, wrt: Sequence[Node]) -> list[Node]: ...
def gradient(output: Node, wrt: Node | Sequence[Node]) -> Node | list[Node]:
    """Return the derivative of a scalar by a node, or by each of several, in one reverse pass.

    Args:
        output: a scalar.
        wrt: the node or the nodes.

    Returns:
        Of each, of its shape.

    Raises:
        ValueError: the output is not a scalar.
    """
    if output.rank:
        raise ValueError(f"{output.label}: gradient: expected a scalar (shape []), got shape {list(output.shape)}")
    gradients = derivation.gradient(Nodes(), output, [wrt] if isinstance(wrt, Node) else wrt)
    return gradients[0] if isinstance(wrt, Node) else gradients


def jacobian(output: Node, wrt: Node, mode: Mode = "reverse") -> Node:
    """Return the derivative of a tensor by a tensor.

    Args:
        output: what is differentiated.
        wrt: by what.
        mode: from which end; it decides the layout, too.

    Returns:
        `[wrt..., output...]` in reverse mode, `[output..., wrt...]` in forward mode.

    Raises:
        ValueError: there is no such mode.
    """
    if mode == "reverse":
        return derivation.reverse_jacobian(Nodes(), output, wrt)
    if mode == "forward":
        return derivation.forward_jacobian(Nodes(), output, wrt)
    raise ValueError(f"jacobian: mode: expected 'reverse' or 'forward', got {mode!r}")


def hessian(output: Node, first: Node, second: Node | None = None) -> Node:
    """Return the derivative of a tensor by two nodes: forward mode over reverse mode.

    Args:
        output: what is differentiated.
        first: by what first.
        second: by what then; by default by the same.

    Returns:
        `[output..., first..., second...]`.
    """
    twice = jacobian(jacobian(output, first), first if second is None else second, mode="forward")
    return _rolled(twice, first.rank, output.rank)


@overload
def hvp(output: Node, wrt: Node, vector: Node) -> Node: ...
@overload
def hvp(output: Node, wrt: Sequence[Node], vector: Sequence[Node]) -> list[Node]: ...
def hvp(output: Node, wrt: Node | Sequence[Node], vector: Node | Sequence[Node]) -> Node | list[Node]:
    """Return the product of a scalar's Hessian and a vector, without the Hessian: forward mode over reverse mode.

    Args:
        output: a scalar.
        wrt: the node or the nodes it is differentiated by.
        vector: of the node's shape and dtype, or one for each node.

    Returns:
        Of each node, of its shape.

    Raises:
        ValueError: the output is not a scalar, the vectors do not fit the nodes, or a node is given twice.
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
