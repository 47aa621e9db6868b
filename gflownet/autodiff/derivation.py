"""Derivatives of terms: adjoints, tangents, and a Hessian carried back from one bottleneck to the one before.

An adjoint of a term `t` is laid out `[t..., H]`, a tangent likewise; H is the target's axes in reverse mode and those
of what one differentiates by in forward mode. The reason for a second derivation beside `derivatives.py`, which
derives node by node: deltas vanish as they arise, and equal subexpressions are met once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gflownet.autodiff.nodes import is_continuous
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import (
    Alias,
    Cast,
    Einsum,
    Labelled,
    Leaf,
    Map,
    Sum,
    Term,
    View,
    extents_of,
    ordered,
)

Shape = tuple[int, ...]


def dependents(outputs: Iterable[Term], sources: Collection[Term]) -> list[Term]:
    """Return the terms between sources and outputs, both included, each after its inputs."""
    found: set[Term] = set()
    order: list[Term] = []
    for term in ordered(outputs, above=min((source.uid for source in sources), default=0)):
        if is_continuous(term.dtype) and (term in sources or not found.isdisjoint(term.inputs)):
            found.add(term)
            order.append(term)
    return order


def adjoints(
    terms: Terms, seeds: Mapping[Term, Term], sources: Collection[Term], extra: Shape = ()
) -> dict[Term, Term]:
    """Return `sum over seeds of d <seed's adjoint, seed> / d term` for every term between sources and seeds.

    Args:
        terms: builds terms.
        seeds: outputs and their adjoints, `[output..., H]`.
        sources: with respect to what.
        extra: the extents of H.
    """
    order = dependents(seeds, sources)
    between = set(order)
    parts: dict[Term, list[Term]] = {term: [seed] for term, seed in seeds.items()}
    found: dict[Term, Term] = {}
    for term in reversed(order):
        if term not in parts:
            continue
        added = parts.pop(term)
        adjoint = terms.add([(1.0, part) for part in added], term.shape + extra, term.dtype)
        found[term] = adjoint
        for source, part in _pulled_back(terms, term, adjoint, between, extra):
            parts.setdefault(source, []).append(part)
    return found


def _pulled_back(
    terms: Terms, term: Term, adjoint: Term, wanted: Collection[Term], extra: Shape
) -> Iterable[tuple[Term, Term]]:
    """Yield, for each input of a term that is wanted, a part of its adjoint."""
    h = tuple(("h", k) for k in range(len(extra)))
    sizes = dict(zip(h, extra, strict=True))
    match term:
        case Einsum():
            factors = list(zip(term.inputs, term.labels, strict=True))
            extents = {**dict(enumerate(term.extents)), **sizes}
            for k, (source, labels) in enumerate(factors):
                if source in wanted:
                    others = factors[:k] + factors[k + 1 :]
                    found = [(adjoint, (*term.out, *h)), *others]
                    yield source, terms.einsum(found, (*labels, *h), extents, term.dtype)
        case View():
            for source in term.inputs:
                if source in wanted:
                    factors = [(adjoint, (*term.out, *h))]
                    extents = {**extents_of(term), **sizes}
                    yield source, terms.einsum(factors, (*term.labels, *h), extents, term.dtype, alpha=term.alpha)
        case Sum():
            for coefficient, source in zip(term.coefficients, term.inputs, strict=True):
                if source in wanted:
                    yield source, terms.scale(coefficient, adjoint)
        case Map() if term.inputs[0] in wanted:
            slope = terms.map(term.function.derivative(), term.inputs[0])
            yield term.inputs[0], scaled_rows(terms, adjoint, slope, extra)
        case Cast() | Alias():
            for source in term.inputs:
                if source in wanted:
                    yield source, terms.cast(adjoint, source.dtype)
        case _:
            return


def scaled_rows(terms: Terms, matrix: Term, row_factors: Term, extra: Shape) -> Term:
    """Return `matrix[I, H] * row_factors[I]`."""
    rank = len(row_factors.shape)
    labels = tuple(range(rank + len(extra)))
    extents = dict(enumerate(matrix.shape))
    return terms.einsum([(matrix, labels), (row_factors, labels[:rank])], labels, extents, matrix.dtype)


def tangents(terms: Terms, outputs: Sequence[Term], seeds: Mapping[Term, Term], extra: Shape = ()) -> list[Term]:
    """Return the tangent of each output, `[output..., H]`, zero where it does not depend on the seeds.

    Args:
        terms: builds terms.
        outputs: terms.
        seeds: sources and their tangents, `[source..., H]`.
        extra: the extents of H.
    """
    found: dict[Term, Term] = dict(seeds)
    for term in dependents(outputs, seeds.keys()):
        if term not in seeds:
            parts = _pushed_forward(terms, term, found, extra)
            found[term] = terms.add([(1.0, part) for part in parts], term.shape + extra, term.dtype)
    return [found.get(output) or terms.full(0.0, output.shape + extra, output.dtype) for output in outputs]


def _pushed_forward(terms: Terms, term: Term, known: Mapping[Term, Term], extra: Shape) -> Iterable[Term]:
    """Yield the parts of a term's tangent, one for each input that has one."""
    h = tuple(("h", k) for k in range(len(extra)))
    sizes = dict(zip(h, extra, strict=True))
    match term:
        case Einsum():
            factors: list[Labelled] = list(zip(term.inputs, term.labels, strict=True))
            extents = {**dict(enumerate(term.extents)), **sizes}
            for k, (source, labels) in enumerate(factors):
                if source in known:
                    found = [*factors[:k], (known[source], (*labels, *h)), *factors[k + 1 :]]
                    yield terms.einsum(found, (*term.out, *h), extents, term.dtype)
        case View():
            factors = [(known[term.inputs[0]], (*term.labels, *h))]
            yield terms.einsum(factors, (*term.out, *h), {**extents_of(term), **sizes}, term.dtype, alpha=term.alpha)
        case Sum():
            for coefficient, source in zip(term.coefficients, term.inputs, strict=True):
                if source in known:
                    yield terms.scale(coefficient, known[source])
        case Map():
            slope = terms.map(term.function.derivative(), term.inputs[0])
            yield scaled_rows(terms, known[term.inputs[0]], slope, extra)
        case Cast() | Alias():
            yield terms.cast(known[term.inputs[0]], term.dtype)


