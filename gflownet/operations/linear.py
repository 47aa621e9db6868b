"""Linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from gflownet.graphs.operation import Category, Example, Operation, Setting, single_input
from gflownet.graphs.tensor_shape import Layout, Shape
from gflownet.graphs.vocabulary import BOOL, POSITIVE_INT

FEATURES = (8, 16, 32, 64)


class Linear(Operation):
    """x W^T + b over the last axis of a vector or a sequence."""

    category = Category.LINEAR
    settings = MappingProxyType({"features": Setting(POSITIVE_INT, choices=FEATURES), "bias": Setting(BOOL, True)})
    examples = (
        Example((Shape.of(3),), {"features": 4}),
        Example((Shape.of((5, 3)),), {"features": 2, "bias": False}),
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return single_input(inputs, Layout.VECTOR, Layout.SEQUENCE).with_channels(settings["features"])

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        bias = "" if settings["bias"] else ", bias=False"
        return f"nn.Linear({single_input(inputs).channels}, {settings['features']}{bias})"

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return settings["features"] * (single_input(inputs).channels + settings["bias"])

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        shape = single_input(inputs)
        return prod(shape.positions) * shape.channels * settings["features"]


class Head(Operation):
    """The average over all positions, then a linear layer: [F]."""

    category = Category.LINEAR
    settings = Linear.settings
    examples = (Example((Shape.of((2, 3, 4)),), {"features": 4}), Example((Shape.of((5, 3)),), {"features": 2}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        single_input(inputs, *(layout for layout in Layout if layout is not Layout.TOKENS))
        return Shape((settings["features"],), Layout.VECTOR)

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return Linear.constructor(inputs, settings)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        shape = single_input(inputs)
        axes = tuple(axis + 1 for axis in range(len(shape.sizes)) if axis != shape.channel_axis)
        return f"{{module}}({{input}}.mean(dim={axes}))" if axes else "{module}({input})"

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return Linear.num_parameters(inputs, settings)

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return single_input(inputs).channels * settings["features"]
