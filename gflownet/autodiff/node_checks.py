"""The part of a node that does not depend on its operation, and checks of signed index arrays: one integer per axis.

Equal integers are the same index. A positive index of an operand is kept in the result (in a Transform both sides have
it). A negative index of an operand is a dummy, summed over; in the result of a Transform it is new. 0 is not an index,
and no tensor has an index twice.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from math import inf, isfinite

import torch
from torch import Tensor

MAX_LENGTH = 60

_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxother = MAX_LENGTH
Indices = tuple[int, ...]


def shortened(value: object) -> str:
    """Return the repr of a value in one line, long ones abbreviated."""
    try:
        text = " ".join(_QUOTED.repr(value).split())
    except ValueError:  # an integer of more digits than Python writes out
        return f"a long {type(value).__name__}"
    return text if len(text) <= MAX_LENGTH + 2 else f"{text[: MAX_LENGTH - 3]}..."


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`"""
    return str(dtype).removeprefix("torch.")


def is_continuous(dtype: torch.dtype) -> bool:
    """Return whether tensors of a dtype have derivatives: floating and complex ones."""
    return dtype.is_floating_point or dtype.is_complex


class TensorSlot:
    """A named tensor of known shape and dtype, whose value and gradient a `Graph` fills in."""

    __slots__ = ("__weakref__", "dtype", "forwarded", "gradient", "name", "requires_grad", "shape")

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, *, name: str | None, requires_grad: bool) -> None:
        self.shape, self.dtype, self.name = tuple(shape), dtype, name
        self.requires_grad = is_continuous(dtype) and requires_grad
        # Of the last forward and backward pass of a Graph; nothing else ever changes.
        self.forwarded: Tensor | None = None
        self.gradient: Tensor | None = None

    @property
    def label(self) -> str:
        """Return the class and the name, for messages."""
        return f"{type(self).__name__} {self.name!r}" if self.name else type(self).__name__

    @property
    def rank(self) -> int:
        """Return the number of axes: 0 for a scalar, 1 for shape [1]."""
        return len(self.shape)

    def value(self) -> Tensor:
        """Return the tensor that the last forward pass computed.

        Raises:
            ValueError: there was no forward pass, or a leaf holds nothing.
        """
        if self.forwarded is None:
            message = "expected a forward pass first (Graph.forward), or a leaf with a value"
            raise ValueError(f"{self.label}: value: {message}")
        return self.forwarded

    def has_grad(self) -> bool:
        """Return whether the node depends differentiably on a leaf with `requires_grad`."""
        return self.requires_grad

    def grad(self) -> Tensor:
        """Return the accumulated gradient; writing to it seeds a backward pass as `Graph.backward` does.

        Raises:
            ValueError: the node has no gradient (see `has_grad`) or no value yet.
        """
        if not self.requires_grad:
            raise ValueError(f"{self.label}: grad: expected a node that depends on a leaf with requires_grad=True")
        if self.gradient is None:
            self.gradient = torch.zeros(self.shape, dtype=self.dtype, device=self.value().device)
        return self.gradient

    def __repr__(self) -> str:
        """Return class, name, shape and dtype."""
        return f"<{self.label} {list(self.shape)} {dtype_name(self.dtype)}>"


def checked(owner: str, name: str, indices: Sequence[int]) -> Indices:
    """Return an index array as a tuple; owner and name are for messages.

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
    """Return the shape of a Transform's result; `new_dims` are the extents of the negative indices of `dst`.

    Raises:
        ValueError: a positive index is missing on one side, or an extent is missing or below 0.
    """
    extents = extents_of(owner, "index_src", src, shape)
    for other, array, name in ((src, dst, "index_dst"), (dst, src, "index_src")):
        missing = sorted(index for index in array if index > 0 and index not in other)
        if missing:
            message = "expected positive indices on both sides"
            raise ValueError(f"{owner}: {name} {list(array)}: {message}, got {missing} on this one only")
    new = negatives(dst)
    if len(new) != len(new_dims) or any(extent < 0 for extent in new_dims):
        message = f"expected an extent of at least 0 for each of the {len(new)} New indices of index_dst"
        raise ValueError(f"{owner}: new_dims {list(new_dims)}: {message} {list(dst)}")
    extents = {index: n for index, n in extents.items() if index > 0} | dict(zip(new, new_dims, strict=True))
    return [extents[index] for index in dst]


def pair_extents(owner: str, dst: Indices, sides: Mapping[str, tuple[Indices, Sequence[int]]]) -> dict[int, int]:
    """Return the extent of every index of two operands, given by the name of their array, the left one first.

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
    """Raise ValueError for a leaf with an extent below 0, a value that does not fit, or several descriptions."""
    owner, shape = leaf.label, leaf.shape
    if any(extent < 0 for extent in shape):
        raise ValueError(f"{owner}: shape {list(shape)}: expected extents of at least 0")
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
