"""Operations without a product: identity, zero, dropout, scales, normalisation, and the moves of elements."""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import ClassVar

from gflownet.operations.convolution import BIAS
from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input
from gflownet.operations.tensor_shape import AXES, CHANNELS_FIRST, Layout, Shape, ShapeError
from gflownet.operations.values import is_number
from gflownet.operations.vocabulary import (
    BOOL,
    EPSILON,
    MAX_WIDTH,
    POSITIVE_INT,
    PROBABILITY,
    Parameter,
    is_int,
    one_of,
    optional,
)

INDEX = Parameter(f"an int of magnitude <= {MAX_WIDTH:,}", lambda value: is_int(value) and abs(value) <= MAX_WIDTH)
UPSAMPLE_MODES = ("nearest", "linear")
FACTOR = Parameter("a float in [-100, 100]", lambda value: is_number(value) and -100 <= value <= 100)
_EPSILON, _AFFINE = Setting(EPSILON, 1e-5), Setting(BOOL, True)
_VECTOR, _SEQUENCE, _IMAGE = Shape.of(12), Shape.of((5, 4)), Shape.of((3, 2, 4))
_SIGNAL = Shape((8, 5), Layout.SIGNAL)


class Identity(Operation):
    """The input itself: a node that only merges and activates."""

    has_products, layouts, code = False, tuple(Layout), "{input}"
    examples = (Example((_VECTOR,)), Example((_IMAGE,)))


class Zero(Operation):
    """Zeros in the shape of the input: no connection."""

    has_products, code = False, "torch.zeros_like({input})"
    examples = (Example((_VECTOR,)), Example((_IMAGE,)))


class Dropout(Operation):
    """Zero each element with probability `dropout` in training, scale the others (Srivastava et al. 2014)."""

    category = Category.NORMALISATION
    settings = MappingProxyType({"dropout": Setting(PROBABILITY, 0.1, choices=(0.1, 0.3))})
    examples = (Example((_SEQUENCE,), {"dropout": 0.5}),)
    layer, has_products = "nn.Dropout({dropout})", False


class DropPath(Dropout):
    """Zero the value of an example with probability `dropout` in training, scale the others (Huang et al. 2016)."""

    settings = MappingProxyType({"dropout": Setting(PROBABILITY, 0.1, choices=(0.1, 0.2))})
    examples = (Example((_SEQUENCE,), {"dropout": 0.5}), Example((_IMAGE,)))
    layer = "DropPath({dropout})"


class LayerScale(Operation):
    """Each channel times a learned number that starts at `initial` (Touvron et al. 2021)."""

    settings = MappingProxyType({"initial": Setting(FACTOR, 0.1)})
    has_products = False
    examples = (Example((_VECTOR,)), Example((_SEQUENCE,)), Example((_IMAGE,), {"initial": 0.5}))

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        shape = single_input(inputs)
        axes_after = len(shape.sizes) - 1 - shape.channel_axis
        return f"LayerScale({shape.channels}, {axes_after}, {float(settings['initial'])})"


class SqueezeExcitation(Operation):
    """Scale each channel by a gate computed from the means of all channels (Hu, Shen and Sun 2018)."""

    category, layouts = Category.ATTENTION, CHANNELS_FIRST
    settings = MappingProxyType({"ratio": Setting(POSITIVE_INT, 4, choices=(4, 8))})
    examples = (Example((_IMAGE,), {"ratio": 2}), Example((_SIGNAL,)))

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        channels = single_input(inputs).channels
        return f"SqueezeExcitation({channels}, {max(1, channels // settings['ratio'])})"


class BatchNorm(Operation):
    """Normalise each channel over the batch and all positions, then scale and shift it (Ioffe and Szegedy 2015)."""

    category = Category.NORMALISATION
    has_products = False
    settings = MappingProxyType({"epsilon": _EPSILON, "momentum": Setting(EPSILON, 0.1), "affine": _AFFINE})
    code = MappingProxyType({**dict.fromkeys(Layout, "{module}({input})"), Layout.SEQUENCE: "{module}({input}.mT).mT"})
    examples = (
        Example((_VECTOR,)),
        Example((_SEQUENCE,), {"epsilon": 0.01}),
        Example((_SIGNAL,), {"affine": False}),
        Example((_IMAGE,), {"momentum": 0.3}),
    )

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        words = "({input.channels}, eps={epsilon}, momentum={momentum}, affine={affine})".format(**inputs, **settings)
        return f"nn.BatchNorm{max(1, len(single_input(inputs).positions))}d{words}"


class LayerNorm(Operation):
    """Normalise the features of each position, then scale and shift them (Ba, Kiros and Hinton 2016)."""

    category = Category.NORMALISATION
    has_products = False
    settings = MappingProxyType({"epsilon": _EPSILON, "affine": _AFFINE, "bias": BIAS})
    layer = "nn.LayerNorm({input.channels}, eps={epsilon}, elementwise_affine={affine}, bias={bias})"
    code = MappingProxyType(
        {
            **dict.fromkeys(Layout, "{module}({input})"),
            **dict.fromkeys(CHANNELS_FIRST, "{module}({input}.movedim(1, -1)).movedim(-1, 1)"),
        }
    )
    examples = (
        Example((_VECTOR,)),
        Example((_SEQUENCE,), {"epsilon": 1e-12}),
        Example((_SIGNAL,), {"bias": False}),
        Example((_IMAGE,), {"affine": False}),
    )


