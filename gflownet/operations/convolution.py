"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from gflownet.graphs.operation import Category, Operation, Setting, single_input
from gflownet.graphs.tensor_shape import Layout, Shape, ShapeError
from gflownet.graphs.vocabulary import BOOL, POSITIVE_INT, Parameter

PADDING = Parameter('"same" or "valid"', lambda value: value in ("same", "valid"))
_SETTINGS = {
    "features": Setting(POSITIVE_INT, choices=(8, 16, 32, 64)),
    "kernel_size": Setting(POSITIVE_INT, 3, choices=(1, 3, 5)),
    "stride": Setting(POSITIVE_INT, 1, choices=(1, 2)),
    "dilation": Setting(POSITIVE_INT, 1),
    "groups": Setting(POSITIVE_INT, 1),
    "padding": Setting(PADDING, "same"),
    "bias": Setting(BOOL, True),
}


class Conv2d(Operation):
    """Convolution of an image [C, H, W]; padding "same" is (kernel - 1) * dilation / 2 zeros on each side."""

    category = Category.CONVOLUTION
    settings = MappingProxyType(_SETTINGS)
    layout = Layout.IMAGE

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, groups = single_input(inputs, cls.layout), settings["groups"]
        if shape.channels % groups or settings["features"] % groups:
            raise ShapeError(f"expected channels divisible by groups={groups}, got {shape.channels} channels")
        reach = (settings["kernel_size"] - 1) * settings["dilation"]
        if settings["padding"] == "same" and reach % 2:
            raise ShapeError(f"expected an odd kernel_size with padding=same, got {settings['kernel_size']}")
        padded = reach if settings["padding"] == "same" else 0
        positions = [(size + padded - reach - 1) // settings["stride"] + 1 for size in shape.positions]
        if min(positions) < 1:
            raise ShapeError(f"expected positions of at least {reach + 1}, got {shape}")
        return shape.with_positions(positions).with_channels(settings["features"])

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        padding = (settings["kernel_size"] - 1) * settings["dilation"] // 2 if settings["padding"] == "same" else 0
        words = [str(single_input(inputs).channels), str(settings["features"]), str(settings["kernel_size"])]
        defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True}
        values = {**settings, "padding": padding}
        words += [f"{key}={values[key]}" for key, default in defaults.items() if values[key] != default]
        return f"nn.{cls.__name__}({', '.join(words)})"

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        window = settings["kernel_size"] ** len(single_input(inputs).positions)
        per_feature = single_input(inputs).channels // settings["groups"] * window + settings["bias"]
        return settings["features"] * per_feature

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        weights = cls.num_parameters(inputs, {**settings, "bias": False})
        return weights * prod(cls.infer_shape(inputs, settings).positions)
