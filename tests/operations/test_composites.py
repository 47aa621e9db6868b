"""Composites against the same networks written in torch, and their published numbers of parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from gflownet.graphs.composite import Composite
from gflownet.graphs.operation import read_operation
from gflownet.operations.operation import Operation
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.translation import to_pytorch_model


def parts(name: str, shape: Shape, **settings: object) -> tuple[type[Operation], dict[str, Shape], Mapping[str, Any]]:
    applied = read_operation({"name": name, **settings})
    return applied.row, {"input": shape}, applied.settings


def translated(row: type[Operation], inputs: dict[str, Shape], settings: Mapping[str, Any]) -> nn.Module:
    assert issubclass(row, Composite)
    return to_pytorch_model(row.computation_graph(inputs, settings))


def num_parameters(name: str, shape: Shape, **settings: object) -> int:
    row, inputs, complete = parts(name, shape, **settings)
    return cast(int, row.num_parameters(inputs, complete))


def assert_equal_networks(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    """Copy the weights in their order; compare outputs in training and in evaluation."""
    state, values = theirs.state_dict(), list(ours.state_dict().values())
    assert [value.numel() for value in state.values()] == [value.numel() for value in values]
    theirs.load_state_dict({name: v.view_as(state[name]) for name, v in zip(state, values, strict=True)})
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


class Residual(nn.Module):
    """activation(shortcut(x) + body(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.shortcut, self.body, self.activation = shortcut, body, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.shortcut(x) + self.body(x))


def conv(size_in: int, size_out: int, kernel: int, *, stride: int = 1, groups: int = 1, dilation: int = 1) -> nn.Module:
    pad = (kernel - 1) * dilation // 2
    return nn.Conv2d(size_in, size_out, kernel, stride, pad, dilation, groups, bias=False)


def separable(size: int, features: int, kernel: int, stride: int, dilation: int) -> list[nn.Module]:
    depthwise = conv(size, size, kernel, stride=stride, groups=size, dilation=dilation)
    return [nn.ReLU(), depthwise, conv(size, features, 1), nn.BatchNorm2d(features)]


NETWORKS = {
    "conv_bn_relu": (
        {"features": 6, "stride": 2},
        lambda: nn.Sequential(conv(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU()),
    ),
    "relu_conv_bn": ({"features": 6}, lambda: nn.Sequential(nn.ReLU(), conv(4, 6, 3), nn.BatchNorm2d(6))),
    "separable_conv": (
        {"features": 6, "stride": 2, "kernel_size": 5},
        lambda: nn.Sequential(*separable(4, 4, 5, 2, 1), *separable(4, 6, 5, 1, 1)),
    ),
    "dilated_conv": ({"features": 6}, lambda: nn.Sequential(*separable(4, 6, 3, 1, 2))),
    "inverted_bottleneck": (
        {"features": 4, "expansion": 3},
        lambda: Residual(
            nn.Sequential(
                *(conv(4, 12, 1), nn.BatchNorm2d(12), nn.ReLU6()),
                *(conv(12, 12, 3, groups=12), nn.BatchNorm2d(12), nn.ReLU6()),
                *(conv(12, 4, 1), nn.BatchNorm2d(4)),
            ),
            nn.Identity(),
            nn.Identity(),
        ),
    ),
    "residual_block": (
        {"features": 6, "stride": 2},
        lambda: Residual(
            nn.Sequential(conv(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 6, 3), nn.BatchNorm2d(6)),
            nn.Sequential(conv(4, 6, 1, stride=2), nn.BatchNorm2d(6)),
            nn.ReLU(),
        ),
    ),
    "bottleneck_block": (
        {"features": 4, "ratio": 2},
        lambda: Residual(
            nn.Sequential(
                *(conv(4, 2, 1), nn.BatchNorm2d(2), nn.ReLU()),
                *(conv(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU()),
                *(conv(2, 4, 1), nn.BatchNorm2d(4)),
            ),
            nn.Identity(),
            nn.ReLU(),
        ),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_composite_equals_torch(name: str) -> None:
    torch.manual_seed(0)
    settings, make = NETWORKS[name]
    row, inputs, complete = parts(name, Shape.of((4, 7, 6)), **settings)
    ours = translated(row, inputs, complete)
    assert ours is not None
    assert_equal_networks(ours, make(), torch.randn(5, 4, 7, 6))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_block_equals_encoder_layer(causal: bool, activation: str) -> None:
    torch.manual_seed(0)
    settings = {"heads": 2, "expansion": 3, "activation": activation, "causal": causal}
    row, inputs, complete = parts("transformer_block", Shape.of((5, 8)), **settings)
    ours = translated(row, inputs, complete)
    assert ours is not None
    theirs = nn.TransformerEncoderLayer(8, 2, 24, 0.0, activation, batch_first=True, norm_first=True)
    state = list(ours.state_dict().values())
    # Ours in the order of computation: norm, attention, norm, feed-forward; theirs has the norms last.
    order = [2, 3, 4, 5, 8, 9, 10, 11, 0, 1, 6, 7]
    names = [name for name, _ in theirs.named_parameters()]
    theirs.load_state_dict({name: state[position] for name, position in zip(names, order, strict=True)})
    x = torch.randn(3, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else None
    torch.testing.assert_close(ours(x), theirs(x, src_mask=mask))


def test_composites_have_published_parameter_counts() -> None:
    # NAS-Bench-201: a 3x3 or 1x1 ReLU-convolution-batch norm of C channels has (9 or 1) C^2 + 2 C parameters.
    assert num_parameters("relu_conv_bn", Shape.of((16, 32, 32)), features=16) == 2336
    assert num_parameters("relu_conv_bn", Shape.of((64, 8, 8)), features=64, kernel_size=1) == 4224
    # The first blocks of layer1 to layer4 of ResNet-18 and -50.
    blocks = [num_parameters("residual_block", Shape.of((c, 8, 8)), features=f, stride=s) for c, f, s in BASIC]
    assert blocks == [73_984, 230_144, 919_040, 3_673_088]
    blocks = [num_parameters("bottleneck_block", Shape.of((c, 8, 8)), features=f, stride=s) for c, f, s in DEEP]
    assert blocks == [75_008, 379_392, 1_512_448, 6_039_552]


BASIC = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))  # channels, features, stride
DEEP = ((64, 256, 1), (256, 512, 2), (512, 1024, 2), (1024, 2048, 2))


def test_inverted_bottleneck_adds_input_only_where_shapes_agree() -> None:
    shape = Shape((4, 7), Layout.SIGNAL)
    for settings, is_added in (
        ({"features": 4}, True),
        ({"features": 5}, False),
        ({"features": 4, "stride": 2}, False),
        ({"features": 4, "kernel_size": 1, "padding": "valid"}, False),
    ):
        row, inputs, complete = parts("inverted_bottleneck", shape, **settings)
        assert issubclass(row, Composite)
        graph = row.computation_graph(inputs, complete)
        (output,) = graph.output_node_ids
        assert (len(graph.in_edges(output)) == 2) == is_added


def test_composite_graph_is_a_copy() -> None:
    applied, inputs = read_operation({"name": "conv_bn_relu", "features": 4}), {"input": Shape.of((3, 4, 4))}
    row = applied.row
    assert issubclass(row, Composite)
    row.computation_graph(inputs, applied.settings).add_node(99, "hidden", output_size=3)
    assert 99 not in row.computation_graph(inputs, applied.settings).nodes


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("conv_bn_relu", {"features": 4}, "expected a signal or image, got vector [8]"),
        ("feed_forward", {"gated": True, "activation": "tanh"}, "expected an activation out of sigmoid, relu"),
    ],
)
def test_composite_refusals_name_the_reason(name: str, settings: dict, message: str) -> None:
    row, inputs, complete = parts(name, Shape.of(8), **settings)
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}"):
        row.infer_shape(inputs, complete)
