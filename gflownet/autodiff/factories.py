"""Functions that build nodes: leaves, each class of node, and common compositions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from gflownet.autodiff import nodes
from gflownet.autodiff.functions import Function
from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, NonlinearNode, TransformNode
from gflownet.autodiff.softmax import LogSoftmaxNode, LogSumExpNode, MaskedSumNode

# ruff: noqa: N802  (a factory is named after its node)


Content = Tensor | Sequence[int]

Transform = TransformNode
Elementwise = ElementwiseNode
Linear = LinearNode
Cast = nodes.CastNode
Multiply = nodes.multiply
Divide = nodes.divide
MatMul = nodes.matrix_product


def Input(content: Content, *, name: str | None = None, dtype: torch.dtype | None = None) -> LeafNode:
    """Return an input with a gradient.

    Args:
        content: its value, or its shape if a value is bound when the graph runs.
        name: shown in messages and drawings.
        dtype: by default the dtype of the tensor, else torch's default.
    """
    return _leaf(content, LeafKind.INPUT, requires_grad=True, name=name, dtype=dtype)


def FixedInput(content: Content, *, name: str | None = None, dtype: torch.dtype | None = None) -> LeafNode:
    """Return an input without a gradient, such as data; arguments as for `Input`."""
    return _leaf(content, LeafKind.INPUT, requires_grad=False, name=name, dtype=dtype)


def Parameter(content: Content, *, name: str | None = None, dtype: torch.dtype | None = None) -> LeafNode:
    """Return a parameter, with a gradient; arguments as for `Input`."""
    return _leaf(content, LeafKind.PARAMETER, requires_grad=True, name=name, dtype=dtype)


def FixedParameter(content: Content, *, name: str | None = None, dtype: torch.dtype | None = None) -> LeafNode:
    """Return a parameter without a gradient; arguments as for `Input`."""
    return _leaf(content, LeafKind.PARAMETER, requires_grad=False, name=name, dtype=dtype)


def Constant(content: Tensor | float, *, name: str | None = None, dtype: torch.dtype | None = None) -> LeafNode:
    """Return a constant; a number becomes a scalar."""
    if isinstance(content, Tensor):
        return _leaf(content, LeafKind.CONSTANT, requires_grad=False, name=name, dtype=dtype)
    return LeafNode((), kind=LeafKind.CONSTANT, fill=float(content), name=name, dtype=dtype)


def Identity(shape: Sequence[int], *, name: str | None = None, dtype: torch.dtype | None = None) -> LeafNode:
    """Return the constant of shape `[*shape, *shape]` that is 1 where both halves of the index are equal, else 0."""
    return LeafNode([*shape, *shape], kind=LeafKind.CONSTANT, is_identity=True, name=name, dtype=dtype)


def Nonlinear(source: Node, function: Function | str, *, name: str | None = None) -> Node:
    """Return a function of every entry; a text is read by `Function.parse`."""
    parsed = Function.parse(function) if isinstance(function, str) else function
    return NonlinearNode(source, parsed, name=name)


def Add(left: Node | float, right: Node | float) -> Node:
    """Return `left + right`."""
    return nodes.elementwise(left, right, "+")


def Subtract(left: Node | float, right: Node | float) -> Node:
    """Return `left - right`."""
    return nodes.elementwise(left, right, "-")


def Power(base: Node, exponent: float) -> Node:
    """Return `base ** exponent`, entry by entry."""
    return base**exponent


def Sum(source: Node, axes: Sequence[int] | None = None) -> Node:
    """Return the sum over some axes, by default all; negative axes count from the end."""
    summed = range(source.rank) if axes is None else [_axis(source, axis) for axis in axes]
    index_src = [-axis - 1 if axis in summed else axis + 1 for axis in range(source.rank)]
    return TransformNode(source, [index for index in index_src if index > 0], index_src)


def Mean(source: Node, axes: Sequence[int] | None = None) -> Node:
    """Return the mean over some axes, by default all."""
    total = Sum(source, axes)
    count = prod(source.shape if axes is None else [source.shape[axis] for axis in {*axes}])
    if not count:
        raise ValueError(f"{source.label}: Mean: expected at least one entry, got shape {list(source.shape)}")
    return total * (1.0 / count)


def Transpose(source: Node, order: Sequence[int] | None = None) -> Node:
    """Return the node with its axes in another order, by default reversed."""
    places = [*range(source.rank)][::-1] if order is None else [_axis(source, axis) for axis in order]
    return TransformNode(source, [place + 1 for place in places], range(1, source.rank + 1))


def Broadcast(source: Node, shape: Sequence[int]) -> Node:
    """Return the node repeated along new leading axes; raise ValueError unless `shape` ends in the source's shape."""
    num_new = len(shape) - source.rank
    if num_new < 0 or tuple(shape[num_new:]) != source.shape:
        raise ValueError(f"{source.label}: Broadcast: expected a shape that ends in {source.shape}, got {list(shape)}")
    axes = range(1, source.rank + 1)
    return TransformNode(source, [*range(-num_new, 0), *axes], axes, new_dims=shape[:num_new])


