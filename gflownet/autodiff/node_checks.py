"""Checks of the arguments of nodes, above all of their signed index arrays: one integer per axis.

Equal integers are the same index. A positive index of an operand is kept in the result (in a Transform both sides have
it). A negative index of an operand is a dummy, summed over; in the result of a Transform it is new. 0 is not an index,
and no tensor has an index twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite

from torch import Tensor

from gflownet.autodiff.tensor_slot import TensorSlot, is_continuous

Indices = tuple[int, ...]


def checked(owner: str, name: str, indices: Sequence[int]) -> Indices:
    """Return an index array as a tuple.

    Args:
        owner: node, for messages.
        name: of the array, for messages.
        indices: one per axis.

    Raises:
        ValueError: an index is 0 or occurs twice.
    """
    array = tuple(int(index) for index in indices)
    if 0 in array:
        raise ValueError(f"{owner}: {name} {list(array)}: expected indices other than 0")
    if len({*array}) < len(array):
        twice = next(index for index in array if array.count(index) > 1)
        raise ValueError(f"{owner}: {name} {list(array)}: expected every index once in a tensor, got {twice} twice")
    return array


def extents_of(owner: str, name: str, indices: Indices, shape: Sequence[int]) -> dict[int, int]:
    """Return the extent of every index of a tensor; raise ValueError unless there is one index per axis."""
    if len(indices) != len(shape):
        message = f"expected one index for each of the {len(shape)} axes of shape {list(shape)}, got {len(indices)}"
        raise ValueError(f"{owner}: {name} {list(indices)}: {message}")
    return dict(zip(indices, shape, strict=True))


def transform_shape(owner: str, dst: Indices, src: Indices, shape: Sequence[int], new_dims: Sequence[int]) -> list[int]:
    """Return the shape of a Transform's result.

    Args:
        owner: node, for messages.
        dst: indices of the result.
        src: indices of the source.
        shape: of the source.
        new_dims: extents of the negative indices of `dst`.

    Raises:
        ValueError: a positive index is missing on one side, or an extent is missing or below 1.
    """
    extents = extents_of(owner, "index_src", src, shape)
    for other, array, name in ((src, dst, "index_dst"), (dst, src, "index_src")):
        missing = sorted(index for index in array if index > 0 and index not in other)
        if missing:
            message = "expected positive indices on both sides"
            raise ValueError(f"{owner}: {name} {list(array)}: {message}, got {missing} on this one only")
    new = negatives(dst)
    if len(new) != len(new_dims) or any(extent < 1 for extent in new_dims):
        message = f"expected an extent of at least 1 for each of the {len(new)} New indices of index_dst"
        raise ValueError(f"{owner}: new_dims {list(new_dims)}: {message} {list(dst)}")
    extents = {index: n for index, n in extents.items() if index > 0} | dict(zip(new, new_dims, strict=True))
    return [extents[index] for index in dst]


def pair_extents(owner: str, dst: Indices, sides: Mapping[str, tuple[Indices, Sequence[int]]]) -> dict[int, int]:
    """Return the extent of every index of a node with two operands.

    Args:
        owner: node, for messages.
        dst: indices of the result.
        sides: indices and shape of the operands by the name of their array, left operand first.

    Raises:
        ValueError: an index has two extents, only the result has it, or a positive one is missing in the result.
    """
    left, right = (extents_of(owner, name, indices, shape) for name, (indices, shape) in sides.items())
    for index in left.keys() & right.keys():
        if left[index] != right[index]:
            message = f"expected one extent for index {index}, got {left[index]} on the left and {right[index]}"
            raise ValueError(f"{owner}: index_src_l and index_src_r: {message} on the right")
    extents = {**left, **right}
    new = [index for index in dst if index < 0 or index not in extents]
    if new:
        message = f"expected indices of the operands, got {new}: compose with a Transform to bring in new ones"
        raise ValueError(f"{owner}: index_dst {list(dst)}: {message}")
    for name, (indices, _) in sides.items():
        missing = [index for index in indices if index > 0 and index not in dst]
        if missing:
            message = f"expected positive indices to be in index_dst {list(dst)}, got {missing}"
            raise ValueError(f"{owner}: {name} {list(indices)}: {message}: what is summed over is negative")
    return extents


def negatives(indices: Sequence[int]) -> Indices:
    """Return the negative indices, in order."""
    return tuple(index for index in indices if index < 0)


def matrix_product_indices(left_rank: int, right_rank: int) -> tuple[Indices, Indices, Indices]:
    """Return the index arrays of result, left and right operand of a matrix product; leading axes are a batch."""
    summed, row, column = -1, 1, 2
    own_l, own_r = (row, summed)[max(0, 2 - left_rank) :], (summed, column)[:right_rank]
    batch = tuple(range(3, 1 + max(left_rank, right_rank, 2)))
    src_l, src_r = (
        (batch if rank > 2 else ()) + side_indices for rank, side_indices in ((left_rank, own_l), (right_rank, own_r))
    )
    return batch + own_l[:-1] + own_r[1:], src_l, src_r


def finite(owner: str, alpha: float) -> float:
    """Return the coefficient of a Transform as a float; raise ValueError unless it is finite."""
    try:
        number = float(alpha)
    except OverflowError:  # an integer beyond the floats
        number = inf
    if not isfinite(number):
        raise ValueError(f"{owner}: alpha: expected a finite number, got {number}")
    return number


def check_operand(node: TensorSlot, operand: TensorSlot) -> None:
    """Raise ValueError for an integer operand: only leaves and casts may have an integer dtype."""
    if not is_continuous(operand.dtype):
        message = f"expected a floating or complex operand, got {operand.dtype} of {operand.label}: Cast it first"
        raise ValueError(f"{node.label}: {message}")


def check_leaf(
    leaf: TensorSlot, value: Tensor | None, fill: float | None, *, is_identity: bool, is_constant: bool
) -> None:
    """Raise ValueError for a leaf with an extent below 1, a value that does not fit, or several descriptions."""
    owner, shape = leaf.label, leaf.shape
    if any(extent < 1 for extent in shape):
        raise ValueError(f"{owner}: shape {list(shape)}: expected extents of at least 1")
    if value is not None and tuple(value.shape) != shape:
        raise ValueError(f"{owner}: value: expected shape {list(shape)}, got {list(value.shape)}")
    if value is not None and value.dtype != leaf.dtype:
        raise ValueError(f"{owner}: value: expected dtype {leaf.dtype}, got {value.dtype}")
    descriptions = (value is not None) + (fill is not None) + is_identity
    if descriptions > 1 or (not is_constant and descriptions > (value is not None)):
        raise ValueError(f"{owner}: expected a value, or of a constant a fill or an identity, got several")
    half = len(shape) // 2
    if is_identity and shape[:half] != shape[half:]:
        raise ValueError(f"{owner}: shape {list(shape)}: expected an identity to have its axes twice")
