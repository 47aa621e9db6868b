"""Computation graphs as formulas: one line of text for tables."""

from __future__ import annotations

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.operations.vocabulary import short_name

_SIGNS = {"sum": " + ", "Product": " * "}
_PLAIN = ("linear", "identity")


def formulas(graph: ComputationGraph) -> str:
    """Return a formula per node, for example "a = tanh(x + a'); y = a"; weights and biases are left out.

    x are inputs, y outputs, a, b, c hidden nodes in the order of computation; a' is the value of the step before.
    """
    order = graph.topological_sort()
    names = _names(graph, order)
    is_recurrent = set(graph.detect_cycles())
    texts = []
    for node_id in order:
        node = graph.nodes[node_id]
        if node.node_type is NodeType.INPUT:
            continue
        edges = [edge for edge in graph.in_edges(node_id) if edge.enabled]
        marks = ["'" if edge.edge_id in is_recurrent or edge.attributes.get("is_recurrent") else "" for edge in edges]
        terms = [names[edge.source] + mark for edge, mark in zip(edges, marks, strict=True)]
        aggregation = short_name(node.aggregation)
        is_joined = aggregation in _SIGNS or len(terms) == 1
        inner = _SIGNS.get(aggregation, "").join(terms) if is_joined else f"{aggregation.lower()}({', '.join(terms)})"
        activation = short_name(node.activation_function)
        texts.append(f"{names[node_id]} = {inner if activation in _PLAIN else f'{activation}({inner})'}")
    return "; ".join(texts)


def _names(graph: ComputationGraph, order: list[int]) -> dict[int, str]:
    """Return the name of every node."""
    names = {}
    for kind, letter in ((NodeType.INPUT, "x"), (NodeType.OUTPUT, "y")):
        ids = sorted(node_id for node_id, node in graph.nodes.items() if node.node_type is kind)
        names |= {node_id: letter if len(ids) == 1 else f"{letter}{place}" for place, node_id in enumerate(ids, 1)}
    hidden = [node_id for node_id in order if graph.nodes[node_id].node_type is NodeType.HIDDEN]
    letters = "abcdefghijklmnopqrstuvw"
    return names | {
        node_id: letters[place] if place < len(letters) else f"n{place}" for place, node_id in enumerate(hidden)
    }