def Einsum(equation: str, *operands: Node) -> Node:
    """Return the contraction of an equation such as `ij,jk->ik`, in an order of few multiplications.

    Args:
        equation: a letter per axis of each operand and of the result; without `->`, the result has the letters that
            occur once, in alphabetical order. A letter twice in one operand is its diagonal: `ii->` is the trace.
        operands: one per term of the equation.

    Raises:
        ValueError: the equation does not fit the operands, or has an ellipsis, a letter twice in the result or in
            the result only.
    """
    inputs, output = _terms(equation, len(operands))
    extents = _extents(equation, inputs, operands)
    numbers = {label: number for number, label in enumerate(extents)}
    factors = [(node, [numbers[label] for label in labels]) for labels, node in zip(inputs, operands, strict=True)]
    sizes = {numbers[label]: extent for label, extent in extents.items()}
    return Nodes().multiply(factors, [numbers[label] for label in output], sizes, operands[0].dtype)


def _function(name: str) -> Callable[[Node], Node]:
    def factory(source: Node) -> Node:
        return NonlinearNode(source, Function.parse(name))

    factory.__name__ = factory.__qualname__ = name.capitalize()
    factory.__doc__ = f"Return {name} of every entry."
    return factory


Exp = _function("exp")
Log = _function("log")
Sin = _function("sin")
Cos = _function("cos")
Tanh = _function("tanh")
Sqrt = _function("sqrt")
Negate = _function("neg")
Reciprocal = _function("reciprocal")
Square = _function("square")
Cube = _function("cube")
Sigmoid = _function("sigmoid")
Relu = _function("relu")
Gelu = _function("gelu")
Softplus = _function("softplus")
Silu = _function("silu")
Abs = _function("abs")
Erf = _function("erf")


def _leaf(
    content: Content, kind: LeafKind, *, requires_grad: bool, name: str | None, dtype: torch.dtype | None
) -> LeafNode:
    if isinstance(content, Tensor):
        tensor = content if dtype is None else content.to(dtype)
        return LeafNode(tensor.shape, kind=kind, value=tensor, requires_grad=requires_grad, name=name)
    return LeafNode(content, kind=kind, requires_grad=requires_grad, dtype=dtype, name=name)


def _axis(source: Node, axis: int) -> int:
    if not -source.rank <= axis < source.rank:
        raise ValueError(f"{source.label}: expected an axis of shape {source.shape}, got {axis}")
    return axis % source.rank


def _terms(equation: str, num_operands: int) -> tuple[list[str], str]:
    text = equation.replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    every = "".join(inputs)
    where = f"Einsum {equation!r}"
    if not all(label.isalpha() for label in every + output):
        raise ValueError(f"{where}: expected letters, commas and one ->; an ellipsis is not taken")
    if len(inputs) != num_operands:
        raise ValueError(f"{where}: expected {len(inputs)} operands, got {num_operands}")
    if not arrow:
        output = "".join(sorted(label for label, count in Counter(every).items() if count == 1))
    twice = next((label for label in output if output.count(label) > 1), None)
    if twice:
        raise ValueError(f"{where}: expected every index once in the result, got {twice!r} twice in {output!r}")
    new = [label for label in output if label not in every]
    if new:
        raise ValueError(f"{where}: expected the result's indices among the operands', got {new}; see Broadcast")
    return inputs, output


def _extents(equation: str, inputs: Sequence[str], operands: Sequence[Node]) -> dict[str, int]:
    """Return the extent of each label; raise ValueError for operands that do not fit."""
    extents: dict[str, int] = {}
    for labels, node in zip(inputs, operands, strict=True):
        if len(labels) != node.rank:
            message = f"expected an operand with axes {labels!r}, got {node.label} {node.shape}"
            raise ValueError(f"Einsum {equation!r}: {message}")
        for label, extent in zip(labels, node.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                message = f"expected one extent for {label!r}, got {extents[label]} and {extent}"
                raise ValueError(f"Einsum {equation!r}: {message}")
    return extents


def LogSumExp(source: Node) -> Node:
    """Return `log sum exp` over the last axis, without overflow; raise ValueError for a scalar."""
    if not source.rank:
        raise ValueError(f"{source.label}: LogSumExp: expected at least one axis, got a scalar")
    return LogSumExpNode(source)


def PickNegLogSoftmax(logits: Node, target: int | Tensor | Node) -> Node:
    """Return `-log softmax(logits)[target]` over the last axis: the cross entropy.

    Logits may be -inf (masked) or huge, and an offset that all share loses no precision.

    Args:
        logits: of shape `[..., C]`.
        target: one class for all, an integer tensor of shape `[...]`, or a one-hot node of the shape of the logits (a
            leaf can be bound for each batch).

    Raises:
        ValueError: the target does not fit or is not a class.
    """
    if not logits.rank:
        raise ValueError(f"{logits.label}: PickNegLogSoftmax: expected at least one axis, got a scalar")
    one_hot = target if isinstance(target, Node) else _one_hot(logits, torch.as_tensor(target))
    if one_hot.shape != logits.shape:
        raise ValueError(f"{one_hot.label}: target: expected the logits' shape {logits.shape}, got {one_hot.shape}")
    return -MaskedSumNode(LogSoftmaxNode(logits), one_hot)


def _one_hot(logits: Node, target: Tensor) -> LeafNode:
    num_classes = logits.shape[-1]
    if target.is_floating_point() or bool(((target < 0) | (target >= num_classes)).any()):
        raise ValueError(f"{logits.label}: target: expected classes from 0 to {num_classes - 1}, got {target.tolist()}")
    if target.dim() and tuple(target.shape) != logits.shape[:-1]:
        raise ValueError(f"{logits.label}: target: expected shape {logits.shape[:-1]}, got {tuple(target.shape)}")
    one_hot = torch.nn.functional.one_hot(target.long(), num_classes).expand(logits.shape).to(logits.dtype)
    return LeafNode(one_hot.shape, kind=LeafKind.CONSTANT, value=one_hot, name="target")
