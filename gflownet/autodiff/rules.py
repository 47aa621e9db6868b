"""The derivative of one node, as nodes: the index rules of docs/tensor-graphs.md, two per class.

H are the indices of the tensor that is differentiated (reverse) or differentiated by (forward); a scalar has none. They
come last and are numbered above all others. An operand that nothing depends on has no derivative: `None`, no zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from math import isfinite

from gflownet.autodiff.functions import Constant
from gflownet.autodiff.indices import Indices
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


@singledispatch
def reverse(node: Node, cotangent: Node, side: int) -> Node | None:
    """Return what a node's consumers' derivative contributes to that of one operand.

    Args:
        node: D its indices, not a leaf.
        cotangent: the derivative by the node, `[D..., H...]`.
        side: which operand: 0, or 1 of the right one.

    Returns:
        The derivative by the operand, `[operand..., H...]`; none where it is zero everywhere.
    """
    raise TypeError(f"{node.label}: expected a node that is computed from others")


@reverse.register
def _(node: TransformNode, cotangent: Node, side: int) -> Node:
    free = _fresh(cotangent.rank - node.rank, node.index_dst, node.index_src)
    dst, src = (*node.index_src, *free), (*node.index_dst, *free)
    new_dims = [extent for index, extent in zip(node.index_src, node.source.shape, strict=True) if index < 0]
    return TransformNode(cotangent, dst, src, alpha=node.alpha, new_dims=new_dims)


@reverse.register
def _(node: ElementwiseNode, cotangent: Node, side: int) -> Node:
    if node.operation == "*":
        return _product_reverse(node, cotangent, side)
    operand = _arrays(node)[side]
    free = _fresh(cotangent.rank - node.rank, node.index_dst, operand)
    src = [index if index in operand else -index for index in node.index_dst]
    new_dims = [extent for index, extent in zip(operand, node.inputs[side].shape, strict=True) if index < 0]
    return TransformNode(cotangent, (*operand, *free), (*src, *free), alpha=_gain(node, side), new_dims=new_dims)


@reverse.register
def _(node: LinearNode, cotangent: Node, side: int) -> Node:
    return _product_reverse(node, cotangent, side)


@reverse.register
def _(node: NonlinearNode, cotangent: Node, side: int) -> Node | None:
    derivative = node.function.derivative()
    if isinstance(derivative, Constant):
        return _scaled(cotangent, derivative.value)
    every = tuple(range(1, cotangent.rank + 1))
    slope = NonlinearNode(node.source, derivative)
    return ElementwiseNode(cotangent, slope, every, every, every[: node.rank], operation="*")


@reverse.register
def _(node: CastNode, cotangent: Node, side: int) -> Node:
    return CastNode(cotangent, node.source.dtype)


@singledispatch
def forward(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    """Return the derivative of a node from those of its operands.

    Args:
        node: D its indices, not a leaf.
        tangents: the derivative of each operand, `[operand..., H...]`; at least one is there.

    Returns:
        The derivative of the node, `[D..., H...]`; none where it is zero everywhere.
    """
    raise TypeError(f"{node.label}: expected a node that is computed from others")


@forward.register
def _(node: TransformNode, tangents: Sequence[Node | None]) -> Node:
    tangent = _the(tangents[0])
    free = _fresh(tangent.rank - node.source.rank, node.index_dst, node.index_src)
    dst, src = (*node.index_dst, *free), (*node.index_src, *free)
    return TransformNode(tangent, dst, src, alpha=node.alpha, new_dims=node.new_dims)


@forward.register
def _(node: ElementwiseNode, tangents: Sequence[Node | None]) -> Node:
    if node.operation == "*":
        return _product_forward(node, tangents)
    left, right = tangents
    if right is None:
        return _one_sided(node, _the(left), side=0)
    if left is None:
        return _one_sided(node, right, side=1)
    arrays = _arrays(node)
    free = _fresh(left.rank - node.left.rank, *arrays)
    dst, src_l, src_r = ((*array, *free) for array in (node.index_dst, *arrays))
    return ElementwiseNode(left, right, dst, src_l, src_r, operation=node.operation)


@forward.register
def _(node: LinearNode, tangents: Sequence[Node | None]) -> Node:
    return _product_forward(node, tangents)


@forward.register
def _(node: NonlinearNode, tangents: Sequence[Node | None]) -> Node | None:
    tangent, derivative = _the(tangents[0]), node.function.derivative()
    if isinstance(derivative, Constant):
        return _scaled(tangent, derivative.value)
    every = tuple(range(1, tangent.rank + 1))
    slope = NonlinearNode(node.source, derivative)
    return ElementwiseNode(slope, tangent, every, every[: node.rank], every, operation="*")


@forward.register
def _(node: CastNode, tangents: Sequence[Node | None]) -> Node:
    return CastNode(_the(tangents[0]), node.dtype)


def added(left: Node, right: Node) -> Node:
    """Return the sum of two tensors of one shape."""
    every = tuple(range(1, left.rank + 1))
    return ElementwiseNode(left, right, every, every, every, operation="+")


def _the(tangent: Node | None) -> Node:
    assert tangent is not None, "forward: expected the derivative of an operand"
    return tangent


def _arrays(node: ElementwiseNode | LinearNode) -> tuple[Indices, Indices]:
    return node.index_src_l, node.index_src_r


def _fresh(count: int, *arrays: Indices) -> Indices:
    """Return the indices H: positive, and above all that a node has."""
    if not count:
        return ()
    first = 1 + max((abs(index) for array in arrays for index in array), default=0)
    return tuple(range(first, first + count))


def _scaled(tensor: Node, factor: float) -> Node | None:
    if factor in (0.0, 1.0):
        return tensor if factor else None
    every = tuple(range(1, tensor.rank + 1))
    if not isfinite(factor):  # no literal of a Transform, but the derivative of such as `log(0)*x`
        constant = LeafNode((), kind=LeafKind.CONSTANT, fill=factor, dtype=tensor.dtype)
        return ElementwiseNode(tensor, constant, every, every, (), operation="*")
    return TransformNode(tensor, every, every, alpha=factor)


def _gain(node: ElementwiseNode, side: int) -> float:
    """Return the derivative of a sum or difference by one entry of an operand, for each entry of the result it is in.

    The sum covers the whole expression, so an entry counts once for every value of a dummy that its operand lacks.
    """
    sign = -1.0 if node.operation == "-" and side == 1 else 1.0
    return sign * node.num_repeats(side)


def _one_sided(node: ElementwiseNode, tangent: Node, side: int) -> Node:
    """Return the derivative of a sum or difference of which one operand depends on the input: a Transform of it."""
    operand = _arrays(node)[side]
    free = _fresh(tangent.rank - len(operand), node.index_dst, operand)
    dst = [index if index in operand else -index for index in node.index_dst]
    new_dims = [extent for index, extent in zip(dst, node.shape, strict=True) if index < 0]
    return TransformNode(tangent, (*dst, *free), (*operand, *free), alpha=_gain(node, side), new_dims=new_dims)


def _unsigned(node: ElementwiseNode | LinearNode) -> dict[int, int]:
    """Return a positive number for every index: its own without the sign, unless another index is called that."""
    indices = dict.fromkeys((*node.index_src_l, *node.index_src_r))
    names = {index: index for index in indices if index > 0}
    spare = 1 + max((abs(index) for index in indices), default=0)
    for index in indices:
        if index < 0:
            names[index] = -index if -index not in names else spare
            spare += names[index] == spare
    return names


def _product_reverse(node: ElementwiseNode | LinearNode, cotangent: Node, side: int) -> Node:
    """Return the contraction of the cotangent and the other operand.

    Only dummies of this operand that the other lacks are in neither: the derivative is the same along them, and as a
    contraction has no New index, a Transform brings them in.
    """
    own, other = _arrays(node)[:: 1 if side == 0 else -1]
    names = _unsigned(node)
    free = _fresh(cotangent.rank - node.rank, tuple(names.values()))
    signed = {index: name if index in own else -name for index, name in names.items()}
    shared = [index for index in own if index in node.index_dst or index in other]
    dst = (*(names[index] for index in shared), *free)
    src = (*(signed[index] for index in node.index_dst), *free)
    product = LinearNode(cotangent, node.inputs[1 - side], dst, src, [signed[index] for index in other])
    if len(shared) == len(own):
        return product
    spread = [names[index] if index in shared else -names[index] for index in own]
    new_dims = [extent for index, extent in zip(own, node.inputs[side].shape, strict=True) if index not in shared]
    return TransformNode(product, (*spread, *free), dst, new_dims=new_dims)


def _product_forward(node: ElementwiseNode | LinearNode, tangents: Sequence[Node | None]) -> Node:
    """Return the sum of the same product with one operand and with the other replaced by its derivative."""
    terms: list[Node] = []
    for side, tangent in enumerate(tangents):
        if tangent is None:
            continue
        operands, arrays = list(node.inputs), list(_arrays(node))
        free = _fresh(tangent.rank - len(arrays[side]), *arrays)
        operands[side], arrays[side] = tangent, (*arrays[side], *free)
        terms.append(_same_product(node, operands, (*node.index_dst, *free), arrays))
    return terms[0] if len(terms) == 1 else added(terms[0], terms[1])


def _same_product(
    node: ElementwiseNode | LinearNode, operands: Sequence[Node], dst: Indices, arrays: Sequence[Indices]
) -> Node:
    if isinstance(node, LinearNode):
        return LinearNode(operands[0], operands[1], dst, arrays[0], arrays[1])
    return ElementwiseNode(operands[0], operands[1], dst, arrays[0], arrays[1], operation="*")
