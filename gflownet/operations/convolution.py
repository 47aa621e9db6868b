"""Convolutions of signals and images: plain and depthwise."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

from gflownet.operations.operation import Category, Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import BOOL, POSITIVE_INT, Parameter

PADDINGS = ("same", "valid")
CONVOLUTION_PADDINGS = (*PADDINGS, "same_upper")
PADDING = Parameter(f"one of {', '.join(PADDINGS)}", lambda value: value in PADDINGS)
CONVOLUTION_PADDING = Parameter(
    f"one of {', '.join(CONVOLUTION_PADDINGS)}", lambda value: value in CONVOLUTION_PADDINGS
)


def reach(settings: Mapping[str, Any]) -> int:
    """Return the distance between the first and the last position of a window."""
    return (settings["kernel_size"] - 1) * settings.get("dilation", 1)


def padding(shape: Shape, settings: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the added positions before and after each position axis.

    same: reach / 2 on each side, for odd kernels; same_upper: as many as give ceil(size / stride) positions, the odd
    one at the end (ONNX's SAME_UPPER, TensorFlow's SAME); valid: none.
    """
    distance, stride = reach(settings), settings["stride"]
    match settings["padding"]:
        case "same":
            return [(distance // 2, distance // 2)] * len(shape.positions)
        case "same_upper":
            totals = [max(0, (-(-size // stride) - 1) * stride + distance + 1 - size) for size in shape.positions]
            return [(total // 2, total - total // 2) for total in totals]
        case _:
            return [(0, 0)] * len(shape.positions)


def num_windows(shape: Shape, settings: Mapping[str, Any]) -> list[int]:
    """Return the number of windows along each position axis. Raises ShapeError where none fits."""
    distance = reach(settings)
    if settings["padding"] == "same" and distance % 2:
        raise ShapeError(f"expected an odd kernel_size with padding=same, got {settings['kernel_size']}")
    sizes = [size + sum(added) for size, added in zip(shape.positions, padding(shape, settings), strict=True)]
    if min(sizes) <= distance:
        raise ShapeError(f"expected at least {distance + 1} positions along each axis, got {shape}")
    return [(size - distance - 1) // settings["stride"] + 1 for size in sizes]


FEATURES = Setting(POSITIVE_INT, choices=(8, 16, 32, 64))
_WINDOW = {
    "kernel_size": Setting(POSITIVE_INT, 3, choices=(1, 3, 5)),
    "stride": Setting(POSITIVE_INT, 1, choices=(1, 2)),
    "dilation": Setting(POSITIVE_INT, 1, choices=(1, 2)),
}
_GROUPS = Setting(POSITIVE_INT, 1)
_SAME = Setting(CONVOLUTION_PADDING, "same")
_BIAS = Setting(BOOL, True)
_SIGNAL = Shape((4, 7), Layout.SIGNAL)
_IMAGE = Shape((4, 5, 6), Layout.IMAGE)
_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True}


def _module(name: str, channels: int, features: int, settings: Mapping[str, Any]) -> str:
    """Return the constructor of a convolution of torch.nn; words with default values are left out."""
    words = [str(channels), str(features), str(settings["kernel_size"])]
    words += [f"{key}={settings[key]}" for key, value in _DEFAULTS.items() if settings.get(key, value) != value]
    return f"nn.{name}({', '.join(words)})"


def _check_groups(channels: int, features: int, groups: int) -> None:
    if channels % groups or features % groups:
        raise ShapeError(f"expected channels and features divisible by groups={groups}, got {channels} and {features}")


class _Convolution(Operation):
    category = Category.CONVOLUTION
    settings = MappingProxyType({"features": FEATURES, **_WINDOW, "groups": _GROUPS, "padding": _SAME, "bias": _BIAS})
    layout: ClassVar[Layout]

    @classmethod
    def features(cls, shape: Shape, settings: Mapping[str, Any]) -> int:
        """Return the number of output channels."""
        return settings["features"]

    @classmethod
    def groups(cls, shape: Shape, settings: Mapping[str, Any]) -> int:
        """Return the number of groups of channels that are convolved apart."""
        return settings["groups"]

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, cls.layout)
        features = cls.features(shape, settings)
        _check_groups(shape.channels, features, cls.groups(shape, settings))
        return shape.with_positions(num_windows(shape, settings)).with_channels(features)

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        shape = single_input(inputs)
        pads = padding(shape, settings)
        one_side = [0 if before != after else before for before, after in pads]
        value = one_side[0] if len(set(one_side)) == 1 else tuple(one_side)
        values = {**settings, "padding": value, "groups": cls.groups(shape, settings)}
        return _module(f"Conv{len(pads)}d", shape.channels, cls.features(shape, settings), values)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        # The module pads both sides of an axis equally.
        pads = [(0, 0) if before == after else (before, after) for before, after in padding(inputs["input"], settings)]
        if not any(map(sum, pads)):
            return "{module}({input})"
        return f"{{module}}(F.pad({{input}}, {tuple(side for pad in reversed(pads) for side in pad)}))"

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        shape = single_input(inputs)
        window = settings["kernel_size"] ** len(shape.positions)
        per_feature = shape.channels // cls.groups(shape, settings) * window + settings["bias"]
        return cls.features(shape, settings) * per_feature

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        weights = cls.num_parameters(inputs, {**settings, "bias": False})
        return weights * prod(cls.infer_shape(inputs, settings).positions)


class Conv1d(_Convolution):
    """Convolution of a signal [C, L]; padding "same" adds (kernel_size - 1) * dilation / 2 zeros on each side."""

    layout = Layout.SIGNAL
    examples = (
        Example((_SIGNAL,), {"features": 6, "kernel_size": 5, "groups": 2}),
        Example((_SIGNAL,), {"features": 3, "stride": 2, "padding": "valid", "bias": False}),
        Example((_SIGNAL,), {"features": 3, "kernel_size": 4, "stride": 2, "padding": "same_upper"}),
    )


class Conv2d(_Convolution):
    """Convolution of an image [C, H, W]; padding "same" adds (kernel_size - 1) * dilation / 2 zeros on each side."""

    layout = Layout.IMAGE
    examples = (
        Example((_IMAGE,), {"features": 6, "groups": 2, "stride": 2}),
        Example((_IMAGE,), {"features": 3, "dilation": 2, "padding": "valid", "bias": False}),
        Example((_IMAGE,), {"features": 3, "stride": 2, "padding": "same_upper"}),
    )


class _DepthwiseConvolution(_Convolution):
    settings = MappingProxyType({**_WINDOW, "multiplier": Setting(POSITIVE_INT, 1), "padding": _SAME, "bias": _BIAS})

    @classmethod
    def features(cls, shape: Shape, settings: Mapping[str, Any]) -> int:
        return shape.channels * settings["multiplier"]

    @classmethod
    def groups(cls, shape: Shape, settings: Mapping[str, Any]) -> int:
        return shape.channels


class DepthwiseConv1d(_DepthwiseConvolution):
    """Convolution of each channel of a signal [C, L] by itself: `multiplier` output channels each."""

    layout = Layout.SIGNAL
    examples = (Example((_SIGNAL,), {"multiplier": 2, "dilation": 2}),)


class DepthwiseConv2d(_DepthwiseConvolution):
    """Convolution of each channel of an image [C, H, W] by itself: `multiplier` output channels each."""

    layout = Layout.IMAGE
    examples = (Example((_IMAGE,), {"stride": 2, "bias": False}),)
