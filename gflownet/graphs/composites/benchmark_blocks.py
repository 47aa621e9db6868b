"""Operations of NAS benchmarks' networks: the reduction of NAS-Bench-201 and the cut of channels of NAS-Bench-101."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.graphs.composite import Composite, Data, GraphData
from gflownet.graphs.composites.convolution_blocks import dimensions
from gflownet.operations.operation import Category, Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import POSITIVE_INT

_SIGNAL = Shape((2, 8), Layout.SIGNAL)
_IMAGE = Shape((2, 6, 8), Layout.IMAGE)
_FEATURES = Setting(POSITIVE_INT, choices=(8, 16, 32, 64))


class ResidualReduction(Composite):
    """Half the positions: two ReLU-conv-BN, the first of stride 2, plus a pooled 1x1 convolution of the input.

    Dong and Yang 2020: between two stages of cells of NAS-Bench-201.
    """

    category = Category.CONVOLUTION
    settings = MappingProxyType({"features": _FEATURES})
    examples = (Example((_SIGNAL,), {"features": 3}), Example((_IMAGE,), {"features": 3}))

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


class FirstChannels(Operation):
    """The first `features` channels, all positions."""

    category = Category.RESHAPING
    settings = MappingProxyType({"features": _FEATURES})
    examples = (Example((_SIGNAL,), {"features": 1}), Example((Shape.of((5, 4)),), {"features": 3}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.VECTOR, Layout.SEQUENCE, Layout.SIGNAL, Layout.IMAGE)
        if shape.channels < settings["features"]:
            raise ShapeError(f"expected at least {settings['features']} channels, got {shape}")
        return shape.with_channels(settings["features"])

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"{{input}}.narrow({single_input(inputs).channel_axis + 1}, 0, {settings['features']})"
