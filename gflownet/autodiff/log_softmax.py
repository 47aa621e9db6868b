"""Log-sum-exp and the cross entropy as nodes, without overflow.

No node takes a maximum to shift by. Instead pairs of entries are reduced in ceil(log2 n) rounds of
`log(exp a + exp b) = a + softplus(b - a)`. No intermediate result exceeds the entries, and derivatives of any order are
sums of products of sigmoids.
"""
# ruff: noqa: N802  (a factory is named after its node)

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, NonlinearNode


def LogSumExp(source: Node) -> Node:
    """Return `log sum exp` over the last axis; raise ValueError for a scalar."""
    if not source.rank:
        raise ValueError(f"{source.label}: LogSumExp: expected at least one axis, got a scalar")
    while source.shape[-1] > 1:
        source = _round(source)
    *batch, last = range(1, source.rank + 1)
    return _picked(source, _constant(torch.ones(1), source, name="only"), axes=batch, last=last)


def PickNegLogSoftmax(logits: Node, target: int | Tensor | Node) -> Node:
    """Return `-log softmax(logits)[target]` over the last axis: the cross entropy.

    Computed as the log-sum-exp of the differences to the target's logit, so a common offset loses no precision.

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
    *batch, last = range(1, logits.rank + 1)
    axes = [*batch, last]
    target_logit = LinearNode(logits, one_hot, batch, [*batch, -last], [*batch, -last])
    return LogSumExp(ElementwiseNode(logits, target_logit, axes, axes, batch, operation="-"))


def _one_hot(logits: Node, target: Tensor) -> LeafNode:
    num_classes = logits.shape[-1]
    if target.is_floating_point() or bool(((target < 0) | (target >= num_classes)).any()):
        raise ValueError(f"{logits.label}: target: expected classes from 0 to {num_classes - 1}, got {target.tolist()}")
    if target.dim() and tuple(target.shape) != logits.shape[:-1]:
        raise ValueError(f"{logits.label}: target: expected shape {logits.shape[:-1]}, got {tuple(target.shape)}")
    one_hot = torch.nn.functional.one_hot(target.long(), num_classes).expand(logits.shape)
    return _constant(one_hot, logits, name="target")


def _round(source: Node) -> Node:
    """Return the log-sum-exps of pairs of neighbours along the last axis; an unpaired last entry stays."""
    extent = source.shape[-1]
    left = torch.arange(0, extent, 2)
    right = (left + 1).clamp(max=extent - 1)
    *batch, last = range(1, source.rank + 1)
    first, second = (
        _picked(source, _selector(source, places), axes=[*batch, last + 1], last=last) for places in (left, right)
    )
    axes = [*batch, last]
    distance = ElementwiseNode(second, first, axes, axes, axes, operation="-")
    gain: Node = NonlinearNode(distance, Function.parse("softplus"))
    if extent % 2:
        paired = _constant((left != right).double(), source, name="paired")
        gain = ElementwiseNode(gain, paired, axes, axes, [last], operation="*")
    return ElementwiseNode(first, gain, axes, axes, axes, operation="+")


def _selector(source: Node, places: Tensor) -> LeafNode:
    """Return the matrix that selects entries of the last axis."""
    rows = torch.nn.functional.one_hot(places, source.shape[-1])
    return _constant(rows.T, source, name="pick")


def _picked(source: Node, matrix: Node, *, axes: list[int], last: int) -> Node:
    """Return the contraction of the source's last axis with the matrix's first."""
    batch = [index for index in axes if index < last]
    return LinearNode(source, matrix, axes, [*batch, -last], [-last, *[index for index in axes if index > last]])


def _constant(value: Tensor, like: Node, *, name: str) -> LeafNode:
    value = value.to(like.dtype)
    return LeafNode(value.shape, kind=LeafKind.CONSTANT, value=value, name=name)
