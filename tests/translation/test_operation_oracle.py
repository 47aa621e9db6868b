"""Translated operation graphs equal a slow evaluation, node by node, on seeded random graphs."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import graph_cost
from gflownet.translation import to_pytorch_model
from tests.oracles.operation_evaluation import evaluate
from tests.translation.operation_graphs import random_graph

NUM_GRAPHS = int(os.environ.get("GFLOWNET_ORACLE_GRAPHS", "60"))


def inputs_of(graph: ComputationGraph, batch: int = 3) -> dict[int, torch.Tensor]:
    return {
        node_id: torch.randn(batch, *graph.nodes[node_id].attributes["shape"], dtype=torch.float64)
        for node_id in graph.input_node_ids
    }


def randomised(model: nn.Module) -> nn.Module:
    """Give every parameter and running statistic a random value, so that no factor is 1 and no term 0."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "running_var" in name else torch.randn_like(tensor) / 2)
    return model


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, NUM_GRAPHS), marks=pytest.mark.slow)])
def test_models_equal_the_oracle(seeds):
    for seed in seeds:
        torch.manual_seed(seed)
        graph = random_graph(seed)
        model = randomised(to_pytorch_model(graph, {"dtype": "float64"}))
        inputs = inputs_of(graph)
        assert sum(parameter.numel() for parameter in model.parameters()) == graph_cost(graph).num_parameters, seed
        for training in (True, False):
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            leaves = {name: state[name].requires_grad_() for name, _ in model.named_parameters()}
            (expected,) = evaluate(graph, state, inputs, training=training)
            got = model.train(training)(*inputs.values())
            assert torch.allclose(got, expected, rtol=1e-9, atol=1e-9), seed
        model.zero_grad()
        got.square().sum().backward()
        gradients = torch.autograd.grad(expected.square().sum(), list(leaves.values()), allow_unused=True)
        for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
            assert parameter.grad is not None, (seed, name)
            assert torch.allclose(parameter.grad, gradient, rtol=1e-6, atol=1e-8), (seed, name)
