"""Hessians of terms in cross-country mode (Laue, Mitterreiter, Giesen, AAAI 2020).

If all paths from x to a scalar go through z, `H_x = J^T H_z J + sum g_z d2z/dx2` with J the Jacobian of z by x and g_z
the gradient by z. The second part, the curvature at x, is zero if z is linear in x, and diagonal if z is an entrywise
function. So a Hessian is a sum of congruences, one for each bottleneck with a curvature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

from gflownet.autodiff.contraction import contraction_order
from gflownet.autodiff.derivatives import adjoints, dependents, forward_jacobian, reverse_jacobian, tangents
from gflownet.autodiff.rules import times_rows, value
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Alias, Cast, Einsum, Labelled, Map, Sum, Term, View, is_zero, ordered


def hessian(terms: Terms, output: Term, first: Term, second: Term) -> Term:
    """Return `d2 output / d first d second`, `[output..., first..., second...]`."""
    if first is second and not output.shape:
        return _carried_back(terms, output, first)
    jacobian = reverse_jacobian(terms, output, first)
    twice = tangents(terms, [jacobian], {second: terms.identity(second.shape, second.dtype)}, second.shape)[0]
    labels, start, end = tuple(range(len(twice.shape))), len(first.shape), len(jacobian.shape)
    out = labels[start:end] + labels[:start] + labels[end:]
    return terms.einsum([(twice, labels)], out, dict(enumerate(twice.shape)), twice.dtype)


def bottlenecks(terms: Terms, output: Term, source: Term) -> list[Term]:
    """Return the terms on all paths from a source to an output, from the source to the output."""
    order = dependents(terms, [output], {source})
    if not order or order[0] is not source:
        return []
    last_use = {term: term.uid for term in order}
    for term in order:
        for inner in term.inputs:
            if inner in last_use:
                last_use[inner] = max(last_use[inner], term.uid)
    passed: list[Term] = []
    furthest = source.uid
    for term in order:
        if furthest <= term.uid:
            passed.append(term)
        furthest = max(furthest, last_use[term])
    return passed


def _carried_back(terms: Terms, output: Term, source: Term) -> Term:
    """Return the Hessian of a scalar by one source."""
    curvatures = _curvatures(terms, output, source)
    if not curvatures:
        return terms.full(0.0, source.shape * 2, source.dtype)
    nested = _nested(terms, curvatures, source)
    if len(curvatures) == 1 or 2 * source.size > max(station.size for station, _ in curvatures):
        return nested
    # for a source of few entries and wide layers, direct congruences may be less work than layer by layer
    return min([nested, _direct(terms, curvatures, source)], key=lambda term: sum(map(_work, ordered([term]))))


def _curvatures(terms: Terms, output: Term, source: Term) -> list[tuple[Term, Term]]:
    """Return the bottlenecks with a curvature and their curvatures, from the output to the source."""
    stations = bottlenecks(terms, output, source)
    slopes = adjoints(terms, {output: terms.full(1.0, (), output.dtype)}, {source})
    curvatures: list[tuple[Term, Term]] = []
    for before, after in reversed(list(pairwise(stations))):
        curvature = _curvature(terms, before, after, slopes[after]) if after in slopes else None
        if curvature is not None and not is_zero(curvature):
            curvatures.append((before, curvature))
    return curvatures


def _nested(terms: Terms, curvatures: Sequence[tuple[Term, Term]], source: Term) -> Term:
    """Return the Hessian carried back from bottleneck to bottleneck; Jacobians between them are composed."""
    (reached, inner), *remaining = curvatures
    for station, curvature in remaining:
        carried = _congruent(terms, inner, _jacobian(terms, reached, station), station)
        inner = terms.add([(1.0, carried), (1.0, curvature)], station.shape * 2, station.dtype)
        reached = station
    return inner if reached is source else _congruent(terms, inner, _jacobian(terms, reached, source), source)


def _direct(terms: Terms, curvatures: Sequence[tuple[Term, Term]], source: Term) -> Term:
    """Return the Hessian as a sum of congruences with the Jacobian of each bottleneck by the source."""
    stations = [station for station, _ in curvatures]
    seeds = {source: terms.identity(source.shape, source.dtype)}
    jacobians = tangents(terms, stations, seeds, source.shape)
    parts = [
        (1.0, _congruent(terms, curvature, (jacobian, False), source))
        for (_, curvature), jacobian in zip(curvatures, jacobians, strict=True)
    ]
    return terms.add(parts, source.shape * 2, source.dtype)


def _jacobian(terms: Terms, after: Term, before: Term) -> tuple[Term, bool]:
    """Return a Jacobian, derived from the end with fewer entries, and whether the axes of `before` come first."""
    if before.size > after.size:
        return reverse_jacobian(terms, after, before), True
    return forward_jacobian(terms, after, before), False


def _congruent(terms: Terms, inner: Term, jacobian: tuple[Term, bool], before: Term) -> Term:
    """Return `J^T inner J`, `[before..., before...]`."""
    matrix, is_before_first = jacobian
    shape = inner.shape[: len(inner.shape) // 2]
    m, n = len(shape), len(before.shape)
    labels = tuple(range(2 * (m + n)))
    rows, columns = labels[:m], labels[m : 2 * m]
    left, right = labels[2 * m : 2 * m + n], labels[2 * m + n :]
    extents = dict(zip(labels, (*shape * 2, *before.shape * 2), strict=True))
    ends = (left + rows, right + columns) if is_before_first else (rows + left, columns + right)
    inner, matrix = terms.cast(inner, before.dtype), terms.cast(matrix, before.dtype)
    factors: list[Labelled] = [(matrix, ends[0]), (inner, rows + columns), (matrix, ends[1])]
    return terms.einsum(factors, left + right, extents, before.dtype)


def _work(term: Term) -> float:
    """Return an estimate of the multiplications of a term without those of its inputs; an addition counts as one."""
    if not isinstance(term, Einsum):
        return term.size
    waiting: list[tuple[int, ...]] = [tuple(labels) for labels in term.labels]
    extents = dict(enumerate(term.extents))
    total = 0.0
    for positions in contraction_order(waiting, term.out, extents) if len(waiting) > 1 else []:
        both = dict.fromkeys(label for k in positions for label in waiting[k])
        total += prod(extents[label] for label in both)
        remaining_labels = [labels for k, labels in enumerate(waiting) if k not in positions]
        needed = set(term.out).union(*remaining_labels)
        waiting = [*remaining_labels, tuple(label for label in both if label in needed)]
    return total or prod(term.extents)


def _curvature(terms: Terms, before: Term, after: Term, slope: Term) -> Term | None:
    """Return `sum slope * d2 after / d before2`, None where `after` is linear in `before`."""
    is_one_step = len(dependents(terms, [after], {before})) == 2
    if is_one_step and isinstance(after, View | Sum | Cast | Alias):
        return None
    if is_one_step and isinstance(after, Einsum) and after.inputs.count(before) == 1:
        return None
    if is_one_step and isinstance(after, Map):
        second = terms.map(after.function.derivative().derivative(), before)
        diagonal = times_rows(terms, slope, second)
        labels = tuple(range(len(before.shape)))
        extents = dict(enumerate(before.shape))
        return terms.einsum([(diagonal, labels)], labels + labels, extents, before.dtype)
    # the slope may depend on `before` and be a part of `after`: an alias holds it fixed
    fixed = terms.alias(slope)
    gradient_before = adjoints(terms, {after: fixed}, {before})[before]
    held = terms.full(0.0, fixed.shape + before.shape, fixed.dtype)
    seeds = {before: terms.identity(before.shape, before.dtype), fixed: held}
    curved = tangents(terms, [gradient_before], seeds, before.shape)[0]
    return substituted(terms, curved, {fixed: slope})


def without_aliases(terms: Terms, outputs: Sequence[Term]) -> list[Term]:
    """Return terms with every alias replaced by its source."""
    replacements: dict[Term, Term] = {}
    for term in ordered(outputs):
        if isinstance(term, Alias):
            replacements[term] = substituted(terms, term.inputs[0], replacements)
    return [substituted(terms, output, replacements) for output in outputs]


def substituted(terms: Terms, output: Term, replacements: Mapping[Term, Term]) -> Term:
    """Return a term with some of its inputs, direct or indirect, replaced."""
    if not replacements:
        return output
    rebuilt: dict[Term, Term] = dict(replacements)
    affected = set(dependents(terms, [output], replacements.keys()))
    for term in ordered([output]):
        if term in affected and term not in rebuilt:
            inputs = [rebuilt.get(source, source) for source in term.inputs]
            rebuilt[term] = value(terms, terms.form(term), inputs, term.dtype) if inputs else term
    return rebuilt.get(output, output)
