"""Windows over the positions of signals and images: convolutions, plain and depthwise, and pooling."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input, words
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Layout, Shape, ShapeError
from gflownet.operations.vocabulary import BOOL, POSITIVE_INT, one_of

PADDINGS = ("same", "valid")
PADDING = one_of(*PADDINGS)
REDUCTIONS = {"mean": "mean", "max": "amax"}  # methods of a tensor
FEATURES = Setting(POSITIVE_INT, choices=(8, 16, 32, 64))
BIAS = Setting(BOOL, True)
_WINDOW = {
    "kernel_size": Setting(POSITIVE_INT, 3, choices=(1, 3, 5)),
    "stride": Setting(POSITIVE_INT, 1, choices=(1, 2)),
    "dilation": Setting(POSITIVE_INT, 1, choices=(1, 2)),
}
_SAME = Setting(one_of(*PADDINGS, "same_upper"), "same")
_SAME_POOL = {"kernel_size": 3, "stride": 1, "padding": "same"}
_SIGNAL, _IMAGE = Shape((4, 7), Layout.SIGNAL), Shape((4, 5, 6), Layout.IMAGE)


def reach(settings: Settings) -> int:
    """Return the distance between the first and the last position of a window."""
    return (settings["kernel_size"] - 1) * settings.get("dilation", 1)


def over_positions(shape: Shape, method: str) -> str:
    """Return the code of the input reduced to [C] by a method of a tensor; the input itself without positions."""
    axes = tuple(axis + 1 for axis in range(len(shape.sizes)) if axis != shape.channel_axis)  # after the batch
    return f"{{input}}.{method}(dim={axes})" if axes else "{input}"


class _Windows(Operation):
    @classmethod
    def added(cls, shape: Shape, settings: Settings) -> list[tuple[int, int]]:
        """Return the added positions before and after each position axis.

        same: reach / 2 on each side, for odd kernels; same_upper: as many as give ceil(size / stride) positions, the
        odd one at the end (ONNX's SAME_UPPER, TensorFlow's SAME); valid: none.
        """
        distance, stride = reach(settings), settings["stride"]
        totals = [distance * (settings["padding"] == "same")] * len(shape.positions)
        if settings["padding"] == "same_upper":
            totals = [max(0, (-(-size // stride) - 1) * stride + distance + 1 - size) for size in shape.positions]
        return [(total // 2, total - total // 2) for total in totals]

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, distance = super().infer_shape(inputs, settings), reach(settings)
        if settings["padding"] == "same" and distance % 2:
            raise ShapeError(f"expected an odd kernel_size with padding=same, got {settings['kernel_size']}")
        padded = [size + sum(added) for size, added in zip(shape.positions, cls.added(shape, settings), strict=True)]
        if min(padded) <= distance:
            raise ShapeError(f"expected at least {distance + 1} positions along each axis, got {single_input(inputs)}")
        return shape.with_positions([(size - distance - 1) // settings["stride"] + 1 for size in padded])


class _Convolution(_Windows):
    category = Category.CONVOLUTION
    is_layer = True
    settings = MappingProxyType(
        {"features": FEATURES, **_WINDOW, "groups": Setting(POSITIVE_INT, 1), "padding": _SAME, "bias": BIAS}
    )

    @classmethod
    def complete(cls, shape: Shape, settings: Settings) -> dict[str, Any]:
        """Return the settings with features and groups."""
        return {**settings}

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = single_input(inputs, *cls.layouts)
        settings = cls.complete(shape, settings)
        channels, features, groups = shape.channels, settings["features"], settings["groups"]
        if channels % groups or features % groups:
            got = f"got {channels} and {features}"
            raise ShapeError(f"expected channels and features divisible by groups={groups}, {got}")
        return super().infer_shape(inputs, settings).with_channels(features)

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        shape = single_input(inputs)
        settings = cls.complete(shape, settings)
        pads = [before * (before == after) for before, after in cls.added(shape, settings)]
        settings["padding"] = pads[0] if len(set(pads)) == 1 else tuple(pads)
        more = words(settings, stride=1, padding=0, dilation=1, groups=1, bias=True)
        return f"nn.Conv{len(pads)}d({shape.channels}, {settings['features']}, {settings['kernel_size']}{more})"

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        # The module pads both sides of an axis equally.
        pads = [(0, 0) if pad[0] == pad[1] else pad for pad in cls.added(single_input(inputs), settings)]
        if not any(map(sum, pads)):
            return "{module}({input})"
        return f"{{module}}(F.pad({{input}}, {tuple(side for pad in reversed(pads) for side in pad)}))"

    @classmethod
    def num_parameters(cls, inputs: Shapes, settings: Settings) -> int:
        # A module without data takes .4 ms, and a search of images has thousands of shapes.
        shape = single_input(inputs)
        settings = cls.complete(shape, settings)
        window = settings["kernel_size"] ** len(shape.positions)
        return settings["features"] * (shape.channels // settings["groups"] * window + settings["bias"])


class Conv1d(_Convolution):
    """Convolution of a signal [C, L]; padding "same" adds (kernel_size - 1) * dilation / 2 zeros on each side."""

    layouts = (Layout.SIGNAL,)
    examples = (
        Example((_SIGNAL,), {"features": 6, "kernel_size": 5, "groups": 2}),
        Example((_SIGNAL,), {"features": 3, "stride": 2, "padding": "valid", "bias": False}),
        Example((_SIGNAL,), {"features": 3, "kernel_size": 4, "stride": 2, "padding": "same_upper"}),
    )


class Conv2d(_Convolution):
    """Convolution of an image [C, H, W]; padding "same" adds (kernel_size - 1) * dilation / 2 zeros on each side."""

    layouts = (Layout.IMAGE,)
    examples = (
        Example((_IMAGE,), {"features": 6, "groups": 2, "stride": 2}),
        Example((_IMAGE,), {"features": 3, "dilation": 2, "padding": "valid", "bias": False}),
        Example((_IMAGE,), {"features": 3, "stride": 2, "padding": "same_upper"}),
    )


class _DepthwiseConvolution(_Convolution):
    settings = MappingProxyType({**_WINDOW, "multiplier": Setting(POSITIVE_INT, 1), "padding": _SAME, "bias": BIAS})

    @classmethod
    def complete(cls, shape: Shape, settings: Settings) -> dict[str, Any]:
        return {**settings, "features": shape.channels * settings["multiplier"], "groups": shape.channels}


class DepthwiseConv1d(_DepthwiseConvolution):
    """Convolution of each channel of a signal [C, L] by itself: `multiplier` output channels each."""

    layouts = (Layout.SIGNAL,)
    examples = (Example((_SIGNAL,), {"multiplier": 2, "dilation": 2}),)


class DepthwiseConv2d(_DepthwiseConvolution):
    """Convolution of each channel of an image [C, H, W] by itself: `multiplier` output channels each."""

    layouts = (Layout.IMAGE,)
    examples = (Example((_IMAGE,), {"stride": 2, "bias": False}),)


class _WindowPool(_Windows):
    category = Category.POOLING
    has_products = False
    settings = MappingProxyType(
        {
            "kernel_size": Setting(POSITIVE_INT, 2, choices=(2, 3)),
            "stride": Setting(POSITIVE_INT, 2, choices=(2,)),
            "padding": Setting(PADDING, "valid"),
        }
    )
    function: ClassVar[str]

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        (pad, _), *_ = cls.added(single_input(inputs), settings)
        added = f", padding={pad}{', count_include_pad=False' * cls.function.startswith('avg')}" if pad else ""
        return f"F.{cls.function}({{input}}, {settings['kernel_size']}, {settings['stride']}{added})"


class MaxPool1d(_WindowPool):
    """The largest value of each window of a signal [C, L]."""

    layouts, function = (Layout.SIGNAL,), "max_pool1d"
    examples = (Example((_SIGNAL,)), Example((_SIGNAL,), _SAME_POOL))


class MaxPool2d(_WindowPool):
    """The largest value of each window of an image [C, H, W]."""

    layouts, function = (Layout.IMAGE,), "max_pool2d"
    examples = (Example((_IMAGE,)), Example((_IMAGE,), {**_SAME_POOL, "stride": 2}))


class AvgPool1d(_WindowPool):
    """The mean of each window of a signal [C, L]; padded positions are not counted."""

    layouts, function = (Layout.SIGNAL,), "avg_pool1d"
    examples = (Example((_SIGNAL,)), Example((_SIGNAL,), _SAME_POOL))


class AvgPool2d(_WindowPool):
    """The mean of each window of an image [C, H, W]; padded positions are not counted."""

    layouts, function = (Layout.IMAGE,), "avg_pool2d"
    examples = (Example((_IMAGE,)), Example((_IMAGE,), _SAME_POOL))


class GlobalPool(Operation):
    """The mean or maximum over all positions: a vector [C]."""

    category = Category.POOLING
    has_products = False
    settings = MappingProxyType({"reduction": Setting(one_of(*REDUCTIONS), "mean", choices=tuple(REDUCTIONS))})
    layouts = (*CHANNELS_FIRST, Layout.SEQUENCE)
    examples = (Example((_IMAGE,)), Example((_SIGNAL,), {"reduction": "max"}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        return Shape.of(super().infer_shape(inputs, settings).channels)

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        return over_positions(single_input(inputs), REDUCTIONS[settings["reduction"]])
