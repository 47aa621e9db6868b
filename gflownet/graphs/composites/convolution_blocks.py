"""Composites of convolution, normalisation and activation, for signals and images."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.graphs.composite import Composite, Data, GraphData
from gflownet.operations.convolution import Conv2d
from gflownet.operations.operation import Category, Example, Setting, single_input
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import POSITIVE_INT

_CONV_SETTINGS = MappingProxyType({key: value for key, value in Conv2d.settings.items() if key != "bias"})
_WINDOW = ("kernel_size", "stride", "dilation", "padding")
_SEPARABLE_SETTINGS = MappingProxyType({key: Conv2d.settings[key] for key in ("features", *_WINDOW)})
_SIGNAL = Shape((2, 7), Layout.SIGNAL)
_IMAGE = Shape((2, 5, 6), Layout.IMAGE)


def dimensions(inputs: Mapping[str, Shape]) -> str:
    """Return the end of the names of operations for the input's layout. Raises ShapeError unless signal or image."""
    return {Layout.SIGNAL: "1d", Layout.IMAGE: "2d"}[single_input(inputs, Layout.SIGNAL, Layout.IMAGE).layout]


class ConvBNReLU(Composite):
    """Convolution without bias, batch norm, ReLU: for signals and images."""

    category = Category.CONVOLUTION
    settings = _CONV_SETTINGS
    examples = (
        Example((_SIGNAL,), {"features": 3, "kernel_size": 5}),
        Example((_IMAGE,), {"features": 3, "stride": 2}),
    )

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data = GraphData(inputs)
        data.add(f"conv{dimensions(inputs)}", 0, bias=False, **settings)
        data.add("batch_norm", 1, activation="relu")
        return data.finish()


class ReLUConvBN(Composite):
    """ReLU, convolution without bias, batch norm (Dong and Yang 2020): for signals and images."""

    category = Category.CONVOLUTION
    settings = _CONV_SETTINGS
    examples = (Example((_SIGNAL,), {"features": 3}), Example((_IMAGE,), {"features": 3}))

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data = GraphData(inputs)
        data.add("identity", 0, activation="relu")
        data.add(f"conv{dimensions(inputs)}", 1, bias=False, **settings)
        data.add("batch_norm", 2)
        return data.finish()


class InvertedBottleneck(Composite):
    """1x1 convolution to `expansion` times the channels, depthwise convolution, 1x1 convolution, each with batch norm.

    ReLU6 after the first two; the input is added where the shapes agree (Sandler et al. 2018, MobileNetV2).
    """

    category = Category.CONVOLUTION
    settings = MappingProxyType(
        {
            **{key: Conv2d.settings[key] for key in ("features", "kernel_size", "stride", "padding")},
            "expansion": Setting(POSITIVE_INT, 3, choices=(3, 6)),
        }
    )
    examples = (
        Example((_IMAGE,), {"features": 2, "expansion": 2}),
        Example((_IMAGE,), {"features": 3, "stride": 2, "expansion": 1}),
        Example((_SIGNAL,), {"features": 3, "kernel_size": 5}),
    )

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, shape, end = GraphData(inputs), single_input(inputs), dimensions(inputs)
        one = {"kernel_size": 1, "bias": False}
        last = data.add(f"conv{end}", 0, features=settings["expansion"] * shape.channels, **one)
        last = data.add("batch_norm", last, activation="relu6")
        window = {key: settings[key] for key in ("kernel_size", "stride", "padding")}
        last = data.add(f"depthwise_conv{end}", last, bias=False, **window)
        last = data.add("batch_norm", last, activation="relu6")
        last = data.add(f"conv{end}", last, features=settings["features"], **one)
        last = data.add("batch_norm", last)
        if settings["stride"] == 1 and settings["features"] == shape.channels and settings["padding"] != "valid":
            data.add("identity", 0, last)
        return data.finish()


def _shortcut(data: GraphData, end: str, shape: Shape, settings: Mapping[str, Any]) -> int:
    """Add a 1x1 convolution with batch norm where a block changes the shape; return the id of the shortcut's node."""
    features, stride = settings["features"], settings["stride"]
    if stride == 1 and features == shape.channels:
        return 0
    convolution = data.add(f"conv{end}", 0, features=features, kernel_size=1, stride=stride, bias=False)
    return data.add("batch_norm", convolution)


class ResidualBlock(Composite):
    """Two convolutions with batch norm, plus the input, ReLU after the first and after the sum (He et al. 2016).

    Where the shape changes, the input goes through a 1x1 convolution with batch norm.
    """

    category = Category.CONVOLUTION
    settings = MappingProxyType({key: Conv2d.settings[key] for key in ("features", "kernel_size", "stride")})
    examples = (Example((_IMAGE,), {"features": 3, "stride": 2}), Example((_SIGNAL,), {"features": 2}))

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, end = GraphData(inputs), dimensions(inputs)
        shortcut = _shortcut(data, end, single_input(inputs), settings)
        last = data.add(f"conv{end}", 0, bias=False, **settings)
        last = data.add("batch_norm", last, activation="relu")
        last = data.add(f"conv{end}", last, bias=False, **{**settings, "stride": 1})
        last = data.add("batch_norm", last)
        data.add("identity", shortcut, last, activation="relu")
        return data.finish()


