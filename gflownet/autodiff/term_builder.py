"""Builds simplified terms; equal terms are one object."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from gflownet.autodiff import functions, rules
from gflownet.autodiff.custom_node import Applied
from gflownet.autodiff.functions import Constant, Function, Product, X, multiply
from gflownet.autodiff.rules import Form
from gflownet.autodiff.terms import (
    Alias,
    Apply,
    Cast,
    Einsum,
    Extents,
    Labelled,
    Labels,
    Leaf,
    Map,
    Sum,
    Term,
    View,
    extents_of,
    factor_to_expand,
    is_sparse,
    is_zero,
    looked_through,
    ordered,
    representative,
)


class Terms:
    """Builds simplified terms and caches them, so that equal terms are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Term] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of terms built."""
        return self._count

    def _new(
        self,
        kind: type[Term],
        shape: Sequence[int],
        dtype: torch.dtype,
        inputs: tuple[Term, ...] = (),
        **fields: object,
    ) -> Term:
        term = kind()
        term.shape, term.dtype, term.inputs = tuple(shape), dtype, inputs
        term.uid = self._count
        self._count += 1
        for name, value in fields.items():
            setattr(term, name, value)
        return term

    def leaf(self, slot: int, shape: Sequence[int], dtype: torch.dtype) -> Term:
        """Return argument number `slot` of the program."""
        key = ("leaf", slot)
        if key not in self._known:
            self._known[key] = self._new(Leaf, shape, dtype, slot=slot)
        return self._known[key]

    def form(self, item: Term) -> Form:
        """Return the operation that computes a term.

        Raises:
            TypeError: the term is a leaf.
        """
        match item:
            case Einsum():
                return rules.Product(item.labels, item.out, dict(enumerate(item.extents)))
            case View():
                return rules.Combination((item.alpha,), (item.labels,)[: len(item.inputs)], item.out, extents_of(item))
            case Sum():
                labels = tuple(range(len(item.shape)))
                repeated = (labels,) * len(item.inputs)
                return rules.Combination(item.coefficients, repeated, labels, dict(enumerate(item.shape)))
            case Map():
                return rules.Entrywise(item.function)
            case Apply():
                return rules.Call(item.function)
            case Cast() | Alias():
                return rules.Conversion(item.dtype)
            case _:
                raise TypeError(f"{type(item).__name__}: expected a term that is computed from others")

    def ordered(self, outputs: Iterable[Term], sources: Collection[Term]) -> list[Term]:
        """Return the terms that outputs are made of, each after its inputs, without those older than all sources."""
        return ordered(outputs, above=min((source.uid for source in sources), default=0))

    def combine(
        self,
        parts: Sequence[tuple[float, Term, Sequence[Any]]],
        out: Sequence[Any],
        extents: Extents,
        dtype: torch.dtype,
    ) -> Term:
        """Return a linear combination, see `Algebra.combine`."""
        scaled = [
            self.scale(alpha, term)
            if labels == out
            else self.einsum([(term, labels)], out, extents, dtype, alpha=alpha)
            for alpha, term, labels in parts
        ]
        if len(scaled) == 1:
            return scaled[0]
        return self.add([(1.0, term) for term in scaled], [extents[label] for label in out], dtype)

    def multiply(
        self, factors: Sequence[tuple[Term, Sequence[Any]]], out: Sequence[Any], extents: Extents, dtype: torch.dtype
    ) -> Term:
        """Return a product, see `Algebra.multiply`."""
        return self.einsum(factors, out, extents, dtype)

    def alias(self, source: Term) -> Term:
        """Return a new opaque copy of a term."""
        return self._new(Alias, source.shape, source.dtype, (source,))

    def full(self, value: float, shape: Sequence[int], dtype: torch.dtype) -> Term:
        """Return the constant tensor."""
        return self.view(value, None, (), tuple(range(len(shape))), dict(enumerate(shape)), dtype)

    def identity(self, shape: Sequence[int], dtype: torch.dtype) -> Term:
        """Return `delta[i..., j...]`, which is 1 where i... = j...; its shape is `shape` twice."""
        labels = tuple(range(len(shape)))
        return self.view(1.0, None, (), labels + labels, dict(enumerate(shape)), dtype)

    def cast(self, source: Term, dtype: torch.dtype) -> Term:
        """Return a term's entries in another dtype."""
        if source.dtype == dtype:
            return source
        if isinstance(source, View) and (not source.inputs or source.alpha == 1.0):
            inner = self.cast(source.inputs[0], dtype) if source.inputs else None
            return self.view(source.alpha, inner, source.labels, source.out, extents_of(source), dtype)
        key = ("cast", source.uid, dtype)
        if key not in self._known:
            self._known[key] = self._new(Cast, source.shape, dtype, (source,))
        return self._known[key]

    def call(self, function: Applied, inputs: Sequence[Term]) -> Term:
        """Return a function of whole tensors."""
        key = ("call", function, *(source.uid for source in inputs))
        if key not in self._known:
            self._known[key] = self._new(Apply, function.shape, function.dtype, tuple(inputs), function=function)
        return self._known[key]

    def map(self, function: Function, source: Term) -> Term:
        """Return a function of every entry; coefficients and linear functions become views and sums."""
        if function is X:
            return source
        if isinstance(function, Constant):
            return self.full(function.value, source.shape, source.dtype)
        if isinstance(function, Product) and function.coefficient != 1.0:
            return self.scale(function.coefficient, self.map(multiply(function.factors), source))
        if isinstance(function, functions.Sum) and all(term is X for _, term in function.terms):
            ones = self.full(1.0, source.shape, source.dtype)
            parts = [(coefficient, source) for coefficient, _ in function.terms]
            return self.add([*parts, (function.constant, ones)], source.shape, source.dtype)
        return self._map(function, source)

    def _map(self, function: Function, source: Term) -> Term:
        """Return a function of every entry, applied before axes are permuted and added."""
        if isinstance(source, View):
            if not source.inputs and not source.is_sparse:
                at = torch.tensor(source.alpha, dtype=source.dtype)
                return self.full(function(at).item(), source.shape, source.dtype)
            if source.inputs and not source.is_sparse and len(set(source.labels)) == len(source.labels):
                inner = self._plain_map(function, self.scale(source.alpha, source.inputs[0]))
                return self.view(1.0, inner, source.labels, source.out, extents_of(source), source.dtype)
        return self._plain_map(function, source)

    def _plain_map(self, function: Function, source: Term) -> Term:
        key = ("map", function, source.uid)
        if key not in self._known:
            self._known[key] = self._new(Map, source.shape, source.dtype, (source,), function=function)
        return self._known[key]

    def scale(self, alpha: float, source: Term) -> Term:
        """Return a multiple of a term."""
        if alpha == 1.0:
            return source
        if isinstance(source, View):
            inner = source.inputs[0] if source.inputs else None
            return self.view(alpha * source.alpha, inner, source.labels, source.out, extents_of(source), source.dtype)
        labels = tuple(range(len(source.shape)))
        return self.view(alpha, source, labels, labels, dict(enumerate(source.shape)), source.dtype)

    def view(
        self,
        alpha: float,
        source: Term | None,
        labels: Sequence[Any],
        out: Sequence[Any],
        extents: Extents,
        dtype: torch.dtype,
    ) -> Term:
        """Return `alpha * source` with axes permuted, repeated or added; without a source, of ones.

        `labels` are of the axes of the source, `out` of the result, with all of `labels`. The view of 0 has no source.
        """
        if alpha == 0.0:
            source, labels, out = None, (), range(len(shape := [extents[label] for label in out]))
            extents = dict(enumerate(shape))
        number: dict[Any, int] = {}
        new_out = tuple([number.setdefault(label, len(number)) for label in out])
        new_labels = tuple([number[label] for label in labels])
        shape = tuple([extents[label] for label in out])
        if source is not None and alpha == 1.0 and new_labels == new_out == tuple(range(len(new_out))):
            return source
        if source is not None and isinstance(source, View):
            return self.einsum([(source, labels)], out, extents, dtype, alpha=alpha)
        key = ("view", alpha, None if source is None else source.uid, new_labels, new_out, shape, dtype)
        if key not in self._known:
            inputs = () if source is None else (source,)
            self._known[key] = self._new(View, shape, dtype, inputs, alpha=alpha, labels=new_labels, out=new_out)
        return self._known[key]

    def einsum(
        self,
        factors: Sequence[Labelled],
        out: Sequence[Any],
        extents: Extents,
        dtype: torch.dtype,
        *,
        alpha: float = 1.0,
    ) -> Term:
        """Return `alpha * product of factors`, summed over the labels that the output lacks.

        Coefficients are hoisted, views are resolved, a delta renames a label, a summed label without factors becomes
        its extent, and a factor that is a sum of sparse terms is multiplied out. A label twice in one factor is its
        diagonal; a label may occur twice in the output (a delta) or in no factor (a broadcast).
        """
        alpha, flat, same = looked_through(alpha, factors)
        if same:
            renamed: list[Labelled] = [
                (term, [representative(same, label) for label in labels]) for term, labels in flat
            ]
            flat = renamed
            out = [representative(same, label) for label in out]
        outer, used = set(out), {label for _, labels in flat for label in labels}
        present = {representative(same, label) for _, labels in factors for label in labels}
        for label in present - outer - used:
            alpha *= extents[label]
        if alpha == 0.0 or not flat:
            return self.view(alpha, None, (), out, extents, dtype)
        to_expand = factor_to_expand(flat, used - outer, math.prod([extents[label] for label in out]))
        if to_expand is not None:
            return self._expanded(to_expand, flat, out, extents, dtype, alpha)
        if len(flat) == 1 and used <= outer:
            return self.view(alpha, flat[0][0], flat[0][1], out, extents, dtype)
        core, core_labels = self._core(flat, out, extents, dtype)
        return self.view(alpha, core, core_labels, out, extents, dtype)

    def _core(
        self, flat: list[Labelled], out: Sequence[Any], extents: Extents, dtype: torch.dtype
    ) -> tuple[Term, list[Any]]:
        position = {label: k for k, label in reversed(list(enumerate(out)))}
        if len(flat) > 1:
            flat.sort(key=lambda factor: (factor[0].uid, [position.get(label, -1) for label in factor[1]]))
        number: dict[Any, int] = {}
        labels = tuple([tuple([number.setdefault(label, len(number)) for label in axes]) for _, axes in flat])
        # in the layout of the first request; for other layouts it is a view
        core_out = tuple([number[label] for label in dict.fromkeys(out) if label in number])
        key = ("einsum", tuple([term.uid for term, _ in flat]), labels, tuple(sorted(core_out)))
        core, names = self._known.get(key), list(number)
        if core is None:
            shape = [extents[names[k]] for k in core_out]
            inputs = tuple([term for term, _ in flat])
            sizes = tuple([extents[label] for label in names])
            core = self._new(Einsum, shape, dtype, inputs, labels=labels, out=core_out, extents=sizes)
            self._known[key] = core
        assert isinstance(core, Einsum)
        return core, [names[k] for k in core.out]

    def _expanded(
        self, which: int, flat: list[Labelled], out: Sequence[Any], extents: Extents, dtype: torch.dtype, alpha: float
    ) -> Term:
        total, labels = flat[which]
        assert isinstance(total, Sum)
        other_factors = flat[:which] + flat[which + 1 :]
        parts = [self.einsum([*other_factors, (term, labels)], out, extents, dtype) for term in total.inputs]
        scaled = [(alpha * coefficient, part) for coefficient, part in zip(total.coefficients, parts, strict=True)]
        return self.add(scaled, [extents[label] for label in out], dtype)

    def add(self, terms: Iterable[tuple[float, Term]], shape: Sequence[int], dtype: torch.dtype) -> Term:
        """Return a sum of coefficients times terms of one shape; common deltas and broadcast axes are factored out."""
        coefficients: dict[Term, float] = {}
        waiting = list(reversed(list(terms)))
        while waiting:
            coefficient, term = waiting.pop()
            if is_zero(term):
                continue
            if isinstance(term, Sum) and any(is_sparse(part) for part in term.inputs):
                parts = zip(term.coefficients, term.inputs, strict=True)
                waiting.extend([(coefficient * inner, part) for inner, part in parts])
                continue
            if isinstance(term, View) and term.alpha != 1.0:
                coefficient *= term.alpha
                source = term.inputs[0] if term.inputs else None
                term = self.view(1.0, source, term.labels, term.out, extents_of(term), term.dtype)
            coefficients[term] = coefficients.get(term, 0.0) + coefficient
        left = [(coefficient, term) for term, coefficient in coefficients.items() if coefficient != 0.0]
        if not left:
            return self.full(0.0, shape, dtype)
        if len(left) == 1:
            return self.scale(*left[0])
        left = self._merged(left, shape, dtype)
        if len(left) == 1:
            return self.scale(*left[0])
        if all(isinstance(term, View) for _, term in left):
            factored = self._factored([(c, term) for c, term in left if isinstance(term, View)], shape, dtype)
            if factored is not None:
                return factored
        return self._sum(left, shape, dtype)

    def _merged(
        self, parts: list[tuple[float, Term]], shape: Sequence[int], dtype: torch.dtype
    ) -> list[tuple[float, Term]]:
        """Return the parts of a sum, parts with the same deltas merged into one."""
        groups: dict[Labels, list[tuple[float, Term]]] = {}
        for coefficient, term in parts:
            pattern = tuple([term.out.index(label) for label in term.out]) if isinstance(term, View) else ()
            if len(set(pattern)) < len(pattern):
                groups.setdefault(pattern, []).append((coefficient, term))
        if len(groups) == 0 or all(len(group) == 1 or len(group) == len(parts) for group in groups.values()):
            return parts
        sparse = {id(term) for group in groups.values() for _, term in group}
        merged = [part for part in parts if id(part[1]) not in sparse]
        for group in groups.values():
            merged.extend(group if len(group) == 1 else [(1.0, self.add(group, shape, dtype))])
        return merged

    def _sum(self, left: list[tuple[float, Term]], shape: Sequence[int], dtype: torch.dtype) -> Term:
        left.sort(key=lambda pair: pair[1].uid)
        coefficients, inputs = tuple([c for c, _ in left]), tuple([term for _, term in left])
        key = ("sum", coefficients, tuple([term.uid for term in inputs]))
        if key not in self._known:
            sparse = all(is_sparse(term) for term in inputs)
            self._known[key] = self._new(Sum, shape, dtype, inputs, coefficients=coefficients, is_sparse=sparse)
        return self._known[key]

    def _factored(self, views: list[tuple[float, View]], shape: Sequence[int], dtype: torch.dtype) -> Term | None:
        axes = range(len(shape))
        signatures = [tuple([view.out[axis] for _, view in views]) for axis in axes]
        first = {signature: axis for axis, signature in reversed(list(enumerate(signatures)))}
        # an axis that no source has, and that no delta of one of the views ties to an axis of another signature
        broadcast = [
            axis
            for axis in axes
            if all(view.out[axis] not in view.labels for _, view in views)
            and all(view.out.count(view.out[axis]) == signatures.count(signatures[axis]) for _, view in views)
        ]
        if len(first) == len(shape) and not broadcast:
            return None
        remaining = [axis for axis in sorted(first.values()) if axis not in broadcast]
        inner_shape = [shape[axis] for axis in remaining]
        inner = [
            (c, self.view(1.0, source, view.labels, [view.out[axis] for axis in remaining], extents_of(view), dtype))
            for c, view in views
            for source in (view.inputs or (None,))
        ]
        total = self.add(inner, inner_shape, dtype)
        out = [first[signature] for signature in signatures]
        return self.einsum([(total, remaining)], out, dict(enumerate(shape)), dtype)
