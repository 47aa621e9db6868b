"""Shapes to which inputs are aligned."""

from itertools import permutations

import pytest

from gflownet.operations.tensor_shape import Layout, Shape, ShapeError, declared_sizes, join

IMAGE, WIDE, SEQUENCE = Shape.of([2, 6, 5]), Shape.of([4, 3, 7]), Shape.of([5, 3])
SIGNAL, VECTOR = Shape.of([7, 5], Layout.SIGNAL), Shape.of(1)
VOLUME = Shape.of([2, 6, 5, 4])


@pytest.mark.parametrize(
    ("shapes", "joined"),
    [
        ((IMAGE, WIDE), Shape.of([4, 3, 5])),
        ((IMAGE, WIDE, VECTOR), Shape.of(4)),
        ((IMAGE, SEQUENCE), Shape.of(3)),
        ((IMAGE, SEQUENCE, SIGNAL, VECTOR), Shape.of(7)),
        ((SEQUENCE, IMAGE, WIDE), Shape.of(4)),
        ((VOLUME, Shape.of([3, 4, 7, 4])), Shape.of([3, 4, 5, 4])),
        ((VOLUME, IMAGE), Shape.of(2)),
    ],
)
def test_join_is_independent_of_order(shapes, joined):
    assert {join(order) for order in permutations(shapes)} == {joined}


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        (VECTOR, {"channels": 0}),
        (SEQUENCE, {"channels": 1, "positions": 0}),
        (SIGNAL, {"channels": 0, "positions": 1}),
        (IMAGE, {"channels": 0, "positions": 1, "height": 1, "width": 2}),
        (VOLUME, {"channels": 0, "positions": 1, "depth": 1, "height": 2, "width": 3}),
    ],
)
def test_axes_by_name(shape, axes):
    assert shape.axes == axes


def test_sizes_of_a_volume():
    assert (VOLUME.layout, VOLUME.channels, VOLUME.positions) == (Layout.VOLUME, 2, (6, 5, 4))
    assert declared_sizes("input_sizes", [(2, 6, 5, 4)]) == (VOLUME,)
    with pytest.raises(ShapeError, match=r"expected a shape of 1 to 4 axes, got \[1, 2, 3, 4, 5\]"):
        Shape.of([1, 2, 3, 4, 5])


def test_join_of_tokens_and_features_raises():
    with pytest.raises(ShapeError, match=r"expected tokens to meet tokens of equal length, got tokens \[5\]"):
        join([Shape.of(5, Layout.TOKENS), SEQUENCE])
