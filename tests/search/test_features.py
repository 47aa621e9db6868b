"""Batched Weisfeiler-Lehman features compared with histograms of strings."""

import pytest
import torch

from gflownet.search.features import GraphFeatures, Points, WeightedDistances, WeisfeilerLehman
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
    encoder = WeisfeilerLehman(env, num_rounds=num_rounds)
    return encoder.encode(states, numbers.double(), torch.arange(numbers.shape[1]))


def test_distances_match_histograms_of_strings(env):
    states = random_terminal_states(env, 24, seed=0)
    points = Points(encoded(env, states))
    graphs = env.labelled_graphs(states)
    histograms = [all_histograms(graphs, index, NUM_ROUNDS) for index in range(len(states))]
    expected = [
        [[squared_distance(left[block], right[block]) for right in histograms] for left in histograms]
        for block in range(len(histograms[0]))
    ]
    distances = points.distances(points)[: len(expected)]
    torch.testing.assert_close(distances, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert bool((distances > 0).any())
    assert bool((distances.diagonal(dim1=1, dim2=2) == 0).all())


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
    points = Points(encoded(env, states))
    assert points.distances(points)[:5, 0, 1].tolist() == pytest.approx([0, 0, 0, 0, 8 / 6])


def test_median_scales_match_medians_of_all_distances(monkeypatch):
    env = computation_graphs(max_hidden_nodes=4, max_edges=8)
    states = random_terminal_states(env, 20, seed=3)
    numbers = torch.stack([torch.arange(20.0).square(), torch.zeros(20)], 1)
    points = Points(encoded(env, states, numbers, num_rounds=2))
    expected = [float(each[each > 0].median()) for each in points.distances(points)[:-1]]
    for num_rows in (7, 128):
        monkeypatch.setattr("gflownet.search.features._MEDIAN_ROWS", num_rows)
        assert points.median_scales().tolist() == [*expected, 1.0]


def test_weighted_distances_match_the_sum_of_all():
    """Labels with a column and labels with lists of graphs, numbers far from zero, distances without a weight."""
    env = computation_graphs(max_hidden_nodes=4, max_edges=8)
    states = random_terminal_states(env, 60, seed=3)
    numbers = 1e4 + torch.randn(60, 2, generator=torch.Generator().manual_seed(4)).double()
    features = encoded(env, states, numbers, num_rounds=2)
    for weights in ([0.5, 0.0, 2.0, 1.0, 0.0, 3.0], [0.0] * 4 + [1.0, 2.0], [0.0, 1.0] + [0.0] * 4):
        used = torch.tensor(weights, dtype=torch.float64)
        expected = torch.tensordot(used, Points(features[:40]).distances(Points(features)), 1)
        result = WeightedDistances(features[:40], used)(features)
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)
        assert float(result[:40].diagonal().max()) < 1e-9
