"""Sequences of vectors from tokens, images and signals, and the positions of their elements."""

from __future__ import annotations

from math import prod
from types import MappingProxyType

from gflownet.operations.attention import HEADS, ROTARY_BASE, check_rotary
from gflownet.operations.convolution import BIAS, FEATURES
from gflownet.operations.operation import Category, Example, Operation, Setting, Settings, Shapes, single_input, words
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Layout, Shape, ShapeError
from gflownet.operations.values import is_number
from gflownet.operations.vocabulary import OPTIONAL_POSITIVE_INT, POSITIVE_INT, Parameter

BASE = Parameter("a float in [1, 1e9]", lambda value: is_number(value) and 1 <= value <= 1e9)
CATEGORIES = Parameter(
    "a list of numbers of categories >= 1",
    lambda value: isinstance(value, tuple | list) and len(value) > 0 and all(map(POSITIVE_INT.accepts, value)),
)
_SEQUENCE = Shape.of((5, 8))


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
