"""Batched Weisfeiler-Lehman features compared with histograms of strings."""

import pytest
import torch

from gflownet.search.features import GraphFeatures, squared_distances
from gflownet.search.features import encoded as encoded_with
from tests.contracts.environments import ENVIRONMENTS, cells, computation_graphs
from tests.oracles.weisfeiler_lehman import all_histograms, squared_distance
from tests.search.terminal_states import random_terminal_states, renamed_nodes

NUM_ROUNDS = 3
SPACES = {
    "computation_graph": lambda: computation_graphs(max_hidden_nodes=4, max_edges=8),
    "nb201": lambda: cells("nb201"),
    "recurrent": lambda: computation_graphs(max_hidden_nodes=3, max_edges=7, allow_recurrent=True),
    **{
        name: ENVIRONMENTS[name]
        for name in (
            *("computation_graph_ordered", "operation_graph", "cells_nb101", "choices", "recurrent_stack"),
            *("tensor_graph", "undirected_attributes", "directed_attributes"),
        )
    },
}


@pytest.fixture(scope="module", params=SPACES)
def env(request):
    return SPACES[request.param]()


def encoded(env, states, numbers=None, *, num_rounds=NUM_ROUNDS) -> GraphFeatures:
    """Return the features of states, with a distance for each number."""
    numbers = torch.zeros(len(states), 0) if numbers is None else numbers
    return encoded_with(env, states, numbers.double(), torch.arange(numbers.shape[1]), num_rounds=num_rounds)


def distances(first: GraphFeatures, second: GraphFeatures) -> torch.Tensor:
    return torch.stack([*squared_distances(first, second)])


def test_distances_match_histograms_of_strings(env):
    states = random_terminal_states(env, 24, seed=0)
    features = encoded(env, states)
    graphs = env.labelled_graphs(states)
    histograms = [all_histograms(graphs, index, NUM_ROUNDS) for index in range(len(states))]
    expected = [
        [[squared_distance(left[block], right[block]) for right in histograms] for left in histograms]
        for block in range(len(histograms[0]))
    ]
    result = distances(features, features)[: len(expected)]
    assert torch.equal(distances(features[5:9], features[:7])[: len(expected)], result[:, 5:9, :7])
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert bool((result > 0).any())
    assert bool((result.diagonal(dim1=1, dim2=2) == 0).all())


@pytest.mark.parametrize("name", [name for name in SPACES if name not in ("nb201", "choices", "recurrent_stack")])
def test_features_of_isomorphic_states_are_equal(name):
    env = SPACES[name]()
    states = random_terminal_states(env, 40, seed=1)
    renamed = renamed_nodes(states, seed=2)
    left, right = encoded(env, states), encoded(env, renamed)
    assert not bool(states.equals(renamed).all())
    assert torch.equal(left.labels, right.labels)
    assert torch.equal(left.counts, right.counts)


def test_isomorphic_cells_of_nas_bench_201_differ_in_places_only():
    """Two cells with one convolution between input and output, over different nodes."""
    env = cells("nb201")
    states = env.initial_states(2)
    states.node_attr[:, :, 0] = torch.tensor([[3, 0, 1, 0, 0, 1], [3, 0, 0, 0, 1, 0]], dtype=torch.int8)
    states.node_attr[0, :, 0] = torch.tensor([0, 3, 0, 0, 0, 1], dtype=torch.int8)
    features = encoded(env, states)
    assert distances(features, features)[:5, 0, 1].tolist() == pytest.approx([0, 0, 0, 0, 8 / 6])


def test_distances_of_groups_of_numbers():
    env = computation_graphs(max_hidden_nodes=4, max_edges=8)
    states = random_terminal_states(env, 4, seed=3)
    numbers = torch.tensor([[0.0, 3.0, 1.0], [4.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 3.0, 3.0]]).double()
    features = encoded_with(env, states, numbers, torch.tensor([0, 0, 1]), num_rounds=0)
    result = distances(features, features)[features.num_blocks :, :2]
    assert result.tolist() == [[[0, 25, 9, 0], [25, 0, 16, 25]], [[0, 0, 0, 4], [0, 0, 0, 4]]]
