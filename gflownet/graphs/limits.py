"""Bounds on the size of a graph that can be translated: widths, magnitudes and the number of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType
from gflownet.graphs.vocabulary import ATTENTION_AGGREGATIONS, CONCATENATIONS, RECURRENT_CELLS

# 4 GiB of float32: more than a search can train, less than an allocation that ends the process.
MAX_PARAMETERS = 2**30
# Edge weights and biases become float32; a larger float would be infinity there.
MAX_MAGNITUDE = (2 - 2**-23) * 2.0**127

# Upper bounds for every cell: an lstm of width D has 8 D^2 weights, an rhn node 6 D^2 + 713 D + 33.
_CELL_SQUARES, _CELL_ROWS = 8, 1000


def message_size(aggregation: str, attributes: Mapping[str, Any], output_size: int) -> int:
    """Return the width of a message: head_dim for attention aggregations, otherwise the node's own width."""
    return attributes.get("head_dim", output_size) if aggregation in ATTENTION_AGGREGATIONS else output_size


def is_projected(source_size: int, size: int, projection: str) -> bool:
    """Return whether an edge from a width to a message width has a weight matrix."""
    return projection == "always" or source_size != size


def has_too_many_parameters(graph: GraphElements, projection: str) -> bool:
    """Return whether a graph of valid nodes and edges needs more than MAX_PARAMETERS (cells by an upper bound)."""
    nodes = graph.nodes.values()
    widest = max(node.output_size or 0 for node in nodes)
    for node in nodes:
        if node.attributes and node.aggregation in ATTENTION_AGGREGATIONS:
            widest = max(widest, _num_heads(node) * _message_size(node))
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
    width, size = node.output_size or 0, _message_size(node)
    sources = [graph.nodes[edge.source].output_size or 0 for edge in edges]
    total = sum(source * size for source in sources if is_projected(source, size, projection))
    aggregated = (len(edges) if node.aggregation in CONCATENATIONS else _num_heads(node)) * size
    if node.aggregation in ATTENTION_AGGREGATIONS:
        total += aggregated  # the queries
    if aggregated != width or node.attributes.get("post_projection"):
        total += aggregated * width
    if node.activation_function in RECURRENT_CELLS:
        total += _CELL_SQUARES * width**2 + _CELL_ROWS * width
    return total + 3 * len(edges) + 1  # weights, gates or routers, the bias


def _message_size(node: Node) -> int:
    return message_size(node.aggregation, node.attributes, node.output_size or 0)


def _num_heads(node: Node) -> int:
    if not node.attributes:
        return 1
    name = {"attn_pool": "pool_heads", "multi_head_attention": "num_heads"}.get(node.aggregation, "")
    return node.attributes.get(name, 1)