class BottleneckBlock(Composite):
    """1x1 convolution to features / `ratio` channels, convolution, 1x1 convolution to `features`, plus the input.

    Each with batch norm, ReLU after the first two and after the sum; the second one has the stride (He et al. 2016).
    """

    category = Category.CONVOLUTION
    settings = MappingProxyType({**ResidualBlock.settings, "ratio": Setting(POSITIVE_INT, 4, choices=(2, 4))})
    examples = (Example((_IMAGE,), {"features": 4, "stride": 2}), Example((_SIGNAL,), {"features": 2, "ratio": 1}))

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, end, features, ratio = GraphData(inputs), dimensions(inputs), settings["features"], settings["ratio"]
        if features % ratio:
            raise ShapeError(f"expected features divisible by ratio={ratio}, got {features}")
        shortcut = _shortcut(data, end, single_input(inputs), settings)
        window = {key: settings[key] for key in ("kernel_size", "stride")}
        last = data.add(f"conv{end}", 0, features=features // ratio, kernel_size=1, bias=False)
        last = data.add("batch_norm", last, activation="relu")
        last = data.add(f"conv{end}", last, features=features // ratio, bias=False, **window)
        last = data.add("batch_norm", last, activation="relu")
        last = data.add(f"conv{end}", last, features=features, kernel_size=1, bias=False)
        last = data.add("batch_norm", last)
        data.add("identity", shortcut, last, activation="relu")
        return data.finish()


def _separable(
    data: GraphData, source: int, end: str, features: int, window: Mapping[str, Any], activation: str
) -> int:
    """Add a depthwise convolution, a 1x1 convolution and batch norm; return the id of the last node."""
    depthwise = data.add(f"depthwise_conv{end}", source, bias=False, **window)
    pointwise = data.add(f"conv{end}", depthwise, features=features, kernel_size=1, bias=False)
    return data.add("batch_norm", pointwise, activation=activation)


class SeparableConvBNReLU(Composite):
    """Depthwise convolution, 1x1 convolution, batch norm, ReLU: for signals and images."""

    category = Category.CONVOLUTION
    settings = _SEPARABLE_SETTINGS
    examples = (Example((_SIGNAL,), {"features": 3}), Example((_IMAGE,), {"features": 3, "stride": 2}))

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, window = GraphData(inputs), {key: settings[key] for key in _WINDOW}
        _separable(data, 0, dimensions(inputs), settings["features"], window, "relu")
        return data.finish()


class SeparableConv(Composite):
    """ReLU, depthwise convolution, 1x1 convolution, batch norm, all of it `repeats` times; the stride is the first's.

    Liu, Simonyan and Yang 2019 (DARTS): their separable convolution has two repeats.
    """

    category = Category.CONVOLUTION
    settings = MappingProxyType({**_SEPARABLE_SETTINGS, "repeats": Setting(POSITIVE_INT, 2, choices=(1, 2))})
    examples = (Example((_SIGNAL,), {"features": 3}), Example((_IMAGE,), {"features": 3, "stride": 2, "repeats": 3}))

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, channels = GraphData(inputs), single_input(inputs).channels
        window = {key: settings[key] for key in _WINDOW}
        last, num_repeats = 0, settings["repeats"]
        for repeat in range(num_repeats):
            start = data.add("identity", last, activation="relu")
            features = settings["features"] if repeat == num_repeats - 1 else channels
            last = _separable(data, start, dimensions(inputs), features, window, "linear")
            window = {**window, "stride": 1}
        return data.finish()


class DilatedConv(SeparableConv):
    """ReLU, dilated depthwise convolution, 1x1 convolution, batch norm (Liu, Simonyan and Yang 2019, DARTS)."""

    settings = MappingProxyType(
        {**_SEPARABLE_SETTINGS, "dilation": Setting(POSITIVE_INT, 2, choices=(2,)), "repeats": Setting(POSITIVE_INT, 1)}
    )
    examples = (Example((_SIGNAL,), {"features": 3}), Example((_IMAGE,), {"features": 3}))


_EVEN_SIGNAL = Shape((2, 8), Layout.SIGNAL)
_EVEN_IMAGE = Shape((2, 6, 8), Layout.IMAGE)
_FEATURES = Setting(POSITIVE_INT, choices=(8, 16, 32, 64))


class ResidualReduction(Composite):
    """Half the positions: two ReLU-conv-BN, the first of stride 2, plus a pooled 1x1 convolution of the input.

    Dong and Yang 2020: between two stages of cells of NAS-Bench-201.
    """

    category = Category.CONVOLUTION
    settings = MappingProxyType({"features": _FEATURES})
    examples = (Example((_EVEN_SIGNAL,), {"features": 3}), Example((_EVEN_IMAGE,), {"features": 3}))

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, end, features = GraphData(inputs), dimensions(inputs), settings["features"]
        if any(size % 2 for size in single_input(inputs).positions):
            raise ShapeError(f"expected an even number of positions along each axis, got {single_input(inputs)}")
        halved = data.add("relu_conv_bn", 0, features=features, stride=2)
        convolved = data.add("relu_conv_bn", halved, features=features)
        pooled = data.add(f"avg_pool{end}", 0, kernel_size=2, stride=2)
        shortcut = data.add(f"conv{end}", pooled, features=features, kernel_size=1, bias=False)
        data.add("identity", convolved, shortcut)
        return data.finish()
