"""Operations that move elements: flatten, permute, reshape, select, slice, upsample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

from gflownet.operations.elementary import FLOATS
from gflownet.operations.operation import Category, Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import NUM_AXES, Layout, Shape, ShapeError
from gflownet.operations.vocabulary import MAX_WIDTH, POSITIVE_INT, Parameter

_IMAGE = Shape.of((3, 2, 4))
_SIGNAL = Shape((3, 4), Layout.SIGNAL)
_SEQUENCE = Shape.of((4, 3))
_VECTOR = Shape.of(12)
LAYOUTS = tuple(layout.value for layout in FLOATS)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


INDEX = Parameter(f"an int of magnitude <= {MAX_WIDTH:,}", lambda value: _is_int(value) and abs(value) <= MAX_WIDTH)
SIZES = Parameter(
    "a list of 1 to 3 sizes >= 1",
    lambda value: isinstance(value, tuple | list) and 1 <= len(value) <= 3 and all(map(POSITIVE_INT.accepts, value)),
)
OPTIONAL_INDEX = Parameter(f"{INDEX.expected} or null", lambda value: value is None or INDEX.accepts(value))
SLICED_AXES = ("channels", "positions", "width")  # positions: the first axis of them: time, length or height
AXIS = Parameter(f"one of {', '.join(SLICED_AXES)}", lambda value: value in SLICED_AXES)
ORDER = Parameter(
    "a list of 1 to 3 different axes, 0 to 2",
    lambda value: isinstance(value, tuple | list) and all(map(_is_int, value)) and 0 < len(value) < 4,
)
LAYOUT = Parameter(f"one of {', '.join(LAYOUTS)} or null", lambda value: value is None or value in LAYOUTS)
UPSAMPLE_MODES = ("nearest", "linear")
MODE = Parameter(f"one of {', '.join(UPSAMPLE_MODES)}", lambda value: value in UPSAMPLE_MODES)


class Flatten(Operation):
    """All elements as a vector, in the order of memory."""

    category = Category.RESHAPING
    has_products = False
    examples = (Example((_IMAGE,)), Example((_SEQUENCE,)))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return Shape.of(single_input(inputs, *FLOATS).num_elements)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return "{input}.flatten(1)"


class ToSequence(Operation):
    """The positions of a signal or an image as a sequence [T, C]; the numbers of a vector as [F, 1]."""

    category = Category.RESHAPING
    has_products = False
    examples = (Example((_IMAGE,)), Example((_SIGNAL,)), Example((_VECTOR,)))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.SIGNAL, Layout.IMAGE, Layout.VECTOR)
        if shape.layout is Layout.VECTOR:
            return Shape((shape.channels, 1), Layout.SEQUENCE)
        return Shape((prod(shape.positions), shape.channels), Layout.SEQUENCE)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        calls = {Layout.VECTOR: "{input}.unsqueeze(2)", Layout.SIGNAL: "{input}.mT"}
        return calls.get(single_input(inputs).layout, "{input}.flatten(2).mT")


class ToSignal(Operation):
    """The positions of a sequence or an image as a signal [C, L]; the numbers of a vector as [1, F]."""

    category = Category.RESHAPING
    has_products = False
    examples = (Example((_IMAGE,)), Example((_SEQUENCE,)), Example((_VECTOR,)))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.SEQUENCE, Layout.IMAGE, Layout.VECTOR)
        if shape.layout is Layout.VECTOR:
            return Shape((1, shape.channels), Layout.SIGNAL)
        return Shape((shape.channels, prod(shape.positions)), Layout.SIGNAL)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        calls = {Layout.VECTOR: "{input}.unsqueeze(1)", Layout.SEQUENCE: "{input}.mT"}
        return calls.get(single_input(inputs).layout, "{input}.flatten(2)")


class ToImage(Operation):
    """The positions of a sequence or a signal as an image [C, height, L / height], row by row."""

    category = Category.RESHAPING
    has_products = False
    settings = MappingProxyType({"height": Setting(POSITIVE_INT)})
    examples = (Example((_SEQUENCE,), {"height": 2}), Example((_SIGNAL,), {"height": 4}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.SEQUENCE, Layout.SIGNAL)
        (length,), height = shape.positions, settings["height"]
        if length % height:
            raise ShapeError(f"expected positions divisible by height={height}, got {shape}")
        return Shape((shape.channels, height, length // height), Layout.IMAGE)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        value = "{input}.mT" if single_input(inputs).layout is Layout.SEQUENCE else "{input}"
        return f"{value}.unflatten(2, ({settings['height']}, -1))"


class Reshape(Operation):
    """The elements in the order of memory in another shape; `layout` follows from the number of sizes by default."""

    category = Category.RESHAPING
    has_products = False
    settings = MappingProxyType({"sizes": Setting(SIZES), "layout": Setting(LAYOUT, None)})
    examples = (Example((_VECTOR,), {"sizes": (3, 2, 2)}), Example((_IMAGE,), {"sizes": (6, 4), "layout": "signal"}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, sizes, layout = single_input(inputs, *FLOATS), settings["sizes"], settings["layout"]
        if layout is not None and NUM_AXES[Layout(layout)] != len(sizes):
            raise ShapeError(f"expected {NUM_AXES[Layout(layout)]} sizes of a {layout}, got {list(sizes)}")
        if prod(sizes) != shape.num_elements:
            raise ShapeError(f"expected sizes of {shape.num_elements:,} elements for {shape}, got {list(sizes)}")
        return Shape.of(sizes, layout)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"{{input}}.reshape(-1, {', '.join(map(str, settings['sizes']))})"


class Select(Operation):
    """One position of a sequence as a vector; negative positions count from the end."""

    category = Category.RESHAPING
    has_products = False
    settings = MappingProxyType({"position": Setting(INDEX, 0, choices=(0, -1))})
    examples = (Example((_SEQUENCE,)), Example((_SEQUENCE,), {"position": -1}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, position = single_input(inputs, Layout.SEQUENCE), settings["position"]
        (length,) = shape.positions
        if not -length <= position < length:
            raise ShapeError(f"expected a position in [{-length}, {length}), got {position}")
        return Shape.of(shape.channels)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"{{input}}[:, {settings['position']}]"


class Slice(Operation):
    """The entries from `start` to `stop`, or to the end, along an axis: a crop, or a part of a split."""

    category = Category.RESHAPING
    has_products = False
    settings = MappingProxyType(
        {"axis": Setting(AXIS, "channels"), "start": Setting(INDEX, 0), "stop": Setting(OPTIONAL_INDEX, None)}
    )
    examples = (
        Example((_IMAGE,), {"start": 1}),
        Example((_IMAGE,), {"axis": "width", "start": 1, "stop": -1}),
        Example((_SEQUENCE,), {"axis": "positions", "stop": 3}),
    )

    @classmethod
    def _axis(cls, shape: Shape, settings: Mapping[str, Any]) -> int:
        if settings["axis"] == "channels":
            return shape.channel_axis
        axes = [axis for axis in range(len(shape.sizes)) if axis != shape.channel_axis]
        place = SLICED_AXES.index(settings["axis"]) - 1
        if place >= len(axes):
            raise ShapeError(f"expected an axis of {shape}, got axis={settings['axis']}")
        return axes[place]

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, *FLOATS)
        axis, sizes = cls._axis(shape, settings), list(shape.sizes)
        kept = range(sizes[axis])[settings["start"] : settings["stop"]]
        if not kept:
            raise ShapeError(
                f"expected a slice of {shape} with an entry, got {settings['start']} to {settings['stop']}"
            )
        sizes[axis] = len(kept)
        return replace(shape, sizes=tuple(sizes))

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        axis = cls._axis(single_input(inputs), settings)
        stop = "" if settings["stop"] is None else settings["stop"]
        return f"{{input}}[{':, ' * (axis + 1)}{settings['start']}:{stop}]"


class Permute(Operation):
    """The axes, without the batch, in another order; `layout` follows from their number by default."""

    category = Category.RESHAPING
    has_products = False
    settings = MappingProxyType({"order": Setting(ORDER), "layout": Setting(LAYOUT, None)})
    examples = (Example((_IMAGE,), {"order": (1, 2, 0)}), Example((_SEQUENCE,), {"order": (1, 0), "layout": "signal"}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, order, layout = single_input(inputs, *FLOATS), settings["order"], settings["layout"]
        if sorted(order) != list(range(len(shape.sizes))):
            raise ShapeError(f"expected an order of the axes 0 to {len(shape.sizes) - 1} of {shape}, got {list(order)}")
        if layout is not None and NUM_AXES[Layout(layout)] != len(order):
            raise ShapeError(f"expected {NUM_AXES[Layout(layout)]} axes of a {layout}, got {len(order)}")
        return Shape.of([shape.sizes[axis] for axis in order], layout)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"{{input}}.permute(0, {', '.join(str(axis + 1) for axis in settings['order'])})"


class Upsample(Operation):
    """A signal or an image with `factor` times as many positions along each axis."""

    category = Category.POOLING
    has_products = False
    settings = MappingProxyType(
        {"factor": Setting(POSITIVE_INT, 2, choices=(2,)), "mode": Setting(MODE, "nearest", choices=UPSAMPLE_MODES)}
    )
    examples = (Example((_IMAGE,)), Example((_SIGNAL,), {"mode": "linear"}), Example((_IMAGE,), {"mode": "linear"}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.SIGNAL, Layout.IMAGE)
        return shape.with_positions([settings["factor"] * size for size in shape.positions])

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        mode = settings["mode"]
        if mode == "linear" and single_input(inputs).layout is Layout.IMAGE:
            mode = "bilinear"
        return f"F.interpolate({{input}}, scale_factor={float(settings['factor'])}, mode={mode!r})"
