"""Operations on edges, as in NAS-Bench-201 and DARTS, to nodes with one input.

In the edge form an edge carries the attribute `operation` (in JSON a field), and nodes only merge: their operation is
identity. In the node form every such edge is a node of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.elements import Edge, Node


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
        if edge.operation is None:
            _add_edge(result, edge, edge.source, edge.attributes)
            continue
        remaining = {key: value for key, value in edge.attributes.items() if key != "operation"}
        result.add_node(next_node, "hidden", output_size=None, attributes={"operation": edge.operation})
        result.add_edge(edge.source, next_node, edge_id=next_edge)
        _add_edge(result, edge, next_node, remaining)
        next_node, next_edge = next_node + 1, next_edge + 1
    return result


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
