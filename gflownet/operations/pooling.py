"""Pooling over positions: in windows, and over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from gflownet.operations.convolution import PADDING, num_windows, padding
from gflownet.operations.operation import Category, Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Layout, Shape
from gflownet.operations.vocabulary import POSITIVE_INT, Parameter

REDUCTIONS = ("mean", "max")
REDUCTION = Parameter(f"one of {', '.join(REDUCTIONS)}", lambda value: value in REDUCTIONS)
_SAME = {"kernel_size": 3, "stride": 1, "padding": "same"}
_SIGNAL = Shape((3, 7), Layout.SIGNAL)
_IMAGE = Shape((3, 5, 6), Layout.IMAGE)


class _WindowPool(Operation):
    category = Category.POOLING
    has_products = False
    settings = MappingProxyType(
        {
            "kernel_size": Setting(POSITIVE_INT, 2, choices=(2, 3)),
            "stride": Setting(POSITIVE_INT, 2, choices=(2,)),
            "padding": Setting(PADDING, "valid"),
        }
    )
    layout: ClassVar[Layout]
    function: ClassVar[str]
    keywords: ClassVar[str] = ""

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, cls.layout)
        return shape.with_positions(num_windows(shape, settings))

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        (pad, _), *_ = padding(single_input(inputs), settings)
        added = f", padding={pad}{cls.keywords}" if pad else ""
        return f"F.{cls.function}({{input}}, {settings['kernel_size']}, {settings['stride']}{added})"


class MaxPool1d(_WindowPool):
    """The largest value of each window of a signal [C, L]."""

    layout, function = Layout.SIGNAL, "max_pool1d"
    examples = (Example((_SIGNAL,)), Example((_SIGNAL,), _SAME))


class MaxPool2d(_WindowPool):
    """The largest value of each window of an image [C, H, W]."""

    layout, function = Layout.IMAGE, "max_pool2d"
    examples = (Example((_IMAGE,)), Example((_IMAGE,), {**_SAME, "stride": 2}))


class AvgPool1d(_WindowPool):
    """The mean of each window of a signal [C, L]; padded positions are not counted."""

    layout, function, keywords = Layout.SIGNAL, "avg_pool1d", ", count_include_pad=False"
    examples = (Example((_SIGNAL,)), Example((_SIGNAL,), _SAME))


class AvgPool2d(_WindowPool):
    """The mean of each window of an image [C, H, W]; padded positions are not counted."""

    layout, function, keywords = Layout.IMAGE, "avg_pool2d", ", count_include_pad=False"
    examples = (Example((_IMAGE,)), Example((_IMAGE,), _SAME))


class GlobalPool(Operation):
    """The mean or maximum over all positions: a vector [C]."""

    category = Category.POOLING
    has_products = False
    settings = MappingProxyType({"reduction": Setting(REDUCTION, "mean", choices=REDUCTIONS)})
    examples = (Example((_IMAGE,)), Example((_SIGNAL,), {"reduction": "max"}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, *CHANNELS_FIRST, Layout.SEQUENCE)
        return Shape((shape.channels,), Layout.VECTOR)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        function = {"mean": "mean", "max": "amax"}[settings["reduction"]]
        shape = single_input(inputs)
        axes = tuple(axis + 1 for axis in range(len(shape.sizes)) if axis != shape.channel_axis)  # after the batch
        return f"{{input}}.{function}(dim={axes})"