class RMSNorm(LayerNorm):
    """Divide the features of each position by their root mean square, then scale them (Zhang and Sennrich 2019)."""

    settings = MappingProxyType({"epsilon": Setting(EPSILON, 1e-6), "affine": _AFFINE})
    layer = "nn.RMSNorm({input.channels}, eps={epsilon}, elementwise_affine={affine})"
    examples = (Example((_VECTOR,)), Example((_SEQUENCE,)), Example((_SIGNAL,), {"affine": False}), Example((_IMAGE,)))


class ToSequence(Operation):
    """The positions of a signal, an image or a volume as a sequence [T, C]; the numbers of a vector as [F, 1]."""

    category = Category.RESHAPING
    has_products = False
    layouts = (*CHANNELS_FIRST, Layout.VECTOR)
    examples = (Example((_IMAGE,)), Example((_SIGNAL,)), Example((_VECTOR,)))
    code = MappingProxyType(
        {
            **dict.fromkeys(CHANNELS_FIRST, "{input}.flatten(2).mT"),
            **{Layout.SIGNAL: "{input}.mT", Layout.VECTOR: "{input}.unsqueeze(2)"},
        }
    )
    target: ClassVar[Layout] = Layout.SEQUENCE

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = super().infer_shape(inputs, settings)
        sizes = prod(shape.positions), shape.channels
        is_reversed = (shape.layout is Layout.VECTOR) == (cls.target is Layout.SEQUENCE)
        return Shape(sizes[::-1] if is_reversed else sizes, cls.target)


class ToSignal(ToSequence):
    """The positions of a sequence, an image or a volume as a signal [C, L]; the numbers of a vector as [1, F]."""

    layouts = (Layout.SEQUENCE, Layout.IMAGE, Layout.VOLUME, Layout.VECTOR)
    examples = (Example((_IMAGE,)), Example((Shape.of((4, 3)),)), Example((_VECTOR,)))
    code = MappingProxyType(
        {
            **dict.fromkeys(CHANNELS_FIRST, "{input}.flatten(2)"),
            **{Layout.SEQUENCE: "{input}.mT", Layout.VECTOR: "{input}.unsqueeze(1)"},
        }
    )
    target = Layout.SIGNAL


class ToImage(Operation):
    """The positions of a sequence or a signal as an image [C, height, L / height], row by row."""

    category = Category.RESHAPING
    has_products = False
    layouts = (Layout.SEQUENCE, Layout.SIGNAL)
    settings = MappingProxyType({"height": Setting(POSITIVE_INT)})
    examples = (Example((Shape.of((4, 3)),), {"height": 2}), Example((_SIGNAL,), {"height": 5}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = super().infer_shape(inputs, settings)
        (length,), height = shape.positions, settings["height"]
        if length % height:
            raise ShapeError(f"expected positions divisible by height={height}, got {shape}")
        return Shape((shape.channels, height, length // height), Layout.IMAGE)

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        turned = ".mT" if single_input(inputs).layout is Layout.SEQUENCE else ""
        return f"{{input}}{turned}.unflatten(2, ({settings['height']}, -1))"


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
        Example((Shape.of((4, 3)),), {"axis": "positions", "stop": 3}),
    )

    @classmethod
    def _axis(cls, shape: Shape, settings: Settings) -> int:
        if settings["axis"] not in shape.axes:
            raise ShapeError(f"expected an axis of {shape}, got axis={settings['axis']}")
        return shape.axes[settings["axis"]]

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = super().infer_shape(inputs, settings)
        axis = cls._axis(shape, settings)
        kept = range(shape.sizes[axis])[settings["start"] : settings["stop"]]
        if not kept:
            got = f"got {settings['start']} to {settings['stop']}"
            raise ShapeError(f"expected a slice of {shape} with an entry, {got}")
        return shape.with_size(axis, len(kept))

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        axis = cls._axis(single_input(inputs), settings)
        stop = "" if settings["stop"] is None else settings["stop"]
        return f"{{input}}[{':, ' * (axis + 1)}{settings['start']}:{stop}]"


class Upsample(Operation):
    """A signal, an image or a volume with `factor` times as many positions along each axis."""

    category, layouts = Category.POOLING, CHANNELS_FIRST
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
        shape = super().infer_shape(inputs, settings)
        return shape.with_positions([settings["factor"] * size for size in shape.positions])

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        prefix = {Layout.IMAGE: "bi", Layout.VOLUME: "tri"}.get(single_input(inputs).layout, "")
        mode = prefix + "linear" if settings["mode"] == "linear" else settings["mode"]
        return f"F.interpolate({{input}}, scale_factor={float(settings['factor'])}, mode={mode!r})"
