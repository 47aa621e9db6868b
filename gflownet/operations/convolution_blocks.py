"""Composites of convolution, normalisation and activation, for signals and images."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.graphs.operation import Category, Example, Setting, single_input
from gflownet.graphs.tensor_shape import Layout, Shape
from gflownet.graphs.vocabulary import POSITIVE_INT
from gflownet.operations.composite import Composite, Data, GraphData
from gflownet.operations.convolution import Conv2d

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
        {
            **_SEPARABLE_SETTINGS,
            "dilation": Setting(POSITIVE_INT, 2, choices=(2,)),
            "repeats": Setting(POSITIVE_INT, 1),
        }
    )
    examples = (Example((_SIGNAL,), {"features": 3}), Example((_IMAGE,), {"features": 3}))
