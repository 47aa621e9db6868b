"""Reference graph algorithms by permutations, networkx and enumeration, and random graphs."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import networkx as nx
from networkx.algorithms.isomorphism import DiGraphMatcher, GraphMatcher

from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.vocabulary import is_order_sensitive


def relabelled(graph: ColouredGraph, permutation: Sequence[int]) -> ColouredGraph:
    """Return the graph with node i renamed to permutation[i] and undirected edges reversed."""
    colours = [""] * len(permutation)
    for node, image in enumerate(permutation):
        colours[image] = graph.node_colours[node]
    edges = {}
    for (source, target), colour in graph.edge_colours.items():
        ends = permutation[source], permutation[target]
        edges[ends if graph.directed else ends[::-1]] = colour
    return ColouredGraph(tuple(colours), edges, graph.directed)


def labelled_form(graph: ColouredGraph) -> tuple:
    """Return a value that is equal for two graphs iff all their labels are equal."""
    edges = {
        (ends if graph.directed or ends[0] <= ends[1] else ends[::-1]): c for ends, c in graph.edge_colours.items()
    }
    return graph.directed, tuple(graph.node_colours), tuple(sorted(edges.items()))


def _matcher(first: ColouredGraph, second: ColouredGraph) -> GraphMatcher | DiGraphMatcher:
    matcher = DiGraphMatcher if first.directed else GraphMatcher
    same = nx.algorithms.isomorphism.categorical_node_match("colour", None)
    same_edge = nx.algorithms.isomorphism.categorical_edge_match("colour", None)
    return matcher(first.to_networkx(), second.to_networkx(), node_match=same, edge_match=same_edge)


def isomorphic_by_vf2(first: ColouredGraph, second: ColouredGraph) -> bool:
    return first.directed == second.directed and _matcher(first, second).is_isomorphic()


def automorphisms_by_vf2(graph: ColouredGraph) -> int:
    return sum(1 for _ in _matcher(graph, graph).isomorphisms_iter())


def undirected(num_nodes: int, edges: Sequence[tuple[int, int]]) -> ColouredGraph:
    """Return an undirected graph of one colour."""
    return ColouredGraph(("",) * num_nodes, dict.fromkeys(edges, ""), directed=False)


def from_undirected_networkx(graph: nx.Graph) -> ColouredGraph:
    """Return the graph without attributes, nodes renamed to 0 .. n-1."""
    plain = nx.convert_node_labels_to_integers(graph)
    return undirected(len(plain), [(min(ends), max(ends)) for ends in plain.edges])


def random_computation_graph(rng: Random, *, num_hidden: int = 5, num_edges: int = 10) -> ComputationGraph:
    """Return a valid multigraph with 1 or 2 inputs and outputs and few kinds of nodes, so that symmetries occur."""
    graph = ComputationGraph(config={"multigraph": True})
    inputs, outputs = rng.randint(1, 2), rng.randint(1, 2)
    num_nodes = inputs + num_hidden + outputs
    ids = rng.sample(range(3 * num_nodes), num_nodes)
    aggregations = ["sum", "sum", "mean", "concat", "topk_weighted_sum"]
    for place, node_id in enumerate(ids):
        role = "input" if place < inputs else "hidden" if place < inputs + num_hidden else "output"
        attributes = {} if role == "input" else {"aggregation": rng.choice(aggregations)}
        activation = "linear" if role == "input" else rng.choice(["relu", "tanh"])
        graph.add_node(node_id, role, output_size=4, activation_function=activation, attributes=attributes)
    spine = list(pairwise([ids[0], *ids[inputs:]]))
    for source, target in [*spine, *(tuple(rng.sample(ids, 2)) for _ in range(num_edges))]:
        if target in ids[:inputs]:
            continue
        attributes = {"is_recurrent": True} if ids.index(source) > ids.index(target) else {}
        graph.add_edge(source, target, enabled=(source, target) in spine or rng.random() < 0.9, attributes=attributes)
    return graph


def renamed(graph: ComputationGraph, rng: Random) -> ComputationGraph:
    """Return the graph with new hidden ids, new edge ids in the same order of in-edges, and a new insertion order."""
    copy = ComputationGraph(config=graph.config)
    hidden = [n for n in graph.nodes if n not in graph.input_node_ids and n not in graph.output_node_ids]
    name = {n: n for n in graph.nodes} | dict(zip(hidden, rng.sample(range(1000, 2000), len(hidden)), strict=True))
    for node in rng.sample(list(graph.nodes.values()), len(graph.nodes)):
        copy.add_node(
            name[node.node_id],
            node.node_type,
            output_size=node.output_size,
            activation_function=node.activation_function,
            bias=node.bias,
            attributes={**node.attributes, "derivation_uuid": str(rng.random())},
        )
    new_ids = _new_edge_ids(graph, rng)
    for edge in rng.sample(list(graph.edges.values()), len(graph.edges)):
        copy.add_edge(
            name[edge.source],
            name[edge.target],
            edge_id=new_ids[edge.edge_id],
            weight=edge.weight,
            enabled=edge.enabled,
            attributes=edge.attributes,
        )
    return copy


def _new_edge_ids(graph: ComputationGraph, rng: Random) -> dict[int, int]:
    """Return random edge ids; in-edges of an order-sensitive node stay in order."""
    random_ids = iter(rng.sample(range(1000, 9000), len(graph.edges)))
    new_ids = {}
    for node_id, node in graph.nodes.items():
        edges = graph.in_edges(node_id)
        ids = [next(random_ids) for _ in edges]
        if is_order_sensitive(node.aggregation):
            ids.sort()
        new_ids |= {edge.edge_id: new_id for edge, new_id in zip(edges, ids, strict=True)}
    return new_ids
