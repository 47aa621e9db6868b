"""Operations that move elements: between layouts, slice, upsample."""

from __future__ import annotations

from math import prod
from types import MappingProxyType

from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input
from gflownet.operations.tensor_shape import AXES, CHANNELS_FIRST, FLOATS, Layout, Shape, ShapeError
from gflownet.operations.vocabulary import MAX_WIDTH, POSITIVE_INT, Parameter, is_int, one_of, optional

_IMAGE = Shape.of((3, 2, 4))
_SIGNAL = Shape((3, 4), Layout.SIGNAL)
_SEQUENCE = Shape.of((4, 3))
_VECTOR = Shape.of(12)
INDEX = Parameter(f"an int of magnitude <= {MAX_WIDTH:,}", lambda value: is_int(value) and abs(value) <= MAX_WIDTH)
UPSAMPLE_MODES = ("nearest", "linear")


class ToSequence(Operation):
    """The positions of a signal, an image or a volume as a sequence [T, C]; the numbers of a vector as [F, 1]."""

    category = Category.RESHAPING
    has_products = False
    examples = (Example((_IMAGE,)), Example((_SIGNAL,)), Example((_VECTOR,)))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = single_input(inputs, *CHANNELS_FIRST, Layout.VECTOR)
        if shape.layout is Layout.VECTOR:
            return Shape((shape.channels, 1), Layout.SEQUENCE)
        return Shape((prod(shape.positions), shape.channels), Layout.SEQUENCE)

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        calls = {Layout.VECTOR: "{input}.unsqueeze(2)", Layout.SIGNAL: "{input}.mT"}
        return calls.get(single_input(inputs).layout, "{input}.flatten(2).mT")


class ToSignal(Operation):
    """The positions of a sequence, an image or a volume as a signal [C, L]; the numbers of a vector as [1, F]."""

    category = Category.RESHAPING
    has_products = False
    examples = (Example((_IMAGE,)), Example((_SEQUENCE,)), Example((_VECTOR,)))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = single_input(inputs, Layout.SEQUENCE, Layout.IMAGE, Layout.VOLUME, Layout.VECTOR)
        if shape.layout is Layout.VECTOR:
            return Shape((1, shape.channels), Layout.SIGNAL)
        return Shape((shape.channels, prod(shape.positions)), Layout.SIGNAL)

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        calls = {Layout.VECTOR: "{input}.unsqueeze(1)", Layout.SEQUENCE: "{input}.mT"}
        return calls.get(single_input(inputs).layout, "{input}.flatten(2)")


class ToImage(Operation):
    """The positions of a sequence or a signal as an image [C, height, L / height], row by row."""

    category = Category.RESHAPING
    has_products = False
    settings = MappingProxyType({"height": Setting(POSITIVE_INT)})
    examples = (Example((_SEQUENCE,), {"height": 2}), Example((_SIGNAL,), {"height": 4}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = single_input(inputs, Layout.SEQUENCE, Layout.SIGNAL)
        (length,), height = shape.positions, settings["height"]
        if length % height:
            raise ShapeError(f"expected positions divisible by height={height}, got {shape}")
        return Shape((shape.channels, height, length // height), Layout.IMAGE)

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        value = "{input}.mT" if single_input(inputs).layout is Layout.SEQUENCE else "{input}"
        return f"{value}.unflatten(2, ({settings['height']}, -1))"


class Slice(Operation):
    """The entries from `start` to `stop`, or to the end, along an axis: a crop, or a part of a split."""

    category = Category.RESHAPING
    has_products = False
    settings = MappingProxyType(
        {"axis": Setting(one_of(*AXES), "channels"), "start": Setting(INDEX, 0), "stop": Setting(optional(INDEX), None)}
    )
    examples = (
        Example((_IMAGE,), {"start": 1}),
        Example((_IMAGE,), {"axis": "width", "start": 1, "stop": -1}),
        Example((_SEQUENCE,), {"axis": "positions", "stop": 3}),
    )

    @classmethod
    def _axis(cls, shape: Shape, settings: Settings) -> int:
        if settings["axis"] not in shape.axes:
            raise ShapeError(f"expected an axis of {shape}, got axis={settings['axis']}")
        return shape.axes[settings["axis"]]

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = single_input(inputs, *FLOATS)
        axis = cls._axis(shape, settings)
        kept = range(shape.sizes[axis])[settings["start"] : settings["stop"]]
        if not kept:
            raise ShapeError(
                f"expected a slice of {shape} with an entry, got {settings['start']} to {settings['stop']}"
            )
        return shape.with_size(axis, len(kept))

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        axis = cls._axis(single_input(inputs), settings)
        stop = "" if settings["stop"] is None else settings["stop"]
        return f"{{input}}[{':, ' * (axis + 1)}{settings['start']}:{stop}]"


class Upsample(Operation):
    """A signal, an image or a volume with `factor` times as many positions along each axis."""

    category = Category.POOLING
    has_products = False
    settings = MappingProxyType(
        {
            "factor": Setting(POSITIVE_INT, 2, choices=(2,)),
            "mode": Setting(one_of(*UPSAMPLE_MODES), "nearest", choices=UPSAMPLE_MODES),
        }
    )
    examples = (Example((_IMAGE,)), Example((_SIGNAL,), {"mode": "linear"}), Example((_IMAGE,), {"mode": "linear"}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = single_input(inputs, *CHANNELS_FIRST)
        return shape.with_positions([settings["factor"] * size for size in shape.positions])

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        prefix = {Layout.IMAGE: "bi", Layout.VOLUME: "tri"}.get(single_input(inputs).layout, "")
        mode = prefix + "linear" if settings["mode"] == "linear" else settings["mode"]
        return f"F.interpolate({{input}}, scale_factor={float(settings['factor'])}, mode={mode!r})"
