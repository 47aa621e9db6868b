"""Log-sum-exp and the cross entropy out of the five kinds of nodes, without overflow.

No index rule takes a maximum, so the usual shift is not at hand. Instead the entries meet pairwise as in a tournament:
`log(exp a + exp b) = a + softplus(b - a)`, in ceil(log2 n) rounds. Nothing in it grows beyond the entries, and the
derivatives of any order are sums of products of sigmoids.
"""
# ruff: noqa: N802  (a factory is named after its node, as in seed 004)

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, NonlinearNode


def LogSumExp(source: Node) -> Node:
    """Return `log sum exp` over the last axis.

    Raises:
        ValueError: the source is a scalar.
    """
    if not source.rank:
        raise ValueError(f"{source.label}: LogSumExp: expected at least one axis, got a scalar")
    while source.shape[-1] > 1:
        source = _round(source)
    *kept, last = range(1, source.rank + 1)
    return _picked(source, _constant(torch.ones(1), source, name="only"), axes=kept, last=last)


def PickNegLogSoftmax(logits: Node, target: int | Tensor | Node) -> Node:
    """Return `-log softmax(logits)[target]` over the last axis: the cross entropy.

    It is the log-sum-exp of the logits' distances to the target's, so that a common offset costs no digits.

    Args:
        logits: of shape `[..., C]`.
        target: one class for all, an integer tensor of shape `[...]`, or a node of the logits' shape that is 1 at the
            class and 0 elsewhere (a leaf of it can be bound anew for each batch).

    Raises:
        ValueError: the target does not fit, or is no class.
    """
    if not logits.rank:
        raise ValueError(f"{logits.label}: PickNegLogSoftmax: expected at least one axis, got a scalar")
    chosen = target if isinstance(target, Node) else _one_hot(logits, torch.as_tensor(target))
    if chosen.shape != logits.shape:
        raise ValueError(f"{chosen.label}: target: expected the logits' shape {logits.shape}, got {chosen.shape}")
    *kept, last = range(1, logits.rank + 1)
    axes = [*kept, last]
    own = LinearNode(logits, chosen, kept, [*kept, -last], [*kept, -last])
    return LogSumExp(ElementwiseNode(logits, own, axes, axes, kept, operation="-"))


def _one_hot(logits: Node, target: Tensor) -> LeafNode:
    num_classes = logits.shape[-1]
    if target.is_floating_point() or bool(((target < 0) | (target >= num_classes)).any()):
        raise ValueError(f"{logits.label}: target: expected classes from 0 to {num_classes - 1}, got {target.tolist()}")
    if target.dim() and tuple(target.shape) != logits.shape[:-1]:
        raise ValueError(f"{logits.label}: target: expected shape {logits.shape[:-1]}, got {tuple(target.shape)}")
    chosen = torch.nn.functional.one_hot(target.long(), num_classes).expand(logits.shape)
    return _constant(chosen, logits, name="target")


def _round(source: Node) -> Node:
    """Return the log-sum-exps of pairs of neighbours along the last axis; a last one without a partner stays."""
    extent = source.shape[-1]
    left = torch.arange(0, extent, 2)
    right = (left + 1).clamp(max=extent - 1)
    *kept, last = range(1, source.rank + 1)
    first, second = (
        _picked(source, _selector(source, places), axes=[*kept, last + 1], last=last) for places in (left, right)
    )
    axes = [*kept, last]
    distance = ElementwiseNode(second, first, axes, axes, axes, operation="-")
    gain: Node = NonlinearNode(distance, Function.parse("softplus"))
    if extent % 2:
        paired = _constant((left != right).double(), source, name="paired")
        gain = ElementwiseNode(gain, paired, axes, axes, [last], operation="*")
    return ElementwiseNode(first, gain, axes, axes, axes, operation="+")


def _selector(source: Node, places: Tensor) -> LeafNode:
    """Return the matrix that picks entries of the last axis."""
    rows = torch.nn.functional.one_hot(places, source.shape[-1])
    return _constant(rows.T, source, name="pick")


def _picked(source: Node, matrix: Node, *, axes: list[int], last: int) -> Node:
    """Return the contraction of the source's last axis with the matrix's first."""
    kept = [index for index in axes if index < last]
    return LinearNode(source, matrix, axes, [*kept, -last], [-last, *[index for index in axes if index > last]])


def _constant(value: Tensor, like: Node, *, name: str) -> LeafNode:
    value = value.to(like.dtype)
    return LeafNode(value.shape, kind=LeafKind.CONSTANT, value=value, name=name)
