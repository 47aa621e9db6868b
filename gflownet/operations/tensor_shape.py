"""Shapes of the tensors in an operation graph, and the alignment of shapes that meet in one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from math import prod
from numbers import Integral
from operator import index
from typing import Any


class ShapeError(ValueError):
    """An operation, a merge or an alignment cannot be applied to its input shapes; the message says why."""


class Layout(StrEnum):
    """The meaning of a tensor's axes after the batch."""

    VECTOR = "vector"  # [F] features
    SEQUENCE = "sequence"  # [T, D] time steps or positions, then features
    SIGNAL = "signal"  # [C, L] channels, then length
    IMAGE = "image"  # [C, H, W] channels, then height and width
    VOLUME = "volume"  # [C, D, H, W] channels, then depth, height and width
    TOKENS = "tokens"  # [T] integers below the vocabulary size


CHANNELS_FIRST = (Layout.SIGNAL, Layout.IMAGE, Layout.VOLUME)
FLOATS = (Layout.VECTOR, Layout.SEQUENCE, *CHANNELS_FIRST)
NUM_AXES = {**dict.fromkeys(Layout, 1), Layout.SEQUENCE: 2, Layout.SIGNAL: 2, Layout.IMAGE: 3, Layout.VOLUME: 4}
AXES = ("channels", "positions", "depth", "height", "width")  # positions: the first axis of them


@dataclass(frozen=True)
class Shape:
    """Sizes of a tensor without the batch axis, and their meaning."""

    sizes: tuple[int, ...]
    layout: Layout

    def __post_init__(self) -> None:
        if len(self.sizes) != NUM_AXES[self.layout] or not min(self.sizes) >= 1:
            raise ShapeError(f"expected {NUM_AXES[self.layout]} sizes >= 1 of a {self.layout}, got {list(self.sizes)}")

    @classmethod
    def of(cls, sizes: int | Sequence[int], layout: Layout | str | None = None) -> Shape:
        """Return a shape; the layout follows from the number of axes by default, two axes are a sequence."""
        sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
        defaults = {1: Layout.VECTOR, 2: Layout.SEQUENCE, 3: Layout.IMAGE, 4: Layout.VOLUME}
        if layout is None and len(sizes) not in defaults:
            raise ShapeError(f"expected a shape of 1 to 4 axes, got {list(sizes)}")
        return cls(sizes, defaults[len(sizes)] if layout is None else Layout(layout))

    @property
    def channel_axis(self) -> int:
        """The axis of the features or channels, the batch not counted. Raises ShapeError for tokens."""
        layout = self.layout  # not a cached property: its lock takes longer than the answer
        if layout is Layout.TOKENS:
            raise ShapeError(f"expected features, got {self}")
        return 0 if layout in CHANNELS_FIRST else len(self.sizes) - 1

    @property
    def axes(self) -> dict[str, int]:
        """The axes, the batch not counted, by all their names out of AXES. Raises ShapeError for tokens."""
        num, first = len(self.positions), int(self.channel_axis == 0)
        names = AXES[-num:] if num > 1 else ()  # the one of a sequence or a signal is neither height nor width
        places = {name: first + place for place, name in enumerate(names)}
        return {AXES[0]: self.channel_axis, **({AXES[1]: first} if num else {}), **places}

    @property
    def channels(self) -> int:
        """The number of features or channels. Raises ShapeError for tokens."""
        return self.sizes[self.channel_axis if self.layout is Layout.TOKENS else -(self.layout not in CHANNELS_FIRST)]

    @property
    def positions(self) -> tuple[int, ...]:
        """The sizes of the other axes: length, or depth, height and width; empty for a vector."""
        if self.layout is Layout.TOKENS:
            return self.sizes
        return self.sizes[1:] if self.layout in CHANNELS_FIRST else self.sizes[:-1]

    @property
    def num_elements(self) -> int:
        """The number of elements of one example."""
        return prod(self.sizes)

    def with_channels(self, channels: int) -> Shape:
        """Return the shape with another number of channels."""
        return self.with_size(self.channel_axis, channels)

    def with_size(self, axis: int, size: int) -> Shape:
        """Return the shape with another size of an axis."""
        if self.sizes[axis] == size:
            return self
        return replace(self, sizes=(*self.sizes[:axis], size, *self.sizes[axis + 1 :]))

    def with_positions(self, positions: Sequence[int]) -> Shape:
        """Return the shape with other sizes of the other axes."""
        if self.channel_axis == 0:
            return replace(self, sizes=(self.channels, *positions))
        return replace(self, sizes=(*positions, self.channels))

    def __str__(self) -> str:
        return f"{self.layout} {list(self.sizes)}"


