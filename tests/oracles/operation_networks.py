"""All finished networks of an operation space by brute force: every labelled graph, filtered by its definition."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import networkx as nx
from networkx.algorithms.isomorphism import categorical_node_match

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.operation_costs import graph_cost
from gflownet.graphs.operation_shapes import infer_shapes
from gflownet.graphs.tensor_shape import Shape, ShapeError

Options = Mapping[str, Sequence[Mapping]]  # complete settings by operation


def labelled_networks(
    shape: Shape, num_classes: int, options: Options, *, num_hidden: int, max_edges: int, max_parameters: int
) -> Iterator[nx.DiGraph]:
    """Yield every network of one input and `num_hidden` named hidden nodes in which no input of a node is widened.

    Node 0 is the input, 1 the output. The limit counts an output layer behind the widest node.
    """
    labels = [(name, tuple(sorted(settings.items()))) for name in options for settings in options[name]]
    hidden = range(2, 2 + num_hidden)
    pairs = [(s, t) for s in (0, *hidden) for t in (1, *hidden) if s != t]
    for num_edges in range(1, max_edges + 1):
        for edges in combinations(pairs, num_edges):
            graph: Any = nx.DiGraph(edges)
            graph.add_nodes_from((0, 1, *hidden))
            if not nx.is_directed_acyclic_graph(graph) or not _all_on_paths(graph):
                continue
            for choice in product(labels, repeat=num_hidden):
                nx.set_node_attributes(graph, {0: "input", 1: "output", **dict(zip(hidden, choice, strict=True))}, "c")
                if _is_valid(graph, shape, num_classes, max_parameters):
                    yield graph.copy()


def num_classes_up_to_isomorphism(graphs: Iterator[nx.DiGraph]) -> tuple[list[int], int]:
    """Return the number of automorphisms of one graph of each class, and the number of graphs."""
    buckets: defaultdict[tuple, list[nx.DiGraph]] = defaultdict(list)
    match, total = categorical_node_match("c", None), 0
    for graph in graphs:
        total += 1
        data = graph.nodes(data="c")
        key = tuple(sorted((str(c), graph.in_degree(v), graph.out_degree(v)) for v, c in data))
        if not any(nx.is_isomorphic(graph, other, node_match=match) for other in buckets[key]):
            buckets[key].append(graph)
    unique = [graph for bucket in buckets.values() for graph in bucket]
    matchers = (nx.isomorphism.DiGraphMatcher(graph, graph, node_match=match) for graph in unique)
    return [sum(1 for _ in matcher.isomorphisms_iter()) for matcher in matchers], total


def weighted_number(automorphisms: Sequence[int], num_hidden: int) -> int:
    """Return the number of labelled graphs of classes with these automorphism counts."""
    return sum(math.factorial(num_hidden) // count for count in automorphisms)


def _all_on_paths(graph: nx.DiGraph) -> bool:
    return nx.descendants(graph, 0) | {0} == set(graph) == nx.ancestors(graph, 1) | {1}


def _is_valid(graph: Any, shape: Shape, num_classes: int, max_parameters: int) -> bool:
    network = ComputationGraph()
    network.add_node(0, NodeType.INPUT, output_size=None, attributes={"shape": list(shape.sizes)})
    head = {"operation": {"name": "head", "features": num_classes}, "align": "pad"}
    network.add_node(1, NodeType.OUTPUT, output_size=None, attributes=head)
    for node, choice in graph.nodes(data="c"):
        if node > 1:
            operation = {"operation": {"name": choice[0], **dict(choice[1])}, "align": "pad"}
            network.add_node(node, NodeType.HIDDEN, output_size=None, attributes=operation)
    for source, target in graph.edges:
        network.add_edge(source, target)
    try:
        known = infer_shapes(network)
    except ShapeError:
        return False
    for node in known.values():
        for plan in node.inputs.values() if node.node.node_type is NodeType.HIDDEN else ():
            if plan.shape not in [known[edge.source].output for edge in plan.edges]:
                return False
    joined = known[1].inputs["input"].shape.channels
    widest = max(node.output.channels for node_id, node in known.items() if node_id != 1)
    return graph_cost(network).num_parameters + num_classes * (widest - joined) <= max_parameters
