"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.graphs.operation import Category, Operation, single_input
from gflownet.graphs.tensor_shape import Layout, Shape

_CLASSES = {Layout.VECTOR: "BatchNorm1d", Layout.SIGNAL: "BatchNorm1d", Layout.IMAGE: "BatchNorm2d"}


class BatchNorm(Operation):
    """Normalise each channel over the batch and all positions, then scale and shift it (Ioffe and Szegedy 2015)."""

    category = Category.NORMALISATION

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return single_input(inputs, *_CLASSES)

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        shape = single_input(inputs)
        return f"nn.{_CLASSES[shape.layout]}({shape.channels})"

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return 2 * single_input(inputs).channels
