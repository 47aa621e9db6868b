"""Bounds on the size of a graph that can be translated: widths, magnitudes and the number of weights."""

from __future__ import annotations

from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType
from gflownet.graphs.operation_shapes import neuron_settings
from gflownet.operations.neuron import Neuron
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.vocabulary import aggregation

# 4 GiB of float32: more than a search can train, less than an allocation that ends the process.
MAX_PARAMETERS = 2**30
# Elements of one node's output for one example: 4 GiB of float32.
MAX_ELEMENTS = 2**30
# Nodes of an operation graph, those of a subgraph once per repetition.
MAX_EXPANDED_NODES = 100_000
# Edge weights and biases become float32; a larger float would be infinity there.
MAX_MAGNITUDE = (2 - 2**-23) * 2.0**127

# Upper bounds for every built-in recurrent cell of width D: 8 D^2 + 1000 D weights.
_CELL_SQUARES, _CELL_ROWS = 8, 1000


def has_too_many_parameters(graph: GraphElements, projection: str) -> bool:
    """Return whether a graph of valid nodes and edges needs more than MAX_PARAMETERS (cells by an upper bound)."""
    nodes = graph.nodes.values()
    widest = max(node.output_size or 0 for node in nodes)
    for node in nodes:
        if node.attributes:
            kind, width = aggregation(node.aggregation), message_size(node)
            widest = max(widest, width, kind.aggregated_size(node.attributes, width, 1))
    num_terms = 2 * len(graph.edges) + (_CELL_SQUARES + 2) * len(nodes)
    if (widest + _CELL_ROWS) ** 2 * num_terms <= MAX_PARAMETERS:
        return False
    in_edges: dict[int, list[Edge]] = {}
    for edge in graph.edges.values():
        if edge.enabled:
            in_edges.setdefault(edge.target, []).append(edge)
    targets = (node for node in nodes if node.node_type is not NodeType.INPUT)
    counts = (_num_parameters(graph, node, in_edges.get(node.node_id, []), projection) for node in targets)
    return sum(counts) > MAX_PARAMETERS


def _num_parameters(graph: GraphElements, node: Node, edges: list[Edge], projection: str) -> int:
    inputs = {f"{edge.edge_id}": Shape((graph.nodes[edge.source].output_size or 1,), Layout.VECTOR) for edge in edges}
    return Neuron.num_parameters(inputs, neuron_settings(node, projection))


def message_size(node: Node) -> int:
    """Return the width of every message into a node with a valid aggregation."""
    return aggregation(node.aggregation).message_size(node.attributes, node.output_size or 0)
