"""DirectTraining against autograd and one optimiser per model."""

import copy

import pytest
import torch
import torch.nn.functional as F

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.vocabulary import ACTIVATIONS, AGGREGATIONS
from gflownet.translation import DirectTraining, is_direct, to_pytorch_model
from tests.oracles.translation_families import random_graph
from tests.translation.graphs import chain, mixed, recurrent

# Operations that DirectTraining covers: activations with a gradient, and the aggregations named in docs/translation.md.
DIRECT_ACTIVATIONS = {"relu", "relu6", "sigmoid", "tanh", "softmax", "leaky_relu", "elu"}
DIRECT_ACTIVATIONS |= {"gelu", "gelu_tanh", "silu", "hard_sigmoid", "hard_swish", "linear", "identity"}
DIRECT_AGGREGATIONS = {"sum", "mean", "max", "min", "concat", "matrix_product"}


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


def direct_data():
    cases = []
    for family in ("simple", "multigraph", "disabled", "unfed"):
        for seed in range(24):
            data = random_graph(family, seed)
            for node in data["nodes"]:
                attributes = node.get("attributes", {})
                if attributes.get("aggregation", "sum") not in DIRECT_AGGREGATIONS:
                    node["attributes"] = {"aggregation": "mean"}
                if node.get("activation_function") in ("lstm", "gru"):
                    node["activation_function"] = "tanh"
            if not any(edge.get("attributes", {}).get("is_recurrent") for edge in data["edges"]):
                cases.append(data)
    return [*cases[::4], chain(4, 5, 70, 66, 3)]  # wide layers have different code


def models_of(data, seeds=(3, 1, 4), **config):
    models = []
    for graph, seed in zip(graphs_of(data, len(seeds)), seeds, strict=True):
        torch.manual_seed(seed)
        models.append(to_pytorch_model(graph, config))
    return models


def draw(model, batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, model.plan.input_size, dtype=next(model.parameters()).dtype, generator=generator)
    return x, torch.randint(0, model.plan.output_size, (batch,), generator=generator)


def assert_same_gradients(model):
    reference = copy.deepcopy(model)
    x, targets = draw(model, 5)
    expected = F.cross_entropy(reference(x), targets)
    expected.backward()
    (loss,) = DirectTraining([model]).backward([x], [targets])
    assert torch.allclose(loss, expected)
    for (name, parameter), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        gradient = torch.zeros_like(other) if other.grad is None else other.grad
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient, atol=1e-12), name


@pytest.mark.parametrize("projection", [pytest.param("auto", marks=pytest.mark.slow), "always"])
def test_direct_gradients_equal_autograd(projection):
    for data in direct_data():
        (model,) = models_of(data, (0,), dtype=torch.float64, projection=projection)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        assert_same_gradients(model)


@pytest.mark.parametrize("activation", sorted(DIRECT_ACTIVATIONS))
def test_every_activation(activation):
    (model,) = models_of(chain(4, 5, 3, activation=activation), (0,), dtype=torch.float64)
    assert_same_gradients(model)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_is_direct_activations(activation):
    (model,) = models_of(chain(4, 5, 3, activation=activation), (0,))
    assert is_direct(model.plan) == (activation in DIRECT_ACTIVATIONS)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_is_direct_aggregations(aggregation):
    data = chain(4, 4, 3, multigraph=True)
    data["edges"].append({"source": 0, "target": 1, "edge_id": 5})
    data["nodes"][1]["attributes"] = {"aggregation": aggregation}
    (model,) = models_of(data, (0,))
    assert is_direct(model.plan) == (aggregation in DIRECT_AGGREGATIONS)


@pytest.mark.parametrize("aggregation", ["max", "min"])
def test_ties_share_the_gradient_as_in_autograd(aggregation):
    data = chain(3, 3, 3, activation="linear", multigraph=True)
    data["edges"] += [{"source": 0, "target": 1, "edge_id": i} for i in (5, 6)]
    data["nodes"][1]["attributes"] = {"aggregation": aggregation}
    (model,) = models_of(data, (0,), dtype=torch.float64)
    assert_same_gradients(model)


def test_training_many_structures_is_training_them_one_by_one():
    models = [
        model
        for sizes in ((4, 6, 3), (4, 5, 7, 2))
        for model in models_of(chain(*sizes, activation="tanh"), (1, 2), dtype=torch.float64)
    ]
    references = [copy.deepcopy(model) for model in models]
    training = DirectTraining(models)
    optimiser = torch.optim.Adam([training.parameter], lr=0.01, fused=True)
    optimisers = [torch.optim.Adam(model.parameters(), lr=0.01, fused=True) for model in references]
    for step in range(30):
        batches = [draw(model, 8, seed=step) for model in models]
        training.backward(*zip(*batches, strict=True))
        optimiser.step()
        for model, one, (x, targets) in zip(references, optimisers, batches, strict=True):
            one.zero_grad()
            F.cross_entropy(model(x), targets).backward()
            one.step()
    for model, reference in zip(models, references, strict=True):
        for name, value in reference.state_dict().items():
            assert torch.allclose(model.state_dict()[name], value, atol=1e-9), name


def test_candidate_is_bit_identical_in_every_group():
    def trained(structures, position):
        models = [models_of(chain(*sizes), (7,))[0] for sizes in structures]
        training = DirectTraining(models)
        optimiser = torch.optim.Adam([training.parameter], lr=0.01, fused=True)
        for step in range(20):
            training.backward(*zip(*(draw(model, 8, seed=step) for model in models), strict=True))
            optimiser.step()
        return models[position].state_dict()

    alone = trained([(5, 7, 3)], 0)
    beside = trained([(5, 3, 3), (5, 7, 3), (5, 11, 9, 3)], 1)
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


def test_diverging_candidate_does_not_affect_others():
    models = models_of(chain(4, 6, 3))
    with torch.no_grad():
        models[1].proj_0_1.weight.fill_(float("nan"))
    training = DirectTraining(models)
    losses = training.backward(*zip(*(draw(model, 6) for model in models), strict=True))
    assert losses.isfinite().tolist() == [True, False, True]
    torch.optim.Adam([training.parameter], lr=0.01).step()
    assert all(parameter.isfinite().all() for k in (0, 2) for parameter in models[k].parameters())


@pytest.mark.parametrize("data", [mixed(), recurrent()], ids=["mixed", "recurrent"])
def test_a_model_without_direct_code_is_refused(data):
    model = to_pytorch_model(ComputationGraph.from_dict(data))
    assert not is_direct(model.plan)
    with pytest.raises(ValueError, match="model 1: expected one that is_direct"):
        DirectTraining([*models_of(chain(4, 3), (0,)), model])
