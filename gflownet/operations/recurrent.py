"""Recurrent layers over whole sequences; each sequence starts from zeros, or with `carry` where the last call ended."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

from gflownet.operations.convolution import BIAS, FEATURES, reach
from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input, words
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import BOOL, OPTIONAL_POSITIVE_INT, POSITIVE_INT

_SEQUENCE = Shape.of((4, 3))
# The state after the last time step is handed to the next call.
_CARRY = Setting(BOOL, False)


class _GatedLayer(Operation):
    category = Category.RECURRENT
    is_layer = True
    settings = MappingProxyType(
        {
            "features": FEATURES,
            "bidirectional": Setting(BOOL, False, choices=(False, True)),
            "bias": BIAS,
            "carry": _CARRY,
        }
    )
    layouts = (Layout.SEQUENCE,)
    examples = (
        Example((_SEQUENCE,), {"features": 2}),
        Example((_SEQUENCE,), {"features": 2, "bidirectional": True, "bias": False}),
        Example((_SEQUENCE,), {"features": 2, "carry": True}),
    )
    slots: ClassVar[tuple[str, ...]]  # names of its state

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        if settings["carry"] and settings["bidirectional"]:
            raise ShapeError("expected one direction of a layer with carry, got bidirectional=True")
        features = settings["features"] * (1 + settings["bidirectional"])
        return super().infer_shape(inputs, settings).with_channels(features)

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        kind, more = "Carried" if settings["carry"] else "nn.", words(settings, bidirectional=False, bias=True)
        channels, features = single_input(inputs).channels, settings["features"]
        return f"{kind}{cls.__name__}({channels}, {features}, batch_first=True{more})"

    @classmethod
    def state(cls, inputs: Shapes, settings: Settings) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(cls.slots, (settings["features"],)) if settings["carry"] else {}

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        return super().call(inputs, settings) if settings["carry"] else "{module}({input})[0]"


class LSTM(_GatedLayer):
    """The outputs of an LSTM at all time steps (Hochreiter and Schmidhuber 1997)."""

    slots = ("hidden", "cell")


class GRU(_GatedLayer):
    """The outputs of a GRU at all time steps (Cho et al. 2014)."""

    slots = ("hidden",)


class SelectiveScan(Operation):
    """The block of Mamba (Gu and Dao 2023): a convolution and a state whose steps depend on the input.

    `chunk` positions are computed side by side. With `carry`, a call continues from the state of the one before.
    """

    category = Category.RECURRENT
    settings = MappingProxyType(
        {
            "state_size": Setting(POSITIVE_INT, 16, choices=(4, 16)),
            "expansion": Setting(POSITIVE_INT, 2, choices=(1, 2)),
            "kernel_size": Setting(POSITIVE_INT, 4),
            "rank": Setting(OPTIONAL_POSITIVE_INT, None),  # by default a 16th of the features
            "chunk": Setting(POSITIVE_INT, 32),
            "carry": _CARRY,
        }
    )
    layouts = (Layout.SEQUENCE,)
    examples = (
        Example((_SEQUENCE,), {"state_size": 2}),
        Example((_SEQUENCE,), {"state_size": 2, "expansion": 1, "chunk": 3, "carry": True}),
    )

    @classmethod
    def _sizes(cls, inputs: Shapes, settings: Settings) -> tuple[int, int, int, int, int]:
        features = single_input(inputs).channels
        rank = settings["rank"] or -(-features // 16)
        return features, settings["expansion"] * features, settings["state_size"], settings["kernel_size"], rank

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        sizes = (*cls._sizes(inputs, settings), settings["chunk"])
        return f"{'CarriedScan' if settings['carry'] else 'SelectiveScan'}({', '.join(map(str, sizes))})"

    @classmethod
    def state(cls, inputs: Shapes, settings: Settings) -> dict[str, tuple[int, ...]]:
        _, inner, state_size, kernel, _ = cls._sizes(inputs, settings)
        return {"hidden": (inner, state_size), "before": (inner, kernel - 1)} if settings["carry"] else {}


class CausalConvolution(Operation):
    """Convolution of each feature of a sequence over this and the `kernel_size` - 1 positions before.

    Its state is the inputs at the positions before.
    """

    category = Category.CONVOLUTION
    is_layer = True
    settings = MappingProxyType(
        {"kernel_size": Setting(POSITIVE_INT, 4, choices=(4, 8)), "dilation": Setting(POSITIVE_INT, 1)}
    )
    layouts = (Layout.SEQUENCE,)
    layer = "CarriedConvolution({input.channels}, kernel_size={kernel_size}, dilation={dilation})"
    examples = (Example((Shape.of((5, 3)),), {"kernel_size": 2, "dilation": 3}),)

    @classmethod
    def state(cls, inputs: Shapes, settings: Settings) -> dict[str, tuple[int, ...]]:
        return {"before": (single_input(inputs).channels, reach(settings))}
