"""The signed index arrays of tensor nodes: which axis meets which, what is summed, what is new.

Equal integers are equal indices. A positive one is also in the destination (of a Transform: on both sides); a negative
one is a dummy, summed over, or, in a Transform's destination, New. 0 is no index, and no tensor has one twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Indices = tuple[int, ...]


def checked(owner: str, name: str, indices: Sequence[int]) -> Indices:
    """Return one tensor's indices.

    Args:
        owner: the node, for messages.
        name: of the array, for messages.
        indices: one per axis.

    Raises:
        ValueError: one is 0 or there twice.
    """
    found = tuple(int(index) for index in indices)
    if 0 in found:
        raise ValueError(f"{owner}: {name} {list(found)}: expected indices other than 0")
    twice = next((index for index in found if found.count(index) > 1), None)
    if twice is not None:
        raise ValueError(f"{owner}: {name} {list(found)}: expected every index once in a tensor, got {twice} twice")
    return found


def extents_of(owner: str, name: str, indices: Indices, shape: Sequence[int]) -> dict[int, int]:
    """Return the extent of every index of a tensor.

    Raises:
        ValueError: there is not one index for each axis.
    """
    if len(indices) != len(shape):
        message = f"expected one index for each of the {len(shape)} axes of shape {list(shape)}, got {len(indices)}"
        raise ValueError(f"{owner}: {name} {list(indices)}: {message}")
    return dict(zip(indices, shape, strict=True))


def joint_extents(owner: str, left: Mapping[int, int], right: Mapping[int, int]) -> dict[int, int]:
    """Return the extents of the indices of two operands.

    Raises:
        ValueError: an index has two extents.
    """
    for index in left.keys() & right.keys():
        if left[index] != right[index]:
            message = f"expected one extent for index {index}, got {left[index]} on the left and {right[index]}"
            raise ValueError(f"{owner}: index_src_l and index_src_r: {message} on the right")
    return {**left, **right}


def negatives(indices: Sequence[int]) -> Indices:
    """Return the negative indices, in order."""
    return tuple(index for index in indices if index < 0)
