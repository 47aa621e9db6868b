"""Terms: the form of a graph in which it is differentiated, simplified and compiled.

Axes have labels instead of signed indices, and labels that the output lacks are summed. An output may have a label
twice (`core[i]` to `out[i, i]`, zero elsewhere), a Kronecker delta that is never multiplied out, or a label that no
factor has, a broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gflownet.autodiff.functions import Function

Labels = tuple[int, ...]
Extents = Mapping[Any, int]  # by label; a label is anything that can be hashed
Labelled = tuple["Term", Sequence[Any]]  # a factor, and a label for each of its axes


class Term:
    """A tensor expression; inputs have a lower `uid`, so sorting by `uid` is a topological order."""

    __slots__ = ("dtype", "inputs", "shape", "uid")
    uid: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    inputs: tuple[Term, ...]

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return math.prod(self.shape)


class Leaf(Term):
    """An argument of the program, number `slot`."""

    __slots__ = ("slot",)
    slot: int


class Alias(Term):
    """An opaque copy of a term, distinct from equal terms, to differentiate by."""

    __slots__ = ()


class Map(Term):
    """A function, entry by entry."""

    __slots__ = ("function",)
    function: Function


class Cast(Term):
    """The entries of another term in this one's dtype."""

    __slots__ = ()


class Apply(Term):
    """A function of whole tensors."""

    __slots__ = ("function",)
    function: Any  # Applied of custom_node.py, which imports this module


class Sum(Term):
    """A sum of terms of one shape, each with its coefficient."""

    __slots__ = ("coefficients", "is_sparse")
    coefficients: tuple[float, ...]
    is_sparse: bool  # every term is mostly zeros


class Einsum(Term):
    """A product of factors, some labels summed; each label of the output occurs once and in a factor."""

    __slots__ = ("extents", "labels", "out")
    labels: tuple[Labels, ...]  # of each factor
    out: Labels
    extents: Labels  # by label


class View(Term):
    """`alpha * source` with axes permuted, repeated or added, but not summed; without a source, of ones."""

    __slots__ = ("alpha", "labels", "out")
    alpha: float
    labels: Labels  # of the source's axes
    out: Labels

    @property
    def is_sparse(self) -> bool:
        """Return whether an output label occurs twice, so that most entries are zero."""
        return len(set(self.out)) < len(self.out)


def ordered(outputs: Iterable[Term], *, above: int = 0) -> list[Term]:
    """Return the outputs and their direct and indirect inputs in topological order, from `uid` `above` on."""
    by_uid: dict[int, Term] = {}
    waiting = list(outputs)
    while waiting:
        term = waiting.pop()
        if term.uid not in by_uid and term.uid >= above:
            by_uid[term.uid] = term
            waiting.extend(term.inputs)
    return [by_uid[uid] for uid in sorted(by_uid)]


def is_zero(term: Term) -> bool:
    """Return whether a term is known to be 0 everywhere."""
    return isinstance(term, View) and term.alpha == 0.0


def is_sparse(term: Term) -> bool:
    """Return whether most entries of a term are 0 because of a delta."""
    return isinstance(term, View) and term.is_sparse


def extents_of(term: View) -> dict[Any, int]:
    """Return the extents of a view's labels."""
    return dict(zip(term.out, term.shape, strict=True))


def representative(same: Mapping[Any, Any], label: Any) -> Any:
    """Return the label that stands for all labels identified with one."""
    while label in same:
        label = same[label]
    return label


def looked_through(alpha: float, factors: Sequence[Labelled]) -> tuple[float, list[Labelled], dict[Any, Any]]:
    """Return the coefficient, the factors without views, and the labels that deltas of the views identify."""
    flat: list[Labelled] = []
    same: dict[Any, Any] = {}
    for term, labels in factors:
        if not isinstance(term, View):
            flat.append((term, labels))
            continue
        alpha *= term.alpha
        outer: dict[int, Any] = {}
        for inner, label in zip(term.out, labels, strict=True):
            label, other = representative(same, label), representative(same, outer.setdefault(inner, label))
            if label != other:
                same[label] = other
        if term.inputs:
            flat.append((term.inputs[0], [outer[inner] for inner in term.labels]))
    return alpha, flat, same


def factor_to_expand(flat: list[Labelled], summed: set[Any], size: int) -> int | None:
    """Return the position of a factor to multiply out: a sum with sparse parts, or a sum that is reduced alone."""
    for k, (term, labels) in enumerate(flat):
        if not isinstance(term, Sum):
            continue
        is_smaller_apart = not summed or (term.size > size and all(_is_spread(part) for part in term.inputs))
        if len(flat) > 1 and any(is_sparse(part) for part in term.inputs) and (term.is_sparse or is_smaller_apart):
            return k
        if len(flat) == 1 and summed and (term.is_sparse or _has_part_without(term, labels, summed)):
            return k
    return None


def _is_spread(part: Term) -> bool:
    """Return whether a part of a sum is larger than its factors: a delta, or a product of vectors."""
    core = part.inputs[0] if isinstance(part, View) and part.inputs else part
    is_outer = isinstance(core, Einsum) and core.size > max(factor.size for factor in core.inputs)
    return is_sparse(part) or is_outer


def _has_part_without(total: Sum, labels: Sequence[Any], summed: set[Any]) -> bool:
    """Return whether a part of a sum lacks a summed axis: then each part is summed separately."""
    axes = [axis for axis, label in enumerate(labels) if label in summed]
    return any(isinstance(t, View) and any(t.out[axis] not in t.labels for axis in axes) for t in total.inputs)
