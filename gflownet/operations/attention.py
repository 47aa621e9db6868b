"""Attention between the positions of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gflownet.operations.operation import Category, Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import BOOL, POSITIVE_INT, PROBABILITY

ROTARY_BASE = 10_000.0  # Su et al. 2021
HEADS = Setting(POSITIVE_INT, 1, choices=(1, 2, 4))
_SEQUENCE = Shape.of((5, 8))
_FLAGS = {
    "causal": Setting(BOOL, False),
    "bias": Setting(BOOL, True),
    "output_bias": Setting(BOOL, True),
    "dropout": Setting(PROBABILITY, 0.0),
}
_DEFAULTS = {key: setting.default for key, setting in _FLAGS.items()}


def check_heads(features: int, heads: int) -> None:
    """Raise ShapeError unless the heads share the features equally."""
    if features % heads:
        raise ShapeError(f"expected features divisible by heads={heads}, got {features}")


def check_rotary(features: int, heads: int) -> None:
    """Raise ShapeError unless the heads have an even number of features each."""
    check_heads(features, heads)
    if features // heads % 2:
        raise ShapeError(f"expected an even number of features per head for rotary positions, got {features // heads}")


def _words(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={settings[key]}" for key, default in _DEFAULTS.items() if settings[key] != default]


class SelfAttention(Operation):
    """Multi-head attention of a sequence to itself; `rotary` turns queries and keys by their positions."""

    category = Category.ATTENTION
    settings = MappingProxyType({"heads": HEADS, **_FLAGS, "rotary": Setting(BOOL, False)})
    examples = (
        Example((_SEQUENCE,), {"heads": 2}),
        Example((_SEQUENCE,), {"heads": 4, "causal": True, "rotary": True, "bias": False}),
        Example((_SEQUENCE,), {"dropout": 0.3, "output_bias": False}),
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs, Layout.SEQUENCE)
        (check_rotary if settings["rotary"] else check_heads)(shape.channels, settings["heads"])
        return shape

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        (length,), features = single_input(inputs).positions, single_input(inputs).channels
        words = [str(features), str(settings["heads"]), *_words(settings)]
        if settings["rotary"]:
            words.append(f"rotate=RotaryPositions({length}, {features // settings['heads']}, {ROTARY_BASE})")
        return f"SelfAttention({', '.join(words)})"

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        features = single_input(inputs).channels
        return features * (4 * features + 3 * settings["bias"] + settings["output_bias"])

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        (length,), features = single_input(inputs).positions, single_input(inputs).channels
        return length * features * (4 * features + 2 * length)


class CrossAttention(Operation):
    """Multi-head attention of the sequence at `query` to the ones at `key` and `value`, which have equal lengths."""

    ports = ("query", "key", "value")
    category = Category.ATTENTION
    settings = MappingProxyType({"heads": HEADS, **_FLAGS})
    examples = (
        Example((_SEQUENCE, Shape.of((3, 4)), Shape.of((3, 6))), {"heads": 2}),
        Example((_SEQUENCE, _SEQUENCE, _SEQUENCE), {"causal": True, "bias": False, "output_bias": False}),
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        for port, shape in inputs.items():
            if shape.layout is not Layout.SEQUENCE:
                raise ShapeError(f"expected a sequence at {port}, got {shape}")
        if inputs["key"].positions != inputs["value"].positions:
            raise ShapeError(f"expected as many keys as values, got {inputs['key']} and {inputs['value']}")
        check_heads(inputs["query"].channels, settings["heads"])
        return inputs["query"]

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        sizes = [str(inputs[port].channels) for port in cls.ports]
        return f"CrossAttention({', '.join([*sizes, str(settings['heads']), *_words(settings)])})"

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        features = inputs["query"].channels
        matrices = 2 * features + inputs["key"].channels + inputs["value"].channels
        return features * (matrices + 3 * settings["bias"] + settings["output_bias"])

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        query, key, value = (inputs[port] for port in cls.ports)
        (length,), (num_keys,) = query.positions, key.positions
        of_query = length * (2 * query.channels + 2 * num_keys)
        return query.channels * (of_query + num_keys * (key.channels + value.channels))
