"""Attention between the positions of sequences, and sequences of tokens, images and signals with their positions."""

from __future__ import annotations

from math import prod
from types import MappingProxyType

from gflownet.operations.convolution import BIAS, FEATURES
from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input, words
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Layout, Shape, ShapeError
from gflownet.operations.values import is_number
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
BASE = Parameter("a float in [1, 1e9]", lambda value: is_number(value) and 1 <= value <= 1e9)
CATEGORIES = Parameter(
    "a list of numbers of categories >= 1",
    lambda value: isinstance(value, tuple | list) and len(value) > 0 and all(map(POSITIVE_INT.accepts, value)),
)
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


class Embedding(Operation):
    """A learned vector for each token below `vocabulary_size`: [T, features]."""

    category = Category.TOKENS
    has_products = False
    settings = MappingProxyType({"vocabulary_size": Setting(POSITIVE_INT), "features": FEATURES})
    layer = "nn.Embedding({vocabulary_size}, {features})"
    examples = (Example((Shape((4,), Layout.TOKENS),), {"vocabulary_size": 5, "features": 3}),)

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        return Shape.of((*single_input(inputs, Layout.TOKENS).sizes, settings["features"]))


class ColumnEmbedding(Operation):
    """A learned vector for each of K columns of categories, the values of k below `categories[k]`: [K, features]."""

    category = Category.TOKENS
    has_products = False
    settings = MappingProxyType({"categories": Setting(CATEGORIES), "features": FEATURES})
    layer = "ColumnEmbedding({categories}, {features})"
    examples = (Example((Shape((3,), Layout.TOKENS),), {"categories": (5, 7, 6), "features": 3}),)

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, num = single_input(inputs, Layout.TOKENS), len(settings["categories"])
        if shape.sizes != (num,):
            raise ShapeError(f"expected {num} columns, as categories has entries, got {shape}")
        return Shape.of((num, settings["features"]))


class Patchify(Operation):
    """A linear layer over each patch of a signal, an image or a volume, row by row: [number of patches, features]."""

    category = Category.TOKENS
    is_layer = True
    settings = MappingProxyType(
        {"features": FEATURES, "patch_size": Setting(POSITIVE_INT, choices=(2, 4)), "bias": BIAS}
    )
    code = "{module}({input}).flatten(2).mT"
    examples = (
        Example((Shape.of((3, 4, 6)),), {"features": 4, "patch_size": 2}),
        Example((Shape((2, 6), Layout.SIGNAL),), {"features": 4, "patch_size": 3, "bias": False}),
    )

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, size = single_input(inputs, *CHANNELS_FIRST), settings["patch_size"]
        if any(positions % size for positions in shape.positions):
            raise ShapeError(f"expected positions divisible by patch_size={size}, got {shape}")
        return Shape.of((prod(shape.positions) // size ** len(shape.positions), settings["features"]))

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        shape, size = single_input(inputs), settings["patch_size"]
        arguments = f"{shape.channels}, {settings['features']}, {size}, stride={size}{words(settings, bias=True)}"
        return f"nn.Conv{len(shape.positions)}d({arguments})"


class LearnedPositions(Operation):
    """A sequence plus a learned vector per position; `max_length` vectors, by default as many as positions."""

    category = Category.TOKENS
    has_products = False
    layouts = (Layout.SEQUENCE,)
    settings = MappingProxyType({"max_length": Setting(OPTIONAL_POSITIVE_INT, None)})
    examples = (Example((_SEQUENCE,)), Example((_SEQUENCE,), {"max_length": 7}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, limit = super().infer_shape(inputs, settings), settings["max_length"]
        if limit is not None and prod(shape.positions) > limit:
            raise ShapeError(f"expected at most max_length={limit} positions, got {shape}")
        return shape

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        length, features = single_input(inputs).sizes
        return f"LearnedPositions({settings['max_length'] or length}, {features})"


class RotaryPositions(Operation):
    """Pairs of features of each head rotated by an angle that grows with the position (Su et al. 2021)."""

    category = Category.TOKENS
    has_products = False
    settings = MappingProxyType({"heads": HEADS, "base": Setting(BASE, ROTARY_BASE)})
    examples = (Example((_SEQUENCE,)), Example((_SEQUENCE,), {"heads": 2, "base": 500.0}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape = single_input(inputs, Layout.SEQUENCE)
        check_rotary(shape.channels, settings["heads"])
        return shape

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        length, features = single_input(inputs).sizes
        return f"RotaryPositions({length}, {features // settings['heads']}, {float(settings['base'])})"

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        if settings["heads"] == 1:
            return "{module}({input})"
        heads = f"{{input}}.unflatten(2, ({settings['heads']}, -1)).transpose(1, 2)"
        return f"{{module}}({heads}).transpose(1, 2).flatten(2)"


class ClassToken(Operation):
    """A sequence with a learned vector in front: [1 + T, D]."""

    category = Category.TOKENS
    has_products = False
    layer = "ClassToken({input.channels})"
    examples = (Example((_SEQUENCE,)),)

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        length, features = single_input(inputs, Layout.SEQUENCE).sizes
        return Shape.of((length + 1, features))
