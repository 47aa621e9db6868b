"""Linear layers and products of matrices."""

from __future__ import annotations

from types import MappingProxyType

from gflownet.operations.convolution import BIAS, FEATURES, over_positions
from gflownet.operations.operation import (
    WEIGHT_PORT,
    Category,
    Example,
    Operation,
    Setting,
    Settings,
    Shapes,
    single_input,
)
from gflownet.operations.tensor_shape import FLOATS, Layout, Shape, ShapeError
from gflownet.operations.vocabulary import BOOL, POSITIVE_INT, PROBABILITY, one_of

GATES = ("sigmoid", "relu", "gelu", "silu")


class Linear(Operation):
    """x W^T + b over the last axis of a vector or a sequence."""

    category = Category.LINEAR
    is_layer = True
    settings = MappingProxyType({"features": FEATURES, "bias": BIAS})
    layouts = (Layout.VECTOR, Layout.SEQUENCE)
    layer = "nn.Linear({input.channels}, {features}, bias={bias})"
    examples = (Example((Shape.of(3),), {"features": 4}), Example((Shape.of((5, 3)),), {"features": 2, "bias": False}))

    @classmethod
    def num_parameters(cls, inputs: Shapes, settings: Settings) -> int:
        return settings["features"] * (single_input(inputs).channels + settings["bias"])  # as of a convolution


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
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, other = single_input(inputs, Layout.SEQUENCE), inputs["other"]
        inner = -1 if settings["transposed"] else 0
        if other.layout is not Layout.SEQUENCE or other.sizes[inner] != shape.channels:
            words = f"{shape.channels} {'features' if settings['transposed'] else 'positions'}"
            raise ShapeError(f"expected a sequence of {words} at the port other, got {other}")
        return shape.with_channels(other.sizes[-1 - inner])

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        return "{input} @ {other}.mT" if settings["transposed"] else "{input} @ {other}"


class TiedLinear(Operation):
    """x W^T + b, where W is the weight of the node at the port `weight`, an embedding or a linear layer."""

    ports = ("input", WEIGHT_PORT)
    category = Category.LINEAR
    settings = MappingProxyType({"bias": Setting(BOOL, False)})
    examples = (Example((Shape.of((5, 3)), Shape.of((4, 3)))), Example((Shape.of(3), Shape.of((4, 3))), {"bias": True}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, weight = single_input(inputs, Layout.VECTOR, Layout.SEQUENCE), inputs[WEIGHT_PORT]
        if len(weight.sizes) != 2 or weight.sizes[1] != shape.channels:
            raise ShapeError(f"expected a weight of {shape.channels} columns, got {list(weight.sizes)}")
        return shape.with_channels(weight.sizes[0])

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        return f"Bias({inputs[WEIGHT_PORT].sizes[0]})" if settings["bias"] else ""

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        return "{module}(F.linear({input}, {weight}))" if settings["bias"] else "F.linear({input}, {weight})"


class GatedLinear(Linear):
    """(x W + b) * gate(x V + c) (Dauphin et al. 2017; Shazeer 2020)."""

    settings = MappingProxyType({**Linear.settings, "gate": Setting(one_of(*GATES), "sigmoid", choices=GATES)})
    layer = "GatedLinear({input.channels}, {features}, {gate!r}, bias={bias})"
    examples = (
        Example((Shape.of(3),), {"features": 4}),
        Example((Shape.of((5, 3)),), {"features": 2, "gate": "gelu", "bias": False}),
    )

    @classmethod
    def num_parameters(cls, inputs: Shapes, settings: Settings) -> int:
        return 2 * super().num_parameters(inputs, settings)


class Head(Linear):
    """The average over all positions, then a linear layer: [F]."""

    layouts = FLOATS
    examples = (Example((Shape.of((2, 3, 4)),), {"features": 4}), Example((Shape.of((5, 3)),), {"features": 2}))

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        return Shape.of(super().infer_shape(inputs, settings).channels)

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        return f"{{module}}({over_positions(single_input(inputs), 'mean')})"


class Experts(Operation):
    """Several feed-forward networks, of which each position takes the `active` with the largest gates.

    All are computed. In training, `balance` times the load-balance loss (Fedus et al. 2022, equation 4) is added to the
    loss of the model.
    """

    category = Category.LINEAR
    layouts = (Layout.VECTOR, Layout.SEQUENCE)
    settings = MappingProxyType(
        {
            "experts": Setting(POSITIVE_INT, 4, choices=(2, 4)),
            "active": Setting(POSITIVE_INT, 1, choices=(1, 2)),
            "hidden_features": FEATURES,
            "balance": Setting(PROBABILITY, 0.01),
        }
    )
    layer = "Experts({input.channels}, {hidden_features}, {experts}, {active}, {balance})"
    examples = (
        Example((Shape.of((4, 3)),), {"hidden_features": 5, "balance": 0.0}),  # whose gradient is that of no output
        Example((Shape.of(3),), {"hidden_features": 5, "experts": 3, "active": 2, "balance": 0.0}),
    )

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        if settings["active"] > settings["experts"]:
            raise ShapeError(f"expected active at most experts={settings['experts']}, got {settings['active']}")
        return super().infer_shape(inputs, settings)
