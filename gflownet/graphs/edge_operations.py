"""Operations on edges, as in NAS-Bench-201 and DARTS, to nodes with one input.

In the edge form an edge carries the attribute `operation` (in JSON a field), and nodes only merge: their operation is
identity. In the node form every such edge is a node of its own.
"""

from __future__ import annotations

from dataclasses import replace

from gflownet.graphs.computation_graph import ComputationGraph, graph_of
from gflownet.graphs.elements import Edge, Node, NodeType


def edge_operations_to_nodes(graph: ComputationGraph) -> ComputationGraph:
    """Return the graph with a hidden node in place of every edge with an operation.

    The new ids follow the largest one, in the order of the edge ids. The edge out of a new node keeps the id, port,
    order, weight and state (enabled or not) of the edge that it replaces.
    """
    nodes, edges = [*graph.nodes.values()], []
    next_node = max(graph.nodes, default=-1) + 1
    next_edge = max(graph.edges, default=-1) + 1
    for _, edge in sorted(graph.edges.items()):
        if edge.operation is None:
            edges.append(edge)
            continue
        remaining = {key: value for key, value in edge.attributes.items() if key != "operation"}
        nodes.append(Node(next_node, NodeType.HIDDEN, None, attributes={"operation": edge.operation}))
        edges += [Edge(next_edge, edge.source, next_node), replace(edge, source=next_node, attributes=remaining)]
        next_node, next_edge = next_node + 1, next_edge + 1
    return graph_of(graph.config, nodes, edges)
