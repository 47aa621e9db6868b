"""Linear layers and products of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from gflownet.operations.operation import WEIGHT_PORT, Category, Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import FLOATS, Layout, Shape, ShapeError
from gflownet.operations.vocabulary import BOOL, POSITIVE_INT, PROBABILITY, Parameter

FEATURES = (8, 16, 32, 64)
GATES = ("sigmoid", "relu", "gelu", "silu")
GATE = Parameter(f"one of {', '.join(GATES)}", lambda value: value in GATES)


class Linear(Operation):
    """x W^T + b over the last axis of a vector or a sequence."""

    category = Category.LINEAR
    settings = MappingProxyType({"features": Setting(POSITIVE_INT, choices=FEATURES), "bias": Setting(BOOL, True)})
    layer = "nn.Linear({input.channels}, {features}, bias={bias})"
    examples = (Example((Shape.of(3),), {"features": 4}), Example((Shape.of((5, 3)),), {"features": 2, "bias": False}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return single_input(inputs, Layout.VECTOR, Layout.SEQUENCE).with_channels(settings["features"])

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return settings["features"] * (single_input(inputs).channels + settings["bias"])

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        shape = single_input(inputs)
        return prod(shape.positions) * shape.channels * settings["features"]

    @classmethod
    def weight_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return Shape.of((settings["features"], single_input(inputs).channels))


class MatrixProduct(Operation):
    """The product of sequences as matrices, [T, D] and [D, E] to [T, E], or of [T, D] and the transpose of [E, D]."""

    ports = ("input", "other")
    category = Category.LINEAR
    settings = MappingProxyType({"transposed": Setting(BOOL, False, choices=(False, True))})
    examples = (
        Example((Shape.of((5, 3)), Shape.of((3, 4)))),
        Example((Shape.of((5, 3)), Shape.of((4, 3))), {"transposed": True}),
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, other = single_input(inputs, Layout.SEQUENCE), inputs["other"]
        inner = -1 if settings["transposed"] else 0
        if other.layout is not Layout.SEQUENCE or other.sizes[inner] != shape.channels:
            words = f"{shape.channels} {'features' if settings['transposed'] else 'positions'}"
            raise ShapeError(f"expected a sequence of {words} at the port other, got {other}")
        return shape.with_channels(other.sizes[-1 - inner])

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return "{input} @ {other}.mT" if settings["transposed"] else "{input} @ {other}"


class TiedLinear(Operation):
    """x W^T + b, where W is the weight of the node at the port `weight`, an embedding or a linear layer."""

    ports = ("input", WEIGHT_PORT)
    category = Category.LINEAR
    settings = MappingProxyType({"bias": Setting(BOOL, False)})
    examples = (Example((Shape.of((5, 3)), Shape.of((4, 3)))), Example((Shape.of(3), Shape.of((4, 3))), {"bias": True}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, weight = single_input(inputs, Layout.VECTOR, Layout.SEQUENCE), inputs[WEIGHT_PORT]
        if len(weight.sizes) != 2 or weight.sizes[1] != shape.channels:
            raise ShapeError(f"expected a weight of {shape.channels} columns, got {list(weight.sizes)}")
        return shape.with_channels(weight.sizes[0])

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"Bias({inputs[WEIGHT_PORT].sizes[0]})" if settings["bias"] else ""

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return "{module}(F.linear({input}, {weight}))" if settings["bias"] else "F.linear({input}, {weight})"


class GatedLinear(Operation):
    """(x W + b) * gate(x V + c) (Dauphin et al. 2017; Shazeer 2020)."""

    category = Category.LINEAR
    settings = MappingProxyType({**Linear.settings, "gate": Setting(GATE, "sigmoid", choices=GATES)})
    layer = "GatedLinear({input.channels}, {features}, {gate!r}, bias={bias})"
    examples = (
        Example((Shape.of(3),), {"features": 4}),
        Example((Shape.of((5, 3)),), {"features": 2, "gate": "gelu", "bias": False}),
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return Linear.infer_shape(inputs, settings)


class Head(Linear):
    """The average over all positions, then a linear layer: [F]."""

    examples = (Example((Shape.of((2, 3, 4)),), {"features": 4}), Example((Shape.of((5, 3)),), {"features": 2}))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        single_input(inputs, *FLOATS)
        return Shape((settings["features"],), Layout.VECTOR)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        shape = single_input(inputs)
        axes = tuple(axis + 1 for axis in range(len(shape.sizes)) if axis != shape.channel_axis)
        return f"{{module}}({{input}}.mean(dim={axes}))" if axes else "{module}({input})"

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return single_input(inputs).channels * settings["features"]


class Experts(Operation):
    """Several feed-forward networks, of which each position takes the `active` with the largest gates.

    All are computed. In training, `balance` times the load-balance loss (Fedus et al. 2022, equation 4) is added to the
    loss of the model.
    """

    category = Category.LINEAR
    settings = MappingProxyType(
        {
            "experts": Setting(POSITIVE_INT, 4, choices=(2, 4)),
            "active": Setting(POSITIVE_INT, 1, choices=(1, 2)),
            "hidden_features": Setting(POSITIVE_INT, choices=FEATURES),
            "balance": Setting(PROBABILITY, 0.01),
        }
    )
    layer = "Experts({input.channels}, {hidden_features}, {experts}, {active}, {balance})"
    examples = (
        Example((Shape.of((4, 3)),), {"hidden_features": 5, "balance": 0.0}),  # whose gradient is that of no output
        Example((Shape.of(3),), {"hidden_features": 5, "experts": 3, "active": 2, "balance": 0.0}),
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        if settings["active"] > settings["experts"]:
            raise ShapeError(f"expected active at most experts={settings['experts']}, got {settings['active']}")
        return single_input(inputs, Layout.VECTOR, Layout.SEQUENCE)
