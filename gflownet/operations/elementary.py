"""Operations that keep the shape: identity, zero, difference, dropout, scales and gates of channels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.operations.operation import Category, Example, SameShape, Setting, single_input
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Layout, Shape
from gflownet.operations.values import is_number
from gflownet.operations.vocabulary import POSITIVE_INT, PROBABILITY, Parameter

FACTOR = Parameter("a float in [-100, 100]", lambda value: is_number(value) and -100 <= value <= 100)
_VECTOR, _SEQUENCE, _IMAGE = Shape.of(3), Shape.of((5, 3)), Shape.of((3, 2, 4))


class Identity(SameShape):
    """The input itself: a node that only merges and activates."""

    has_products, layouts, code = False, tuple(Layout), "{input}"
    examples = (Example((_VECTOR,)), Example((_IMAGE,)))


class Zero(SameShape):
    """Zeros in the shape of the input: no connection."""

    has_products, code = False, "torch.zeros_like({input})"
    examples = (Example((_VECTOR,)), Example((_IMAGE,)))


class Dropout(SameShape):
    """Zero each element with probability `dropout` in training, scale the others (Srivastava et al. 2014)."""

    category = Category.NORMALISATION
    settings = MappingProxyType({"dropout": Setting(PROBABILITY, 0.1, choices=(0.1, 0.3))})
    examples = (Example((_SEQUENCE,), {"dropout": 0.5}),)
    layer, has_products = "nn.Dropout({dropout})", False


class DropPath(Dropout):
    """Zero the value of an example with probability `dropout` in training, scale the others (Huang et al. 2016)."""

    settings = MappingProxyType({"dropout": Setting(PROBABILITY, 0.1, choices=(0.1, 0.2))})
    examples = (Example((_SEQUENCE,), {"dropout": 0.5}), Example((_IMAGE,)))
    layer = "DropPath({dropout})"


class LayerScale(SameShape):
    """Each channel times a learned number that starts at `initial` (Touvron et al. 2021)."""

    settings = MappingProxyType({"initial": Setting(FACTOR, 0.1)})
    has_products = False
    examples = (Example((_VECTOR,)), Example((_SEQUENCE,)), Example((_IMAGE,), {"initial": 0.5}))

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        shape = single_input(inputs)
        axes_after = len(shape.sizes) - 1 - shape.channel_axis
        return f"LayerScale({shape.channels}, {axes_after}, {float(settings['initial'])})"


class SqueezeExcitation(SameShape):
    """Scale each channel by a gate computed from the means of all channels (Hu, Shen and Sun 2018)."""

    category, layouts = Category.ATTENTION, CHANNELS_FIRST
    settings = MappingProxyType({"ratio": Setting(POSITIVE_INT, 4, choices=(4, 8))})
    examples = (Example((_IMAGE,), {"ratio": 2}), Example((Shape((8, 5), Layout.SIGNAL),)))

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        channels = single_input(inputs).channels
        return f"SqueezeExcitation({channels}, {max(1, channels // settings['ratio'])})"
