"""Cells as graphs of their operations, compared with paths found one by one."""

from collections import Counter

import pytest
import torch

from gflownet.envs.cells import CellEnv
from tests.contracts.environments import cells
from tests.oracles.weisfeiler_lehman import cell_graph
from tests.search.terminal_states import random_terminal_states


def own_edges() -> CellEnv:
    env = cells(
        "edges",  # type: ignore[arg-type]
        edges=["1<-0", "2<-1", "3<-0", "3<-2", "4<-1", "4<-3"],
        operations={"conv": {"name": "relu_conv_bn", "kernel_size": 1}, "nothing": "zero", "skip": "identity"},
        skeleton={"stem": {"name": "conv2d", "features": 4, "kernel_size": 1}, "stages": [{"features": 4}]},
    )
    assert isinstance(env, CellEnv)
    return env


@pytest.mark.parametrize("make_env", [lambda: cells("nb201"), own_edges], ids=["nb201", "edges"])
def test_labelled_graphs_of_cells_match_paths(make_env):
    env = make_env()
    states = random_terminal_states(env, 60, seed=0)
    graphs = env.labelled_graphs(states)
    places, zeros = env.cell.places, env.cell.zeros
    assert zeros
    last, names = max(int(place[0]) for place in places), [*places, "input", "output"]
    for index in range(len(states)):
        operations = dict(zip(places, env.terminal(states, index).values, strict=True))
        expected, followers = cell_graph(operations, zeros, last=last)
        labels = [env.cell.operations[i] for i in graphs.labels[index, :-2, 0].tolist() if i >= 0]
        assert Counter(labels) == expected
        assert {(names[s], names[t]) for s, t in graphs.edges[index].nonzero().tolist()} == followers
        assert graphs.places[index].tolist() == [env.cell.operations.index(operations[place]) for place in places]


def test_labelled_graphs_of_layers_form_chain():
    env = cells("nb_macro")
    graphs = env.labelled_graphs(random_terminal_states(env, 3, seed=1))
    chain = [(8, 0), *((layer, layer + 1) for layer in range(7)), (7, 9)]
    assert all(sorted(map(tuple, edges.nonzero().tolist())) == sorted(chain) for edges in graphs.edges)


def test_labelled_graphs_of_unfinished_cells_have_no_empty_places():
    env = cells("nb201")
    graphs = env.labelled_graphs(env.initial_states(2))
    assert torch.equal(graphs.exists.nonzero()[:, 1], torch.tensor([6, 7, 6, 7]))
    assert not bool(graphs.edges.any())
