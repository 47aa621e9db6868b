"""Operations on edges, as in NAS-Bench-201 and DARTS, to nodes with one input, and back.

In the edge form an edge carries the attribute `operation` (in JSON a field), and nodes only merge: their operation is
identity. In the node form every such edge is a node of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.elements import DEFAULT_WEIGHT, Edge, Node, NodeType


def edge_operations_to_nodes(graph: ComputationGraph) -> ComputationGraph:
    """Return the graph with a hidden node in place of every edge with an operation.

    The new ids follow the largest one, in the order of the edge ids. The edge out of a new node keeps the id, port,
    order, weight and state (enabled or not) of the edge that it replaces.
    """
    result = ComputationGraph(config=graph.config)
    for node in graph.nodes.values():
        _add_node(result, node, node.attributes)
    next_node = max(graph.nodes, default=-1) + 1
    next_edge = max(graph.edges, default=-1) + 1
    for _, edge in sorted(graph.edges.items()):
        if "operation" not in edge.attributes:
            _add_edge(result, edge, edge.source, edge.attributes)
            continue
        remaining = {key: value for key, value in edge.attributes.items() if key != "operation"}
        result.add_node(next_node, "hidden", output_size=None, attributes={"operation": edge.attributes["operation"]})
        result.add_edge(edge.source, next_node, edge_id=next_edge)
        _add_edge(result, edge, next_node, remaining)
        next_node, next_edge = next_node + 1, next_edge + 1
    return result


def node_operations_to_edges(graph: ComputationGraph) -> ComputationGraph:
    """Return the graph with an edge in place of every hidden node that only applies an operation to one input.

    Such a node has an operation, no activation, one edge in and one edge out, and lies between nodes that stay. A
    merging node (identity with another number of edges) stays. The inverse of `edge_operations_to_nodes` for graphs
    whose hidden nodes have an edge with an operation. Parallel edges make the result a multigraph.
    """
    removed = _contracted(graph)
    pairs: list[tuple[int, int]] = []
    kept_edges: list[tuple[Edge, int, Mapping[str, Any]]] = []
    for _, edge in sorted(graph.edges.items()):
        if edge.target in removed:
            continue
        source, attributes = edge.source, edge.attributes
        if source in removed:
            operation = graph.nodes[source].attributes["operation"]
            source, attributes = removed[source].source, {**attributes, "operation": operation}
        pairs.append((source, edge.target))
        kept_edges.append((edge, source, attributes))
    is_parallel = len(set(pairs)) < len(pairs)
    result = ComputationGraph(config={**graph.config, "multigraph": graph.config["multigraph"] or is_parallel})
    for node in graph.nodes.values():
        if node.node_id not in removed:
            _add_node(result, node, node.attributes)
    for edge, source, attributes in kept_edges:
        _add_edge(result, edge, source, attributes)
    return result


def _contracted(graph: ComputationGraph) -> dict[int, Edge]:
    """Return the in-edge of every node that becomes an edge, the largest ids first: those of converted edges."""
    removed: dict[int, Edge] = {}
    for node_id, node in sorted(graph.nodes.items(), reverse=True):
        into, out = graph.in_edges(node_id), graph.out_edges(node_id)
        is_single = len(into) == len(out) == 1 and set(node.attributes) == {"operation"}
        if not is_single or node.node_type is not NodeType.HIDDEN or node.bias != 0.0:
            continue
        (edge,) = into
        is_plain = edge.enabled and edge.weight == DEFAULT_WEIGHT and not edge.attributes
        is_free = edge.source not in removed and edge.source in graph.nodes and edge.source != node_id
        if is_plain and is_free and out[0].target not in removed and node.activation_function == "linear":
            removed[node_id] = edge
    return removed


def _add_node(graph: ComputationGraph, node: Node, attributes: Mapping[str, Any]) -> None:
    graph.add_node(
        node.node_id,
        node.node_type,
        output_size=node.output_size,
        activation_function=node.activation_function,
        bias=node.bias,
        attributes=attributes,
    )


def _add_edge(graph: ComputationGraph, edge: Edge, source: int, attributes: Mapping[str, Any]) -> None:
    graph.add_edge(
        source, edge.target, edge_id=edge.edge_id, weight=edge.weight, enabled=edge.enabled, attributes=attributes
    )
