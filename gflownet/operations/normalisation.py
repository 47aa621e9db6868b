"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.operations.operation import Category, Example, SameShape, Setting, single_input
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.vocabulary import BOOL, EPSILON

_LAST_AXIS = (Layout.VECTOR, Layout.SEQUENCE)
_EPSILON = Setting(EPSILON, 1e-5)
_AFFINE = Setting(BOOL, True)
_VECTOR, _SEQUENCE = Shape.of(3), Shape.of((5, 4))
_SIGNAL, _IMAGE = Shape((4, 5), Layout.SIGNAL), Shape((4, 3, 2), Layout.IMAGE)


class _Norm(SameShape):
    category = Category.NORMALISATION
    has_products = False

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        if single_input(inputs).layout in _LAST_AXIS:
            return "{module}({input})"
        return "{module}({input}.movedim(1, -1)).movedim(-1, 1)"


class BatchNorm(_Norm):
    """Normalise each channel over the batch and all positions, then scale and shift it (Ioffe and Szegedy 2015)."""

    settings = MappingProxyType({"epsilon": _EPSILON, "momentum": Setting(EPSILON, 0.1), "affine": _AFFINE})
    examples = (
        Example((_VECTOR,)),
        Example((_SEQUENCE,), {"epsilon": 0.01}),
        Example((_SIGNAL,), {"affine": False}),
        Example((_IMAGE,), {"momentum": 0.3}),
    )

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        words = "({input.channels}, eps={epsilon}, momentum={momentum}, affine={affine})".format(**inputs, **settings)
        return f"nn.BatchNorm{max(1, len(single_input(inputs).positions))}d{words}"

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        if single_input(inputs).layout is Layout.SEQUENCE:
            return "{module}({input}.mT).mT"
        return "{module}({input})"


class LayerNorm(_Norm):
    """Normalise the features of each position, then scale and shift them (Ba, Kiros and Hinton 2016)."""

    settings = MappingProxyType({"epsilon": _EPSILON, "affine": _AFFINE, "bias": Setting(BOOL, True)})
    layer = "nn.LayerNorm({input.channels}, eps={epsilon}, elementwise_affine={affine}, bias={bias})"
    examples = (
        Example((_VECTOR,)),
        Example((_SEQUENCE,), {"epsilon": 1e-12}),
        Example((_SIGNAL,), {"bias": False}),
        Example((_IMAGE,), {"affine": False}),
    )


class RMSNorm(_Norm):
    """Divide the features of each position by their root mean square, then scale them (Zhang and Sennrich 2019)."""

    settings = MappingProxyType({"epsilon": Setting(EPSILON, 1e-6), "affine": _AFFINE})
    layer = "nn.RMSNorm({input.channels}, eps={epsilon}, elementwise_affine={affine})"
    examples = (Example((_VECTOR,)), Example((_SEQUENCE,)), Example((_SIGNAL,), {"affine": False}), Example((_IMAGE,)))
