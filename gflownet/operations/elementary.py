"""Operations that keep the shape: identity, zero, dropout, scales and gates of channels, normalisation."""

from __future__ import annotations

from types import MappingProxyType

from gflownet.operations.convolution import BIAS
from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Layout, Shape
from gflownet.operations.values import is_number
from gflownet.operations.vocabulary import BOOL, EPSILON, POSITIVE_INT, PROBABILITY, Parameter

FACTOR = Parameter("a float in [-100, 100]", lambda value: is_number(value) and -100 <= value <= 100)
_EPSILON, _AFFINE = Setting(EPSILON, 1e-5), Setting(BOOL, True)
_VECTOR, _SEQUENCE, _IMAGE = Shape.of(3), Shape.of((5, 4)), Shape.of((3, 2, 4))
_SIGNAL = Shape((8, 5), Layout.SIGNAL)


class Identity(Operation):
    """The input itself: a node that only merges and activates."""

    has_products, layouts, code = False, tuple(Layout), "{input}"
    examples = (Example((_VECTOR,)), Example((_IMAGE,)))


class Zero(Operation):
    """Zeros in the shape of the input: no connection."""

    has_products, code = False, "torch.zeros_like({input})"
    examples = (Example((_VECTOR,)), Example((_IMAGE,)))


class Dropout(Operation):
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


class LayerScale(Operation):
    """Each channel times a learned number that starts at `initial` (Touvron et al. 2021)."""

    settings = MappingProxyType({"initial": Setting(FACTOR, 0.1)})
    has_products = False
    examples = (Example((_VECTOR,)), Example((_SEQUENCE,)), Example((_IMAGE,), {"initial": 0.5}))

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        shape = single_input(inputs)
        axes_after = len(shape.sizes) - 1 - shape.channel_axis
        return f"LayerScale({shape.channels}, {axes_after}, {float(settings['initial'])})"


class SqueezeExcitation(Operation):
    """Scale each channel by a gate computed from the means of all channels (Hu, Shen and Sun 2018)."""

    category, layouts = Category.ATTENTION, CHANNELS_FIRST
    settings = MappingProxyType({"ratio": Setting(POSITIVE_INT, 4, choices=(4, 8))})
    examples = (Example((_IMAGE,), {"ratio": 2}), Example((_SIGNAL,)))

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        channels = single_input(inputs).channels
        return f"SqueezeExcitation({channels}, {max(1, channels // settings['ratio'])})"


class BatchNorm(Operation):
    """Normalise each channel over the batch and all positions, then scale and shift it (Ioffe and Szegedy 2015)."""

    category = Category.NORMALISATION
    has_products = False
    settings = MappingProxyType({"epsilon": _EPSILON, "momentum": Setting(EPSILON, 0.1), "affine": _AFFINE})
    code = MappingProxyType({**dict.fromkeys(Layout, "{module}({input})"), Layout.SEQUENCE: "{module}({input}.mT).mT"})
    examples = (
        Example((_VECTOR,)),
        Example((_SEQUENCE,), {"epsilon": 0.01}),
        Example((_SIGNAL,), {"affine": False}),
        Example((_IMAGE,), {"momentum": 0.3}),
    )

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        words = "({input.channels}, eps={epsilon}, momentum={momentum}, affine={affine})".format(**inputs, **settings)
        return f"nn.BatchNorm{max(1, len(single_input(inputs).positions))}d{words}"


class LayerNorm(Operation):
    """Normalise the features of each position, then scale and shift them (Ba, Kiros and Hinton 2016)."""

    category = Category.NORMALISATION
    has_products = False
    settings = MappingProxyType({"epsilon": _EPSILON, "affine": _AFFINE, "bias": BIAS})
    layer = "nn.LayerNorm({input.channels}, eps={epsilon}, elementwise_affine={affine}, bias={bias})"
    code = MappingProxyType(
        {
            **dict.fromkeys(Layout, "{module}({input})"),
            **dict.fromkeys(CHANNELS_FIRST, "{module}({input}.movedim(1, -1)).movedim(-1, 1)"),
        }
    )
    examples = (
        Example((_VECTOR,)),
        Example((_SEQUENCE,), {"epsilon": 1e-12}),
        Example((_SIGNAL,), {"bias": False}),
        Example((_IMAGE,), {"affine": False}),
    )


class RMSNorm(LayerNorm):
    """Divide the features of each position by their root mean square, then scale them (Zhang and Sennrich 2019)."""

    settings = MappingProxyType({"epsilon": Setting(EPSILON, 1e-6), "affine": _AFFINE})
    layer = "nn.RMSNorm({input.channels}, eps={epsilon}, elementwise_affine={affine})"
    examples = (Example((_VECTOR,)), Example((_SEQUENCE,)), Example((_SIGNAL,), {"affine": False}), Example((_IMAGE,)))
