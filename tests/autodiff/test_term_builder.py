"""Terms: equal ones are one object, deltas and zeros go, coefficients are gathered."""

from __future__ import annotations

import pytest
import torch

from gflownet.autodiff.functions import Function
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Einsum, Map, Sum, Term, View, is_zero, ordered

DOUBLE = torch.float64


def leaf(terms: Terms, slot: int, *shape: int) -> Term:
    return terms.leaf(slot, shape, DOUBLE)


def einsum(terms: Terms, text: str, *factors: Term, alpha: float = 1.0, **extents: int) -> Term:
    """Return an einsum written as `ij,j->i`; extents of labels that no factor has by name."""
    inputs, out = text.split("->")
    labelled = list(zip(factors, inputs.split(","), strict=True))
    sizes = {label: n for factor, labels in labelled for label, n in zip(labels, factor.shape, strict=True)}
    return terms.einsum(labelled, out, {**sizes, **extents}, DOUBLE, alpha=alpha)


def test_equal_terms_are_one_object() -> None:
    terms = Terms()
    a, b = leaf(terms, 0, 3, 4), leaf(terms, 1, 4)
    assert einsum(terms, "ij,j->i", a, b) is einsum(terms, "q,pq->p", b, a)
    assert terms.map(Function.parse("tanh"), b) is terms.map(Function.parse("tanh(x)"), b)
    assert terms.add([(2.0, b), (1.0, b)], (4,), DOUBLE) is terms.scale(3.0, b)


def test_product_in_two_layouts_is_one_term() -> None:
    terms = Terms()
    a, b = leaf(terms, 0, 3, 4), leaf(terms, 1, 4, 5)
    straight, turned = einsum(terms, "ij,jk->ik", a, b), einsum(terms, "ij,jk->ki", a, b)
    assert isinstance(turned, View)
    assert turned.inputs == (straight,)


def test_coefficients_are_hoisted() -> None:
    terms = Terms()
    a, b = leaf(terms, 0, 3), leaf(terms, 1, 3)
    product = einsum(terms, "i,i->", terms.scale(2.0, a), terms.scale(-0.5, b), alpha=3.0)
    assert isinstance(product, View)
    assert product.alpha == -3.0
    assert product.inputs == (einsum(terms, "i,i->", a, b),)


@pytest.mark.parametrize("function", ["exp", "tanh"])
def test_function_is_applied_before_broadcast(function: str) -> None:
    terms = Terms()
    broadcast = einsum(terms, "i->ji", leaf(terms, 0, 3), j=100)
    mapped = terms.map(Function.parse(function), broadcast)
    assert isinstance(mapped, View)
    assert isinstance(mapped.inputs[0], Map)
    assert mapped.inputs[0].shape == (3,)


def test_function_of_delta_covers_zeros() -> None:
    terms = Terms()
    diagonal = einsum(terms, "i->ii", leaf(terms, 0, 3))
    mapped = terms.map(Function.parse("exp"), diagonal)
    assert isinstance(mapped, Map)
    assert mapped.inputs == (diagonal,)


def test_zeros_fold() -> None:
    terms = Terms()
    a, zero = leaf(terms, 0, 3), terms.full(0.0, (3,), DOUBLE)
    assert is_zero(einsum(terms, "i,i->", a, zero))
    assert is_zero(terms.scale(0.0, a))
    assert terms.add([(1.0, a), (5.0, zero)], (3,), DOUBLE) is a
    assert is_zero(terms.add([(1.0, a), (-1.0, a)], (3,), DOUBLE))


def test_summed_label_without_factor_becomes_extent() -> None:
    terms = Terms()
    a = leaf(terms, 0, 3)
    summed = einsum(terms, "ij->i", einsum(terms, "i->ij", a, j=7))
    assert summed is terms.scale(7.0, a)
    trace = einsum(terms, "ii->", terms.identity((5,), DOUBLE))
    assert trace is terms.full(5.0, (), DOUBLE)


def test_delta_renames_label() -> None:
    terms = Terms()
    a, delta = leaf(terms, 0, 3, 4), terms.identity((4,), DOUBLE)
    assert einsum(terms, "ij,jk->ik", a, delta) is a
    scaled = einsum(terms, "i,ij->ij", leaf(terms, 1, 4), delta)  # diag(v)
    assert einsum(terms, "ij,jk->ik", a, scaled) is einsum(terms, "ij,j->ij", a, leaf(terms, 1, 4))


def test_common_deltas_are_factored_out() -> None:
    terms = Terms()
    parts = [einsum(terms, "i->ii", leaf(terms, slot, 4)) for slot in range(2)]
    total = terms.add([(1.0, part) for part in parts], (4, 4), DOUBLE)
    assert isinstance(total, View)
    assert total.out == (0, 0)
    assert isinstance(total.inputs[0], Sum)
    assert total.inputs[0].shape == (4,)


def test_axis_of_one_delta_is_not_a_common_broadcast() -> None:
    # delta[j,k] a[i] + delta[i,k] a[j]: no source has k, and yet k matters
    terms = Terms()
    a, delta = leaf(terms, 0, 3), terms.identity((3,), DOUBLE)
    parts = [(1.0, einsum(terms, "i,jk->ijk", a, delta)), (1.0, einsum(terms, "j,ik->ijk", a, delta))]
    total = terms.add(parts, (3, 3, 3), DOUBLE)
    assert isinstance(total, Sum)
    assert total.is_sparse


def test_sum_of_deltas_is_multiplied_out() -> None:
    terms = Terms()
    a, b = leaf(terms, 0, 3, 3), leaf(terms, 1, 3)
    delta = terms.identity((3,), DOUBLE)
    parts = [(1.0, einsum(terms, "ik,jl->ijkl", a, delta)), (1.0, einsum(terms, "jl,ik->ijkl", a, delta))]
    product = einsum(terms, "ijkl,l->ijk", terms.add(parts, (3, 3, 3, 3), DOUBLE), b)
    assert all(term.size <= 27 for term in ordered([product]))


def test_sum_over_one_operand_does_not_broadcast_the_other() -> None:
    terms = Terms()
    a, b = leaf(terms, 0, 3), leaf(terms, 1, 3, 50)
    total = terms.add([(1.0, einsum(terms, "i->ij", a, j=50)), (1.0, b)], (3, 50), DOUBLE)
    summed = einsum(terms, "ij->i", total)
    assert isinstance(summed, Sum)
    assert set(summed.inputs) == {a, einsum(terms, "ij->i", b)}
    assert dict(zip(summed.inputs, summed.coefficients, strict=True))[a] == 50.0


def test_alias_is_distinct_from_its_source() -> None:
    terms = Terms()
    a = leaf(terms, 0, 3)
    assert terms.alias(a) is not terms.alias(a)
    assert isinstance(einsum(terms, "i,i->", terms.alias(a), terms.alias(a)), Einsum)
