"""StackedModel against its models one by one: outputs, gradients, statistics, and graphs that it refuses."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.tensor_shape import Layout
from gflownet.training.precision import use_channels_last
from gflownet.translation import StackedModel, can_stack, join_copies, to_pytorch_model
from tests.translation.operation_graphs import block, graph_of, hidden, image_input

K = 3
IMAGE, SIGNAL = (2, 8, 6), (1, 16)


def merged(shape: tuple[int, ...]) -> ComputationGraph:
    """Return a graph with padded, concatenated, pooled, projected and repeated channels."""
    kind = f"{len(shape) - 1}d"
    nodes = [
        {**image_input(*shape), "layout": "image" if len(shape) == 3 else "signal"},
        hidden(1, "conv_bn_relu", features=4, kernel_size=3),
        hidden(2, f"max_pool{kind}", align="pad", aggregation="sum"),
        hidden(3, "separable_conv_bn_relu", features=5, kernel_size=3, align="auto", aggregation="concat"),
        hidden(4, f"conv{kind}", features=6, groups=2, activation_function="tanh", stride=2),
        hidden(5, f"avg_pool{kind}", aggregation="max", align="pad"),
        {"id": 6, "node_type": "hidden", "subgraph": "block", "repeat": 2},
        hidden(7, "global_pool", reduction="max"),
        hidden(8, "linear", features=7, activation_function="gelu", aggregation="mean", align="pool"),
        hidden(9, "head", kind="output", features=4, aggregation="concat"),
    ]
    edges = [
        (0, 1),
        (0, 2),
        (1, 2),
        (2, 3),
        (1, 3),
        (1, 4),
        (3, 5),
        (4, 5),
        (5, 6),
        (6, 7),
        (7, 8),
        (6, 8),
        (8, 9),
        (7, 9),
    ]
    layout = Layout.IMAGE if len(shape) == 3 else Layout.SIGNAL
    return graph_of(nodes, edges, subgraphs={"block": block(layout, 6)})


def models_of(graph: ComputationGraph, num: int = K):
    models = []
    for seed in range(num):
        torch.manual_seed(seed)
        models.append(to_pytorch_model(graph, {"dtype": "float64"}))
    return models


def inputs_of(shape: tuple[int, ...], num: int = K) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, *shape, generator=generator, dtype=torch.float64) for _ in range(num)]


@pytest.mark.parametrize("shape", [IMAGE, SIGNAL])
@pytest.mark.parametrize("is_last", [False, True])
def test_stacked_models_equal_single_ones(shape, is_last):
    models, inputs = models_of(merged(shape)), inputs_of(shape)
    assert can_stack(models[0])
    stack = StackedModel(models)
    if is_last:
        use_channels_last(stack)
    outputs = stack.train()(join_copies(inputs))  # [B, K, O]
    outputs.square().sum().backward()
    for k, (model, x) in enumerate(zip(models, inputs, strict=True)):
        expected = model.train()(x)
        torch.testing.assert_close(outputs[:, k], expected, rtol=0, atol=1e-12)
        expected.square().sum().backward()
        for (name, value), stacked in zip(model.named_parameters(), stack.parameters(), strict=True):
            torch.testing.assert_close(cast(Tensor, stacked.grad).chunk(K)[k], value.grad, rtol=0, atol=1e-10, msg=name)
    statistics = [{name: value.clone() for name, value in model.named_buffers()} for model in models]
    with torch.no_grad():
        for value in stack.parameters():
            value.mul_(2)
    expected = [{name: 2 * value for name, value in model.named_parameters()} for model in models]
    stack.copy_to(models)
    for model, parameters, buffers in zip(models, expected, statistics, strict=True):
        torch.testing.assert_close(dict(model.named_parameters()), parameters, rtol=0, atol=0)
        torch.testing.assert_close(dict(model.named_buffers()), buffers, rtol=0, atol=1e-12)
    stacked = stack.eval()(join_copies(inputs))
    for k, (model, x) in enumerate(zip(models, inputs, strict=True)):
        torch.testing.assert_close(stacked[:, k], model.eval()(x), rtol=0, atol=1e-12)


def test_not_finite_copy_leaves_others_alone():
    models, inputs = models_of(merged(IMAGE)), inputs_of(IMAGE)
    inputs[1].fill_(torch.nan)
    stack = StackedModel(models)
    use_channels_last(stack)
    stack.train()(join_copies(inputs)).sum().backward()
    is_finite = torch.stack(
        [torch.stack([p.isfinite().all() for p in cast(Tensor, value.grad).chunk(K)]) for value in stack.parameters()]
    )
    assert is_finite[:, [0, 2]].all()
    assert not is_finite[:, 1].all()


REFUSED = {
    "dropout": hidden(1, "dropout", dropout=0.5),
    "softmax": hidden(1, "identity", activation_function="softmax"),
    "edge weight": hidden(1, "identity", edge_weight=True),
    "layer_norm": hidden(1, "layer_norm"),
    "positions": hidden(1, "identity", aggregation="concat", axis="positions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_operations_are_refused(name):
    edges = [(0, 1), (0, 1), (1, 2)] if name == "positions" else [(0, 1), (1, 2)]
    nodes = [image_input(3, 4, 4), REFUSED[name], hidden(2, "head", kind="output", features=2)]
    assert not can_stack(to_pytorch_model(graph_of(nodes, edges, multigraph=True)))
