"""Composites of convolution, normalisation and activation, for signals and images."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.graphs.operation import Category, Example, single_input
from gflownet.graphs.tensor_shape import Layout, Shape
from gflownet.operations.composite import Composite, Data, GraphData
from gflownet.operations.convolution import Conv2d

_CONV_SETTINGS = MappingProxyType({key: value for key, value in Conv2d.settings.items() if key != "bias"})
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