def declared_sizes(key: str, sizes: Any) -> tuple[int | Shape, ...]:
    """Return the inputs or outputs of a task as widths and shapes, from widths, shapes, and sizes of images or volumes.

    Raises:
        ValueError: something else; two axes may be a sequence or a signal, and need a Shape with its layout.
    """
    try:
        shapes = [size if isinstance(size, Shape) else _declared_size(key, size) for size in sizes]
    except (TypeError, ShapeError):
        raise ValueError(f"task: expected {key} with one width >= 1 or more, got {sizes!r}") from None
    return tuple(shape.channels if shape.layout is Layout.VECTOR else shape for shape in shapes)


def _declared_size(key: str, size: Any) -> Shape:
    sizes = (size,) if isinstance(size, Integral) else tuple(size)
    if len(sizes) == NUM_AXES[Layout.SIGNAL]:
        raise ValueError(
            f"task: expected {key} with the layout of two axes, got {sizes}: gflownet.Shape.of({sizes}, 'signal') is "
            f"[channels, length], gflownet.Shape.of({sizes}, 'sequence') is [steps, features]"
        )
    return Shape.of([index(each) for each in sizes])


def join(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which inputs are aligned, with the largest number of channels.

    It is a vector if any input is one or if layouts differ; else it has the smallest size of each position axis.

    Raises:
        ShapeError: tokens and something else, or tokens of different lengths.
    """
    return reduce(_joined, shapes)


def _joined(first: Shape, second: Shape) -> Shape:
    if first == second:
        return first
    if Layout.TOKENS in (first.layout, second.layout):
        raise ShapeError(f"expected tokens to meet tokens of equal length, got {first} and {second}")
    channels = max(first.channels, second.channels)
    if Layout.VECTOR in (first.layout, second.layout) or first.layout is not second.layout:
        return Shape((channels,), Layout.VECTOR)
    positions = tuple(map(min, first.positions, second.positions))
    return first.with_positions(positions).with_channels(channels)


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape to which inputs broadcast, None if they do not.

    Axes have equal sizes or size 1; a vector is one of channels, with size 1 along the positions of the others.
    """
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    like = next((shape for shape in shapes if shape.layout is not Layout.VECTOR), shapes[0])
    if any(shape.layout not in (Layout.VECTOR, like.layout) for shape in shapes) or like.layout is Layout.TOKENS:
        return None
    lifted = [_lifted(shape, like) for shape in shapes]
    sizes = tuple(map(max, zip(*(shape.sizes for shape in lifted), strict=True)))
    fits = all(size in (1, full) for shape in lifted for size, full in zip(shape.sizes, sizes, strict=True))
    return replace(like, sizes=sizes) if fits else None


def _lifted(shape: Shape, like: Shape) -> Shape:
    """Return a vector as one position of another layout; a shape of this layout as it is."""
    if shape.layout is like.layout:
        return shape
    return like.with_positions([1] * len(like.positions)).with_channels(shape.channels)


@dataclass(frozen=True)
class Adapter:
    """The smallest change that gives one shape the sizes of another; positions first, then channels."""

    source: Shape
    target: Shape  # join((source, target)) == target, unless it broadcasts
    is_broadcast: bool = False  # the source is read as it is, size 1 along the other axes

    @property
    def pools_to_vector(self) -> bool:
        """Whether all positions are averaged."""
        return self.target.layout is Layout.VECTOR and self.source.layout is not Layout.VECTOR

    @property
    def changes_positions(self) -> bool:
        """Whether positions are averaged, to fewer or to none."""
        return self.pools_to_vector or self.pools_positions

    @property
    def pools_positions(self) -> bool:
        """Whether positions are averaged to fewer positions, or repeated to more."""
        is_same = self.is_broadcast or self.pools_to_vector or self.source.positions == self.target.positions
        return not is_same

    @property
    def averages_positions(self) -> bool:
        """Whether an axis gets fewer positions."""
        return any(before > after for before, after in zip(self.source.positions, self.target.positions, strict=True))

    @property
    def changes_channels(self) -> bool:
        """Whether the number of channels grows."""
        is_same = self.is_broadcast or self.source == self.target
        return not is_same and self.source.channels != self.target.channels

    @property
    def num_parameters(self) -> int:
        """Weights of the learned projection of channels (a 1x1 convolution or a linear layer, no bias)."""
        return self.source.channels * self.target.channels if self.changes_channels else 0

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the learned projection for one example."""
        return self.num_parameters * prod(self.target.positions)
