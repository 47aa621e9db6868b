"""Arithmetic on nodes, as + - * / ** @ and unary - do it: entry by entry, with numbers and with trailing axes.

An operand of lower rank is broadcast over the leading axes of the other when its shape is that of the other's last
axes; a scalar fits everything. Extents of 1 are extents like others.
"""

from __future__ import annotations

from numbers import Real

from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import (
    ElementwiseNode,
    LeafKind,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    Operation,
    TransformNode,
)

Operand = Node | float


def add(left: Operand, right: Operand) -> Node:
    """Return the sum, entry by entry."""
    return elementwise(left, right, "+")


def subtract(left: Operand, right: Operand) -> Node:
    """Return the difference, entry by entry."""
    return elementwise(left, right, "-")


def multiply(left: Operand, right: Operand) -> Node:
    """Return the product, entry by entry; with a number it is a Transform."""
    if isinstance(right, Node) and isinstance(left, Node):
        return elementwise(left, right, "*")
    if isinstance(left, Node):
        left, right = right, left
    return scaled(_node_of(right), _number_of(left))


def divide(left: Operand, right: Operand) -> Node:
    """Return the quotient, entry by entry."""
    if isinstance(right, Node):
        return multiply(left, NonlinearNode(right, Function.parse("reciprocal")))
    return multiply(left, 1.0 / _number_of(right))


def power(base: Node, exponent: float) -> Node:
    """Return the power, entry by entry."""
    return NonlinearNode(base, Function.parse(f"power({_number_of(exponent)!r})"))


def scaled(source: Node, alpha: float) -> Node:
    """Return the node times a literal."""
    axes = range(1, source.rank + 1)
    return TransformNode(source, axes, axes, alpha=alpha)


def elementwise(left: Operand, right: Operand, operation: Operation) -> Node:
    """Return the operation on two operands, entry by entry, broadcast as the module says.

    Raises:
        ValueError: the shapes do not fit, or both are numbers.
    """
    like = left if isinstance(left, Node) else _node_of(right)
    left, right = _like(left, like), _like(right, like)
    small, large = sorted((left, right), key=lambda node: node.rank)
    axes = tuple(range(1, large.rank + 1))
    if large.shape[large.rank - small.rank :] != small.shape:
        message = "expected operands of one shape, a scalar, or the other's last axes"
        raise ValueError(f"{left.label} {operation} {right.label}: {message}, got {left.shape} and {right.shape}")
    return ElementwiseNode(
        left, right, axes, axes[large.rank - left.rank :], axes[large.rank - right.rank :], operation=operation
    )


def matrix_product(left: Node, right: Node) -> Node:
    """Return the product over the left operand's last axis and the right one's last but one (its only one of a vector).

    Leading axes of both are a batch; an operand without any is the same for the whole batch.

    Raises:
        ValueError: an operand is a scalar, or the extents do not fit.
    """
    if not (isinstance(right, Node) and left.rank and right.rank):
        raise ValueError(f"{left.label} @ {right}: expected two operands of at least one axis")
    summed, row, column = -1, 1, 2
    own_l, own_r = (row, summed)[max(0, 2 - left.rank) :], (summed, column)[: right.rank]
    num_batch = max(left.rank, right.rank, 2) - 2
    batch = tuple(range(3, 3 + num_batch))
    if min(left.rank, right.rank) > 2 and left.rank != right.rank:
        raise ValueError(
            f"{left.label} @ {right.label}: expected as many batch axes, got {left.shape} and {right.shape}"
        )
    src_l, src_r = ((batch if node.rank > 2 else ()) + own for node, own in ((left, own_l), (right, own_r)))
    return LinearNode(left, right, batch + own_l[:-1] + own_r[1:], src_l, src_r)


def _like(operand: Operand, node: Node) -> Node:
    """Return the operand as a node, a number as a constant of the other operand's dtype."""
    if isinstance(operand, Node):
        return operand
    return LeafNode((), kind=LeafKind.CONSTANT, fill=_number_of(operand), dtype=node.dtype)


def _node_of(operand: Operand) -> Node:
    if not isinstance(operand, Node):
        raise ValueError(f"expected a node, got {operand!r}")
    return operand


def _number_of(operand: Operand) -> float:
    if not isinstance(operand, Real):
        raise ValueError(f"expected a number, got {operand!r}")
    return float(operand)
