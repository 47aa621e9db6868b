"""Composites of transformers: feed-forward network and pre-norm block."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.graphs.composite import Composite, Data, GraphData
from gflownet.operations.attention import SelfAttention
from gflownet.operations.linear import GATES
from gflownet.operations.operation import Category, Example, Setting, single_input
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import ACTIVATIONS, BOOL, POSITIVE_INT, PROBABILITY, Parameter

_RECURRENT = ("lstm", "gru", "rhn")
STATELESS = tuple(name for name in ACTIVATIONS if name not in _RECURRENT)
ACTIVATION = Parameter(f"one of {', '.join(STATELESS)}", lambda value: value in STATELESS)
NORMS = ("layer_norm", "rms_norm")
NORM = Parameter(f"one of {', '.join(NORMS)}", lambda value: value in NORMS)
_FEED_FORWARD = {
    "expansion": Setting(POSITIVE_INT, 4, choices=(1, 2, 4)),
    "activation": Setting(ACTIVATION, "gelu", choices=("relu", "gelu", "silu")),
    "gated": Setting(BOOL, False, choices=(False, True)),
    "bias": Setting(BOOL, True),
    "dropout": Setting(PROBABILITY, 0.0),
}
_SEQUENCE = Shape.of((4, 6))


def add_feed_forward(data: GraphData, source: int, features: int, settings: Mapping[str, Any]) -> int:
    """Add a feed-forward network; return the id of its last node."""
    hidden, bias, activation = settings["expansion"] * features, settings["bias"], settings["activation"]
    if settings["gated"]:
        if activation not in GATES:
            raise ShapeError(f"expected an activation out of {', '.join(GATES)} with gated, got {activation}")
        last = data.add("gated_linear", source, features=hidden, gate=activation, bias=bias)
    else:
        last = data.add("linear", source, features=hidden, bias=bias, activation=activation)
    if settings["dropout"]:
        last = data.add("dropout", last, dropout=settings["dropout"])
    return data.add("linear", last, features=features, bias=bias)


class FeedForward(Composite):
    """Linear layer to `expansion` times the features, activation, linear layer back; `gated`: the first is a GLU."""

    category = Category.LINEAR
    settings = MappingProxyType(_FEED_FORWARD)
    examples = (
        Example((_SEQUENCE,)),
        Example((Shape.of(5),), {"expansion": 2, "activation": "relu", "bias": False}),
        Example((_SEQUENCE,), {"gated": True, "dropout": 0.5}),
    )

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, shape = GraphData(inputs), single_input(inputs, Layout.SEQUENCE, Layout.VECTOR)
        add_feed_forward(data, 0, shape.channels, settings)
        return data.finish()


class TransformerBlock(Composite):
    """x + attention(norm(x)), then x + feed-forward(norm(x)): the pre-norm block (Xiong et al. 2020)."""

    category = Category.ATTENTION
    settings = MappingProxyType(
        {
            **{key: SelfAttention.settings[key] for key in ("heads", "causal", "rotary")},
            **_FEED_FORWARD,
            "norm": Setting(NORM, "layer_norm", choices=NORMS),
        }
    )
    examples = (
        Example((_SEQUENCE,), {"heads": 2, "expansion": 2}),
        Example((_SEQUENCE,), {"causal": True, "rotary": True, "norm": "rms_norm", "gated": True, "bias": False}),
    )

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        data, shape, bias = GraphData(inputs), single_input(inputs, Layout.SEQUENCE), settings["bias"]
        of_norm: dict[str, Any] = {"bias": False} if settings["norm"] == "layer_norm" and not bias else {}
        of_attention: dict[str, Any] = {key: settings[key] for key in ("heads", "causal", "rotary", "dropout", "bias")}
        normed = data.add(settings["norm"], 0, **of_norm)
        attended = data.add("self_attention", normed, output_bias=bias, **of_attention)
        last = data.add("identity", 0, attended)
        normed = data.add(settings["norm"], last, **of_norm)
        data.add("identity", last, add_feed_forward(data, normed, shape.channels, settings))
        return data.finish()
