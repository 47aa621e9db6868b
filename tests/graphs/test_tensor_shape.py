"""Shapes to which inputs are aligned."""

from itertools import permutations

import pytest

from gflownet.operations.tensor_shape import Layout, Shape, ShapeError, join

IMAGE, WIDE, SEQUENCE = Shape.of([2, 6, 5]), Shape.of([4, 3, 7]), Shape.of([5, 3])
SIGNAL, VECTOR = Shape.of([7, 5], Layout.SIGNAL), Shape.of(1)


@pytest.mark.parametrize(
    ("shapes", "joined"),
    [
        ((IMAGE, WIDE), Shape.of([4, 3, 5])),
        ((IMAGE, WIDE, VECTOR), Shape.of(4)),
        ((IMAGE, SEQUENCE), Shape.of(3)),
        ((IMAGE, SEQUENCE, SIGNAL, VECTOR), Shape.of(7)),
        ((SEQUENCE, IMAGE, WIDE), Shape.of(4)),
    ],
)
def test_join_is_independent_of_order(shapes, joined):
    assert {join(order) for order in permutations(shapes)} == {joined}


def test_join_of_tokens_and_features_raises():
    with pytest.raises(ShapeError, match=r"expected tokens to meet tokens of equal length, got tokens \[5\]"):
        join([Shape.of(5, Layout.TOKENS), SEQUENCE])
