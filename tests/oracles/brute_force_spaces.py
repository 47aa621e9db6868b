"""Objects of small spaces listed without a Markov decision process: all candidates, filtered and compared pairwise."""

from collections.abc import Sequence
from itertools import combinations, product

import networkx as nx

from gflownet.graphs.canonical import ColouredGraph
from tests.oracles.graphs import automorphisms_by_vf2, isomorphic_by_vf2


def acyclic_graphs(num_nodes: int) -> set[frozenset[tuple[int, int]]]:
    """Return the edge sets of all directed acyclic graphs on named nodes."""
    pairs = [(s, t) for s, t in product(range(num_nodes), repeat=2) if s != t]
    subsets = (subset for size in range(len(pairs) + 1) for subset in combinations(pairs, size))
    return {frozenset(subset) for subset in subsets if nx.is_directed_acyclic_graph(nx.DiGraph(subset))}


def connected_graphs_with_bonds(
    num_nodes: int, *, colours: Sequence[str], bonds: Sequence[int]
) -> dict[ColouredGraph, int]:
    """Return one connected undirected graph of each class, coloured as by the environment, with its |Aut|."""
    pairs = list(combinations(range(num_nodes), 2))
    classes: dict[ColouredGraph, int] = {}
    for nodes in product(colours, repeat=num_nodes):
        for labels in product((None, *bonds), repeat=len(pairs)):
            present = {pair: label for pair, label in zip(pairs, labels, strict=True) if label is not None}
            skeleton = nx.Graph(list(present))
            skeleton.add_nodes_from(range(num_nodes))
            if not nx.is_connected(skeleton):
                continue
            edges = {pair: f"edge|{label}|0" for pair, label in present.items()}
            graph = ColouredGraph(tuple(f"{colour}|" for colour in nodes), edges, directed=False)
            if not any(isomorphic_by_vf2(graph, other) for other in classes):
                classes[graph] = automorphisms_by_vf2(graph)
    return classes
