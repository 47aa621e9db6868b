"""Numbers of architectures, compared with values counted by hand."""

import pytest
import torch

from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.operation_graph import OperationGraphEnv
from gflownet.graphs.typed import graph_cost
from gflownet.mdp.states import NO_EDGE, LabelledGraphs, ordered
from gflownet.search.features import Descriptors, path_numbers
from tests.contracts.environments import ENVIRONMENTS, computation_graphs
from tests.search.terminal_states import random_terminal_states


def test_path_numbers_of_a_graph_counted_by_hand():
    """0 -> 1 -> 3, 0 -> 2 -> 3, 0 -> 3."""
    edges = torch.full((1, 5, 5), NO_EDGE)
    for source, target in ((0, 1), (1, 3), (0, 2), (2, 3), (0, 3)):
        edges[0, source, target] = 1
    labels = torch.tensor([[[0], [1], [1], [2], [-1]]])
    numbers = {name: float(x) for name, _, x in path_numbers(LabelledGraphs(labels, edges, torch.empty(1, 0)))}
    expected = {
        **{"nodes": 4, "edges": 5, "longest path": 2, "shortest path": 1, "edges from sources": 3, "width": 2},
        **{"edges to sinks": 3, "edges from sources to sinks": 1, "nodes without edges": 0, "mean depth": 1.0},
        **{"largest number of inputs": 3, "largest number of outputs": 3},
    }
    assert {name: numbers[name] for name in expected} == expected
    assert numbers["log paths"] == pytest.approx(float(torch.tensor(3.0).log1p()))


def test_shape_numbers_have_the_cost_of_the_network():
    env = ENVIRONMENTS["operation_graph"]()
    assert isinstance(env, OperationGraphEnv)
    states = random_terminal_states(env, 20, seed=0)
    numbers = {name: x for name, _, x in env.numbers(states)}
    costs = [graph_cost(env.terminal(states, index)) for index in range(20)]
    for name, values in (
        ("log parameters", [cost.num_parameters for cost in costs]),
        ("log multiply-adds", [cost.multiply_adds for cost in costs]),
    ):
        torch.testing.assert_close(numbers[name].expm1(), torch.tensor(values, dtype=torch.float64))


def test_setting_numbers_are_sums_over_nodes():
    env = computation_graphs(max_hidden_nodes=4, max_edges=8)
    states = random_terminal_states(env, 10, seed=0)
    numbers = {name: x for name, _, x in env.numbers(states)}
    attribute = next(a for a in env.vocabulary.node_attributes if ordered(a.values) is not None)
    position = env.vocabulary.node_attributes.index(attribute)
    for row, values in enumerate(states.node_attr[:, :, position].tolist()):
        widths = torch.tensor([attribute.values[value] for value in values if value >= 0])
        assert float(numbers[f"sum of {attribute.name}"][row]) == float(widths.sum())


def test_place_numbers_rank_values():
    env = ENVIRONMENTS["choices"]()
    assert isinstance(env, ChoicesEnv)
    states = random_terminal_states(env, 30, seed=0)
    for name, _, values in env.numbers(states):
        place = next((p for p in env.places.places if p.name == name), None)
        if place is None:  # which value a place has
            continue
        ranks = {value: rank for rank, value in enumerate(sorted(place.values))}
        for row in range(len(states)):
            setting = env.terminal(states, row)
            found = dict(zip(setting.names, setting.values, strict=True)).get(name)
            assert values[row].isnan() if found is None else float(values[row]) == ranks[found]


@pytest.mark.parametrize("name", ["operation_graph", "choices", "hypergrid", "tensor_graph", "catalogue"])
def test_descriptors_are_standardised_and_finite(name):
    env = ENVIRONMENTS[name]()
    values = Descriptors(env, seed=0)(random_terminal_states(env, 40, seed=1))
    assert values.shape[1] > 0
    assert bool(values.isfinite().all())
    assert float(values.abs().max()) <= 4
