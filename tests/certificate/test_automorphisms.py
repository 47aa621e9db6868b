"""Automorphism counts by backtracking: against formulas, against networkx, and their limit of steps."""

import math

import networkx as nx
import pytest

from gflownet.certificate.automorphisms import LabelledGraph, are_isomorphic, count_automorphisms, labelled_graphs
from gflownet.certificate.exact import enumerate_states
from tests.contracts.environments import ENVIRONMENTS
from tests.oracles.networkx_states import num_automorphisms, to_networkx


def graph_of(graph: nx.Graph | nx.DiGraph, colours: list[int] | None = None) -> LabelledGraph:
    n = graph.number_of_nodes()
    labels = [0] * n if colours is None else colours
    edges = tuple(tuple((1,) if graph.has_edge(s, t) else () for t in range(n)) for s in range(n))
    return LabelledGraph(tuple((label,) for label in labels), edges)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (nx.petersen_graph(), 120),
        (nx.cycle_graph(9), 18),
        (nx.path_graph(5), 2),
        (nx.complete_graph(16), math.factorial(16)),
        (nx.empty_graph(0), 1),
        (nx.cycle_graph(5, create_using=nx.DiGraph), 5),
    ],
)
def test_count_automorphisms_of_known_graphs(graph, expected):
    assert count_automorphisms(graph_of(graph)) == expected


def test_count_automorphisms_keeps_colours_and_edge_labels():
    triangle = graph_of(nx.complete_graph(3))
    assert count_automorphisms(triangle) == 6
    assert count_automorphisms(graph_of(nx.complete_graph(3), [0, 0, 1])) == 2
    labelled = LabelledGraph(triangle.nodes, (((), (1,), (2,)), ((1,), (), (2,)), ((2,), (2,), ())))
    assert count_automorphisms(labelled) == 2


@pytest.mark.parametrize("name", ["undirected", "directed", "computation_graph_ordered", "tensor_graph_new_indices"])
def test_count_automorphisms_matches_networkx(name):
    env = ENVIRONMENTS[name]()
    states = enumerate_states(env).states[-60:]
    expected = [num_automorphisms(to_networkx(env, states, i)) for i in range(len(states))]
    assert [count_automorphisms(graph) for graph in labelled_graphs(states)] == expected
    assert max(expected) > 1


def test_are_isomorphic_separates_regular_graphs():
    prism, utility = nx.circular_ladder_graph(3), nx.complete_bipartite_graph(3, 3)
    assert are_isomorphic(graph_of(prism), graph_of(utility)) is False
    renamed = nx.relabel_nodes(prism, dict(enumerate([3, 5, 0, 2, 4, 1])))
    assert are_isomorphic(graph_of(prism), graph_of(renamed)) is True
    assert are_isomorphic(graph_of(prism), graph_of(nx.path_graph(2))) is False


def test_search_above_limit_returns_none():
    graph = graph_of(nx.cycle_graph(8))
    assert count_automorphisms(graph, max_steps=5) is None
    assert are_isomorphic(graph, graph, max_steps=5) is None
