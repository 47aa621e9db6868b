from itertools import permutations
from random import Random

import networkx as nx
import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from tests.oracles import graphs as oracle


def chain(num_nodes: int, *extra: tuple[int, int]) -> ComputationGraph:
    """input 0 -> 1 -> ... -> num_nodes - 1, and further edges."""
    graph = ComputationGraph()
    for node_id in range(num_nodes):
        graph.add_node(node_id, "hidden" if node_id else "input", output_size=1)
    for source, target in [*((i, i + 1) for i in range(num_nodes - 1)), *extra]:
        graph.add_edge(source, target)
    return graph


def without(graph: ComputationGraph, removed: tuple[int, ...]) -> nx.MultiDiGraph:
    """The enabled unmarked edges as networkx sees them."""
    plain = nx.MultiDiGraph()
    plain.add_nodes_from(graph.nodes)
    for edge_id, edge in graph.edges.items():
        if edge.enabled and not edge.is_recurrent and edge_id not in removed:
            plain.add_edge(edge.source, edge.target)
    return plain


def unmarked(graph: ComputationGraph) -> ComputationGraph:
    data = graph.to_dict()
    for edge in data["edges"]:
        edge["attributes"] = {}
    return ComputationGraph.from_dict(data)


def test_closing_edges_are_minimal_and_invariant_under_renaming():
    """The renamed graph with the closing edges marked equals the graph with its closing edges marked."""
    num_cyclic = 0
    for seed in range(40):
        rng = Random(seed)
        graph = unmarked(oracle.random_computation_graph(rng, num_edges=14))
        before = graph.to_json()
        closing = graph.detect_cycles()
        assert graph.to_json() == before
        assert nx.is_directed_acyclic_graph(without(graph, closing)), seed
        for edge_id in closing:
            remaining = tuple(other for other in closing if other != edge_id)
            assert not nx.is_directed_acyclic_graph(without(graph, remaining)), seed
        assert closing == tuple(sorted(closing))
        assert marked(oracle.renamed(graph, rng)) == marked(graph), seed
        num_cyclic += bool(closing)
    assert num_cyclic > 20


def marked(graph: ComputationGraph) -> ComputationGraph:
    data, closing = graph.to_dict(), graph.detect_cycles()
    for edge in data["edges"]:
        if edge["edge_id"] in closing:
            edge["attributes"] = {"is_recurrent": True}
    return ComputationGraph.from_dict(data)


def test_closing_edge_is_back_edge():
    edges = [(0, 1), (1, 2), (2, 3), (3, 1)]
    for order in permutations(edges):
        graph = chain(1)
        for node_id in (3, 1, 2):
            graph.add_node(node_id, "hidden", output_size=1)
        for source, target in order:
            graph.add_edge(source, target)
        (closing,) = graph.detect_cycles()
        assert (graph.edges[closing].source, graph.edges[closing].target) == (3, 1)


def test_edge_to_output_is_not_closing():
    graph = chain(2)
    graph.add_node(2, "output", output_size=1)
    for source, target in ((0, 2), (1, 2), (2, 1)):
        graph.add_edge(source, target)
    assert graph.detect_cycles() == (3,)


def test_closing_edges_ignore_recurrent_and_disabled():
    graph = chain(3)
    graph.add_edge(2, 1, attributes={"is_recurrent": True})
    graph.add_edge(2, 0, enabled=False)
    assert graph.detect_cycles() == ()
    assert graph.topological_sort() == [0, 1, 2]
    forward_marked = chain(2)
    forward_marked.add_edge(0, 1, attributes={"is_recurrent": True})
    assert forward_marked.detect_cycles() == ()


def test_self_loops_and_parallel_edges_are_closing():
    graph = chain(3, (1, 1), (2, 1), (2, 1))
    assert graph.detect_cycles() == (2, 3, 4)


def test_ordering_of_long_chains():
    graph = chain(2000)
    assert graph.detect_cycles() == ()
    assert graph.topological_sort() == list(range(2000))
    closed = chain(2000, (1999, 1))
    assert closed.detect_cycles() == (1999,)
    assert ComputationGraph.from_dict(closed.to_dict()) == closed


@pytest.mark.parametrize("seed", range(20))
def test_topological_sort_is_lexicographic(seed):
    graph = oracle.random_computation_graph(Random(seed))
    assert graph.topological_sort() == list(nx.lexicographical_topological_sort(without(graph, ())))


def test_topological_sort_of_cycle_raises():
    with pytest.raises(ValueError, match=r"closed by edge 2 \(2 -> 1\)"):
        chain(3, (2, 1)).topological_sort()
    graph = chain(3)
    graph.add_edge(2, 1, edge_id=40, attributes={"is_recurrent": True})
    with pytest.raises(ValueError, match=r"closed by edge 40 \(2 -> 1\)"):
        graph.topological_sort(ignore_recurrent=False)


def test_ordering_ignores_dangling_edges():
    graph = chain(3, (1, 77), (78, 1))
    assert graph.topological_sort() == [0, 1, 2]
    assert graph.detect_cycles() == ()
