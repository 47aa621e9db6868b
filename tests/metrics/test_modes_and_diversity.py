"""Modes, the best few, and how different they are: against plain counting and networkx's exact edit distance."""

import networkx as nx
import pytest
import torch

from gflownet.graphs.canonical import ColouredGraph
from gflownet.metrics import diversity
from gflownet.metrics.diversity import (
    find_modes,
    graph_edit_distance,
    hamming_distance,
    mean_pairwise_distance,
    modes_by_evaluations,
    top_k_diversity,
    top_k_mean,
)


def random_graph(num_nodes: int, *, directed: bool, generator: torch.Generator) -> ColouredGraph:
    """Nodes and edges of two colours each, loops included."""

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    nodes = tuple("ab"[draw(2)] for _ in range(num_nodes))
    ends = [(s, t) for s in range(num_nodes) for t in range(num_nodes) if directed or s <= t]
    edges = {(t, s) if draw(2) and not directed else (s, t): "xy"[draw(2)] for s, t in ends if draw(5) < 2}
    return ColouredGraph(nodes, edges, directed=directed)


def by_networkx(a: ColouredGraph, b: ColouredGraph) -> float:
    """The exact distance; loops are encoded as node colours, because networkx 3.6 counts edge loops wrongly."""

    def graph_of(graph: ColouredGraph) -> nx.Graph:
        result = nx.DiGraph() if graph.directed else nx.Graph()
        for node, colour in enumerate(graph.node_colours):
            result.add_node(node, colour=colour, loop=graph.edge_colours.get((node, node)))
        for (source, target), colour in graph.edge_colours.items():
            if source != target:
                result.add_edge(source, target, colour=colour)
        return result

    return nx.graph_edit_distance(
        graph_of(a),
        graph_of(b),
        node_subst_cost=lambda x, y: (x["colour"] != y["colour"]) + (x["loop"] != y["loop"]),
        node_del_cost=lambda x: 1 + (x["loop"] is not None),
        node_ins_cost=lambda x: 1 + (x["loop"] is not None),
        edge_match=lambda x, y: x["colour"] == y["colour"],
    )


@pytest.mark.parametrize("directed", [True, False])
def test_graph_edit_distance_exact_for_small_graphs(directed):
    generator = torch.Generator().manual_seed(3)
    sizes = [(0, 0), (0, 2), (1, 1), (2, 4), (3, 3), (3, 4), (4, 4), (4, 4), (4, 4), (2, 3)]
    for first, second in sizes:
        a, b = (random_graph(n, directed=directed, generator=generator) for n in (first, second))
        assert graph_edit_distance(a, b) == graph_edit_distance(b, a) == by_networkx(a, b)
        assert graph_edit_distance(a, a) == 0


def test_graph_edit_distance_upper_bound_for_large_graphs(monkeypatch):
    generator = torch.Generator().manual_seed(4)
    for directed in (True, False):
        pairs = [[random_graph(7, directed=directed, generator=generator) for _ in range(2)] for _ in range(20)]
        exact = [graph_edit_distance(a, b) for a, b in pairs]
        with monkeypatch.context() as patch:
            patch.setattr(diversity, "MAX_EXACT_NODES", 6)
            bounds = [graph_edit_distance(a, b) for a, b in pairs]
        assert all(low <= high for low, high in zip(exact, bounds, strict=True))
        assert sum(bounds) < 1.15 * sum(exact)
    a, b = (random_graph(16, directed=True, generator=generator) for _ in range(2))
    assert graph_edit_distance(a, a) == 0
    assert graph_edit_distance(a, b) > 50


def test_graph_edit_distance_counts_loops():
    """Two nodes are recoloured, two loops removed, one edge recoloured, one added."""
    a = ColouredGraph(("b", "a", "b"), {(0, 0): "y", (2, 0): "y", (2, 2): "x"})
    b = ColouredGraph(("a", "a", "a"), {(0, 1): "x", (2, 0): "x"})
    assert graph_edit_distance(a, b) == by_networkx(a, b) == 2 + 2 + 1 + 1


def test_graph_edit_distance_of_directed_and_undirected_raises():
    with pytest.raises(ValueError, match="expected two directed or two undirected graphs"):
        graph_edit_distance(ColouredGraph((), {}), ColouredGraph((), {}, directed=False))


def test_hamming_distance_counts_positions():
    assert hamming_distance("0110", "0011") == 2
    assert hamming_distance((1, 2), (1, 2)) == 0
    with pytest.raises(ValueError, match="one length, got 1 and 2"):
        hamming_distance("0", "00")


def test_mean_pairwise_distance():
    words = ["000", "001", "111"]
    assert mean_pairwise_distance(words, hamming_distance) == pytest.approx((1 + 3 + 2) / 3)
    generator = torch.Generator().manual_seed(0)
    sampled = mean_pairwise_distance(words * 9, hamming_distance, most_pairs=200, generator=generator)
    assert sampled == pytest.approx(mean_pairwise_distance(words * 9, hamming_distance), abs=0.15)
    with pytest.raises(ValueError, match="two or more objects, got 1"):
        mean_pairwise_distance(words[:1], hamming_distance)


def test_top_k_diversity_of_best_distinct_objects():
    words, scores = ["000", "000", "111", "001"], [3.0, 2.0, 1.0, 2.5]
    assert top_k_diversity(words, scores, k=2, key=str, distance=hamming_distance) == 1
    assert top_k_diversity(words, scores, k=9, key=str, distance=hamming_distance) == 2


def test_find_modes():
    words, scores = ["000", "001", "000", "111", "110", "010"], [5.0, 4.0, 5.0, 3.0, 3.5, 1.0]
    assert find_modes(words, scores, threshold=3.0, key=str) == [0, 1, 4, 3]
    apart = find_modes(words, scores, threshold=3.0, key=str, distance=hamming_distance, min_distance=2)
    assert apart == [0, 4]
    assert find_modes(words, scores, threshold=6.0, key=str) == []
    in_a_row = find_modes(
        ["aa", "ab", "bb"], [3, 2, 1], threshold=0, key=str, distance=hamming_distance, min_distance=2
    )
    assert in_a_row == [0, 2], "far from the better mode, near a better object that is none"


def test_modes_by_evaluations():
    assert modes_by_evaluations("abacb", [2.0, 1.0, 2.0, 3.0, 1.0], threshold=2.0) == [1, 1, 1, 2, 2]
    assert modes_by_evaluations("", [], threshold=0.0) == []


def test_top_k_mean_counts_distinct_objects():
    assert top_k_mean("aab", [4.0, 4.0, 1.0], k=2) == 2.5
    assert top_k_mean("aba", [4.0, 3.0, 1.0], k=1) == 4.0
    assert top_k_mean("ab", [4.0, 1.0], k=5) == 2.5
    with pytest.raises(ValueError, match="expected k >= 1 and an object, got k=0 and 1 objects"):
        top_k_mean("a", [1.0], k=0)
