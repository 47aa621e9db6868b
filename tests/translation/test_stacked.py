"""StackedModel against the same models one by one."""

import copy

import pytest
import torch
import torch.nn.functional as F

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import StackedModel, group_by_structure, is_stackable, to_pytorch_model
from gflownet.translation.stacked import STACKABLE_AGGREGATIONS, stacked_name
from tests.oracles.translation_families import random_graph
from tests.translation.graphs import chain, mixed, recurrent

SEEDS = (3, 1, 4)
DOUBLE = {"dtype": torch.float64}


def graphs_of(data, count=3):
    """`count` graphs of one structure with different biases and weights."""
    graphs = []
    for position in range(count):
        data = copy.deepcopy(data)
        for node in data["nodes"]:
            if node["node_type"] != "input":
                node["bias"] = 0.1 * position
        for edge in data["edges"]:
            edge["weight"] = 1.0 + 0.2 * position
        graphs.append(ComputationGraph.from_dict(data))
    return graphs


def stackable_data():
    found = []
    for family in ("simple", "multigraph", "disabled", "unfed"):
        for seed in range(60):
            data = random_graph(family, seed)
            for node in data["nodes"]:
                attributes = node.get("attributes", {})
                if attributes.get("aggregation") not in STACKABLE_AGGREGATIONS:
                    node["attributes"] = {"aggregation": "mean"}
                if node.get("activation_function") in ("lstm", "gru"):
                    node["activation_function"] = "tanh"
            if not any(edge.get("attributes", {}).get("is_recurrent") for edge in data["edges"]):
                found.append(data)
    return [*found[::6], chain(4, 5, 70, 66, 3)]  # wide layers have code of their own


def one_by_one(graphs, config):
    models = []
    for graph, seed in zip(graphs, SEEDS, strict=True):
        torch.manual_seed(seed)
        models.append(to_pytorch_model(graph, config))
    return models


@pytest.mark.parametrize("projection", ["auto", "always"])
def test_outputs_and_gradients_are_those_of_one_by_one(projection):
    for data in stackable_data():
        graphs, config = graphs_of(data), {**DOUBLE, "projection": projection}
        stack, models = StackedModel(graphs, SEEDS, config=config), one_by_one(graphs, config)
        x = torch.randn(3, 4, stack.plan.input_size, dtype=torch.float64)
        outputs = stack(x)
        expected = torch.stack([model(rows) for model, rows in zip(models, x, strict=True)])
        assert torch.allclose(outputs, expected, atol=1e-12)
        assert torch.allclose(stack(x[1])[2], models[2](x[1]), atol=1e-12)
        outputs.square().sum().backward()
        expected.square().sum().backward()
        for parameter in stack.plan.parameters:
            got = stack.get_parameter(stacked_name(parameter)).grad
            for position, model in enumerate(models):
                gradient = model.get_parameter(parameter.name).grad
                assert (got is None) == (gradient is None)
                if got is not None and gradient is not None:
                    assert torch.allclose(got[position].reshape(gradient.shape), gradient, atol=1e-10)


def test_training_together_is_training_one_by_one_whoever_stands_beside():
    # In float64: a shift of all logits leaves the loss as it is, so Adam would follow the rounding error of bias_3.
    graphs, config = graphs_of(chain(4, 6, 5, 3)), {"projection": "always", **DOUBLE}
    stack, models = StackedModel(graphs, SEEDS, config=config), one_by_one(graphs, config)
    x, targets = torch.randn(3, 20, 8, 4, dtype=torch.float64), torch.randint(0, 3, (3, 20, 8))
    optimiser = torch.optim.Adam(stack.parameters(), lr=0.01, fused=True)
    for step in range(20):
        optimiser.zero_grad()
        F.cross_entropy(stack(x[:, step]).flatten(0, 1), targets[:, step].flatten(), reduction="sum").div(8).backward()
        optimiser.step()
    for position, model in enumerate(models):
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        for step in range(20):
            optimiser.zero_grad()
            F.cross_entropy(model(x[position, step]), targets[position, step]).backward()
            optimiser.step()
        for name, value in stack.candidate(position).state_dict().items():
            assert torch.allclose(value, model.state_dict()[name], atol=1e-8), name
    alone = StackedModel(graphs[1:2], SEEDS[1:2], config=config)
    beside = StackedModel(graphs, SEEDS, config=config)
    for name, value in alone.state_dict().items():
        assert torch.equal(value[0], beside.state_dict()[name][1])


def test_a_diverging_candidate_harms_no_other():
    graphs = graphs_of(chain(4, 6, 3))
    stack = StackedModel(graphs, SEEDS)
    with torch.no_grad():
        stack.get_parameter("proj_0_1_weight")[1] = float("nan")
    outputs = stack(torch.randn(5, 4))
    assert outputs[1].isnan().all()
    assert outputs[[0, 2]].isfinite().all()


def test_what_cannot_be_stacked_is_refused():
    chains = graphs_of(chain(4, 6, 3))
    with pytest.raises(ValueError, match="one seed per graph, got 3 graphs and 2 seeds"):
        StackedModel(chains, SEEDS[:2])
    with pytest.raises(ValueError, match="expected graphs of one structure"):
        StackedModel([chains[0], *graphs_of(chain(4, 5, 3), 2)], SEEDS)
    for data in (recurrent(), mixed()):
        graphs = graphs_of(data)
        assert not is_stackable(to_pytorch_model(graphs[0]).plan)
        with pytest.raises(ValueError, match="is_stackable"):
            StackedModel(graphs, SEEDS)
    for shape in ((2, 4, 4), (5,), (4, 5)):
        with pytest.raises(ValueError, match=r"\[B, 4\] or \[3, B, 4\]"):
            StackedModel(chains, SEEDS)(torch.zeros(shape))


def test_grouping_keeps_the_order_of_first_appearance():
    graphs = [ComputationGraph.from_dict(chain(4, size, 3)) for size in (5, 6, 5, 7, 6)]
    assert group_by_structure(graphs) == [[0, 2], [1, 4], [3]]
