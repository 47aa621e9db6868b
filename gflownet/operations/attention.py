"""Attention between the positions of sequences."""

from __future__ import annotations

from types import MappingProxyType

from gflownet.operations.convolution import BIAS
from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input, words
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import (
    BOOL,
    NOT_NEGATIVE_INT,
    OPTIONAL_POSITIVE_INT,
    POSITIVE_INT,
    PROBABILITY,
    Parameter,
)

ROTARY_BASE = 10_000.0  # Su et al. 2021
HEADS = Setting(POSITIVE_INT, 1, choices=(1, 2, 4))
DISTANCES = Parameter("linear, relative or null", lambda value: value in ("linear", "relative", None))
_SEQUENCE = Shape.of((5, 8))
_FLAGS = {"causal": Setting(BOOL, False), "bias": BIAS, "output_bias": BIAS, "dropout": Setting(PROBABILITY, 0.0)}
_FLAG_WORDS = ", ".join(f"{key}={{{key}}}" for key in _FLAGS)


def check_heads(features: int, heads: int) -> None:
    """Raise ShapeError unless the heads share the features equally."""
    if features % heads:
        raise ShapeError(f"expected features divisible by heads={heads}, got {features}")


def check_rotary(features: int, heads: int) -> None:
    """Raise ShapeError unless the heads have an even number of features each."""
    check_heads(features, heads)
    if features // heads % 2:
        raise ShapeError(f"expected an even number of features per head for rotary positions, got {features // heads}")


class SelfAttention(Operation):
    """Multi-head attention of a sequence to itself; `rotary` turns queries and keys by their positions.

    `kv_heads` heads of keys and values serve groups of queries, `window` hides keys at this distance and further,
    `norm` normalises queries and keys, `distances` adds what depends on the distance to the scores. With `carry`, a
    call reads the last `window` positions of the calls before.
    """

    category = Category.ATTENTION
    settings = MappingProxyType(
        {
            "heads": HEADS,
            **_FLAGS,
            "rotary": Setting(BOOL, False),
            "kv_heads": Setting(OPTIONAL_POSITIVE_INT, None),
            "head_size": Setting(OPTIONAL_POSITIVE_INT, None),
            "norm": Setting(BOOL, False),
            "window": Setting(OPTIONAL_POSITIVE_INT, None),
            "distances": Setting(DISTANCES, None),
            "carry": Setting(BOOL, False),
        }
    )
    examples = (
        Example((_SEQUENCE,), {"heads": 2}),
        Example((_SEQUENCE,), {"heads": 4, "causal": True, "rotary": True, "bias": False}),
        Example((_SEQUENCE,), {"dropout": 0.3, "output_bias": False}),
        Example((_SEQUENCE,), {"heads": 4, "kv_heads": 2, "head_size": 6, "norm": True, "distances": "linear"}),
        Example((_SEQUENCE,), {"heads": 2, "kv_heads": 1, "causal": True, "window": 2, "distances": "relative"}),
        Example((_SEQUENCE,), {"heads": 2, "causal": True, "window": 3, "rotary": True, "carry": True}),
    )

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, heads = single_input(inputs, Layout.SEQUENCE), settings["heads"]
        if settings["head_size"] is None:
            check_heads(shape.channels, heads)
        if settings["rotary"]:
            check_rotary(heads * cls._head_size(shape, settings), heads)
        if heads % (settings["kv_heads"] or heads):
            raise ShapeError(f"expected heads divisible by kv_heads={settings['kv_heads']}, got {heads}")
        if settings["carry"] and not (settings["causal"] and settings["window"]):
            raise ShapeError("expected causal=true and a window, the positions that are kept, with carry")
        return shape

    @classmethod
    def _head_size(cls, shape: Shape, settings: Settings) -> int:
        return settings["head_size"] or shape.channels // settings["heads"]

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        shape, heads = single_input(inputs), settings["heads"]
        arguments = f"{shape.channels}, {heads}, {_FLAG_WORDS.format(**settings)}"
        arguments += words(settings, kv_heads=None, head_size=None, norm=False, window=None)
        if settings["rotary"]:
            size = cls._head_size(shape, settings)
            arguments += f", rotate=RotaryPositions({shape.positions[0]}, {size}, {ROTARY_BASE})"
        if settings["distances"] is not None:
            biases = {
                "linear": f"LinearBias({heads})",
                "relative": f"RelativeBias({heads}, causal={settings['causal']})",
            }
            arguments += f", bias_by_distance={biases[settings['distances']]}"
        return f"{'CarriedAttention' if settings['carry'] else 'SelfAttention'}({arguments})"

    @classmethod
    def state(cls, inputs: Shapes, settings: Settings) -> dict[str, tuple[int, ...]]:
        if not settings["carry"]:
            return {}
        size = cls._head_size(single_input(inputs), settings)
        kept = (settings["kv_heads"] or settings["heads"], settings["window"], size)
        return {"keys": kept, "values": kept, "filled": (settings["window"],)}


class WindowAttention(Operation):
    """Attention in windows of an image, with learned offsets (Liu et al. 2021); `shift` moves the windows."""

    category = Category.ATTENTION
    settings = MappingProxyType(
        {
            "heads": HEADS,
            "window": Setting(POSITIVE_INT, 4, choices=(2, 4)),
            "shift": Setting(NOT_NEGATIVE_INT, 0),
            "bias": BIAS,
        }
    )
    layer = "WindowAttention({input.channels}, {heads}, {window}, {shift}, {input.positions}, {bias})"
    examples = (
        Example((Shape.of((4, 4, 6)),), {"heads": 2, "window": 2}),
        Example((Shape.of((4, 6, 6)),), {"heads": 2, "window": 3, "shift": 1, "bias": False}),
    )

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, window = single_input(inputs, Layout.IMAGE), settings["window"]
        check_heads(shape.channels, settings["heads"])
        if any(size % window for size in shape.positions):
            raise ShapeError(f"expected height and width divisible by window={window}, got {shape}")
        if settings["shift"] >= window:
            raise ShapeError(f"expected a shift below window={window}, got {settings['shift']}")
        return shape


class CrossAttention(Operation):
    """Multi-head attention of the sequence at `query` to the ones at `key` and `value`, which have equal lengths."""

    ports = ("query", "key", "value")
    category = Category.ATTENTION
    settings = MappingProxyType({"heads": HEADS, **_FLAGS})
    layer = "CrossAttention({query.channels}, {key.channels}, {value.channels}, {heads}, " + _FLAG_WORDS + ")"
    examples = (
        Example((_SEQUENCE, Shape.of((3, 4)), Shape.of((3, 6))), {"heads": 2}),
        Example((_SEQUENCE, _SEQUENCE, _SEQUENCE), {"causal": True, "bias": False, "output_bias": False}),
    )

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        for port, shape in inputs.items():
            if shape.layout is not Layout.SEQUENCE:
                raise ShapeError(f"expected a sequence at {port}, got {shape}")
        if inputs["key"].positions != inputs["value"].positions:
            raise ShapeError(f"expected as many keys as values, got {inputs['key']} and {inputs['value']}")
        check_heads(inputs["query"].channels, settings["heads"])
        return inputs["query"]
