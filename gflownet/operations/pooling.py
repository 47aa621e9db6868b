"""Pooling over positions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.graphs.operation import Category, Operation, Setting, single_input
from gflownet.graphs.tensor_shape import Layout, Shape, ShapeError
from gflownet.graphs.vocabulary import POSITIVE_INT


class MaxPool2d(Operation):
    """The largest value of each window of an image, without padding."""

    category = Category.POOLING
    settings = MappingProxyType(
        {"kernel_size": Setting(POSITIVE_INT, 2, choices=(2,)), "stride": Setting(POSITIVE_INT, 2, choices=(2,))}
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.IMAGE)
        positions = [(size - settings["kernel_size"]) // settings["stride"] + 1 for size in shape.positions]
        if min(positions) < 1:
            raise ShapeError(f"expected positions of at least {settings['kernel_size']}, got {shape}")
        return shape.with_positions(positions)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"F.max_pool2d({{input}}, {settings['kernel_size']}, {settings['stride']})"


class GlobalPool(Operation):
    """The average over all positions: a vector."""

    category = Category.POOLING

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.IMAGE, Layout.SIGNAL, Layout.SEQUENCE)
        return Shape((shape.channels,), Layout.VECTOR)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        shape = single_input(inputs)
        axes = tuple(axis + 1 for axis in range(len(shape.sizes)) if axis != shape.channel_axis)
        return f"{{input}}.mean(dim={axes})"
