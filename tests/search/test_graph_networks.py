"""Ensemble of graph networks: what its members see, and the calibration of its deviation."""

import pytest
import torch

from gflownet.search.config import SurrogateConfig
from gflownet.search.graph_networks import (
    GraphNetworks,
    GraphNetworksConfig,
    encode_graphs,
    forward,
    initial_weights,
    label_vocabulary,
)
from tests.contracts.environments import cells
from tests.search.terminal_states import random_terminal_states

OPTIONS = GraphNetworksConfig(num_members=3, width=8, num_steps=60)


@pytest.fixture(scope="module")
def env():
    return cells("nb201")


@pytest.fixture(scope="module")
def states(env):
    return random_terminal_states(env, 80, seed=0)


def test_forward_equals_a_loop_over_nodes(env, states):
    graphs = env.labelled_graphs(states[:12])
    features = encode_graphs(graphs, label_vocabulary(graphs), None).double()
    generator = torch.Generator().manual_seed(0)
    weights = initial_weights(features, num_members=2, width=4, num_rounds=1, generator=generator)
    weights = {name: weight.double() + 0.1 for name, weight in weights.items()}
    outputs = forward(features, weights)
    for member in range(2):
        own = {name: weight[member] for name, weight in weights.items()}
        for index in range(12):
            expected = looped(features[index : index + 1], own)
            assert float(outputs[member, index]) == pytest.approx(float(expected))


def looped(graph, weights) -> torch.Tensor:
    """Return the output of one network with one round for one graph, node by node."""

    def linear(values, name):
        return values @ weights[name] + weights[f"{name}_bias"][0]

    nodes = [node for node in range(graph.exists.shape[1]) if graph.exists[0, node]]
    inputs = torch.cat([graph.labels, graph.received, graph.sent], 2)[0]
    state = {node: linear(inputs[node], "embedding").relu() for node in nodes}
    zero = torch.zeros(4, dtype=torch.float64)
    following = {}
    for node in nodes:
        before = [state[s] for s in nodes if graph.adjacency[0, s, node]]
        after = [state[t] for t in nodes if graph.adjacency[0, node, t]]
        means = [sum(each, zero) / max(1, len(each)) for each in (before, after)]
        following[node] = state[node] + linear(torch.cat([state[node], *means]), "round0").relu()
    size = weights["log_size"].exp()[0]
    sums = [graph.labels[0].sum(0), sum(state.values(), zero), sum(following.values(), zero)]
    pooled = torch.cat([*(each / size for each in sums), graph.numbers[0]])
    return (linear(linear(pooled, "hidden").relu(), "output") + linear(pooled, "direct"))[0]


def test_graph_networks_uses_numeric_features(env, states):
    """Scores that only the numeric feature explains."""
    numbers = torch.randn(80, 1, generator=torch.Generator().manual_seed(1))
    surrogate = GraphNetworks(env, SurrogateConfig(options=OPTIONS), seed=0)
    features = surrogate.encode(states, numbers)
    surrogate.fit(features[:60], numbers[:60, 0])
    mean = surrogate.predict(features[60:]).mean
    assert float(torch.corrcoef(torch.stack([mean, numbers[60:, 0].double()]))[0, 1]) > 0.8
    with pytest.raises(ValueError, match=r"numeric features: expected finite \[80, D\]"):
        surrogate.encode(states, numbers * float("nan"))


def test_graph_networks_is_uncertain_about_noise(env, states):
    noise = torch.randn(80, generator=torch.Generator().manual_seed(2)).double()
    surrogate = GraphNetworks(env, SurrogateConfig(options=OPTIONS), seed=0)
    features = surrogate.encode(states)
    surrogate.fit(features[:60], noise[:60])
    prediction, values = surrogate.predict(features[60:]), surrogate.warp(noise[60:])
    covered = (prediction.mean - values).abs() <= 1.645 * prediction.std
    assert float(covered.double().mean()) >= 0.7
    assert not torch.equal(prediction.std, prediction.std[:1].expand(20))


def test_graph_networks_refuses_unusable_scores(env, states):
    surrogate = GraphNetworks(env, SurrogateConfig(options=OPTIONS), seed=0)
    features = surrogate.encode(states[:4])
    with pytest.raises(ValueError, match="expected 4 scores"):
        surrogate.fit(features, torch.zeros(3))
    with pytest.raises(ValueError, match="expected finite scores"):
        surrogate.fit(features, torch.tensor([1.0, 2.0, 3.0, float("inf")]))
    with pytest.raises(ValueError, match="expected a fitted surrogate"):
        surrogate.predict(features)
