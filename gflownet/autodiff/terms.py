"""Terms: what a graph of nodes becomes before it is differentiated, simplified and run.

A term is one of a few forms, and equal terms are one object. Signs are gone: an index is a label, and what is not in
the output is summed over. An output may name a label twice (`core[i]` to `out[i, i]`, zero elsewhere): that is how a
Kronecker delta is kept, never multiplied out; or name one that no factor has, which is a broadcast.
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
    """A tensor's formula; inputs have a lower `uid`, so that sorting by it is a topological order."""

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
    """A tensor that is given, number `slot` of them."""

    __slots__ = ("slot",)
    slot: int


class Alias(Term):
    """Another term, which nothing looks into: derivatives with respect to it know it from equal ones."""

    __slots__ = ()


class Map(Term):
    """A function, entry by entry."""

    __slots__ = ("function",)
    function: Function


class Cast(Term):
    """The entries of another term in this one's dtype."""

    __slots__ = ()


class Sum(Term):
    """A sum of terms of one shape, each with its coefficient."""

    __slots__ = ("coefficients", "is_sparse")
    coefficients: tuple[float, ...]
    is_sparse: bool  # every term is mostly zeros


class Einsum(Term):
    """A product of factors, some labels summed over; each label of the output is there once, and a factor has it."""

    __slots__ = ("extents", "labels", "out")
    labels: tuple[Labels, ...]  # of each factor
    out: Labels
    extents: Labels  # by label


class View(Term):
    """`alpha * source`, its axes renamed: permuted, repeated, added, but not summed; without a source, of ones."""

    __slots__ = ("alpha", "labels", "out")
    alpha: float
    labels: Labels  # of the source's axes
    out: Labels

    @property
    def is_sparse(self) -> bool:
        """Return whether an output label is there twice, so that most entries are zero."""
        return len(set(self.out)) < len(self.out)


def ordered(outputs: Iterable[Term], *, above: int = 0) -> list[Term]:
    """Return the terms that the outputs are made of, each after its inputs, from `uid` `above` on."""
    found: dict[int, Term] = {}
    waiting = list(outputs)
    while waiting:
        term = waiting.pop()
        if term.uid not in found and term.uid >= above:
            found[term.uid] = term
            waiting.extend(term.inputs)
    return [found[uid] for uid in sorted(found)]


def is_zero(term: Term) -> bool:
    """Return whether a term is known to be 0 everywhere."""
    return isinstance(term, View) and term.alpha == 0.0


def is_sparse(term: Term) -> bool:
    """Return whether most entries of a term are known to be 0, as a delta says."""
    return isinstance(term, View) and term.is_sparse


def extents_of(term: View) -> dict[Any, int]:
    """Return the extents of a view's labels."""
    return dict(zip(term.out, term.shape, strict=True))