def gradient(terms: Terms, output: Term, sources: Sequence[Term]) -> list[Term]:
    """Return the gradients of a scalar, zero where it does not depend on a source."""
    found = adjoints(terms, {output: terms.full(1.0, (), output.dtype)}, set(sources))
    return [found.get(source) or terms.full(0.0, source.shape, source.dtype) for source in sources]


def reverse_jacobian(terms: Terms, output: Term, source: Term) -> Term:
    """Return `d output / d source`, `[source..., output...]`, in reverse mode."""
    found = adjoints(terms, {output: terms.identity(output.shape, output.dtype)}, {source}, output.shape)
    return found.get(source) or terms.full(0.0, source.shape + output.shape, source.dtype)


def forward_jacobian(terms: Terms, output: Term, source: Term) -> Term:
    """Return `d output / d source`, `[output..., source...]`, in forward mode."""
    seeds = {source: terms.identity(source.shape, source.dtype)}
    return tangents(terms, [output], seeds, source.shape)[0]


def without_aliases(terms: Terms, outputs: Sequence[Term]) -> list[Term]:
    """Return terms with what stands under another name in its place."""
    replacements: dict[Term, Term] = {}
    for term in ordered(outputs):
        if isinstance(term, Alias):
            replacements[term] = substituted(terms, term.inputs[0], replacements)
    return [substituted(terms, output, replacements) for output in outputs]


def substituted(terms: Terms, output: Term, replacements: Mapping[Term, Term]) -> Term:
    """Return a term with others in the place of some that it is made of."""
    if not replacements:
        return output
    found: dict[Term, Term] = dict(replacements)
    affected = set(dependents([output], replacements.keys()))
    for term in ordered([output]):
        if term in affected and term not in found:
            found[term] = _rebuilt(terms, term, [found.get(source, source) for source in term.inputs])
    return found.get(output, output)


def _rebuilt(terms: Terms, term: Term, inputs: list[Term]) -> Term:
    match term:
        case Einsum():
            factors: list[Labelled] = list(zip(inputs, term.labels, strict=True))
            return terms.einsum(factors, term.out, dict(enumerate(term.extents)), term.dtype)
        case View():
            return terms.einsum([(inputs[0], term.labels)], term.out, extents_of(term), term.dtype, alpha=term.alpha)
        case Sum():
            return terms.add(zip(term.coefficients, inputs, strict=True), term.shape, term.dtype)
        case Map():
            return terms.map(term.function, inputs[0])
        case Cast():
            return terms.cast(inputs[0], term.dtype)
        case _:
            assert isinstance(term, Alias | Leaf)
            return inputs[0] if inputs else term
