"""Tensor graphs as networkx graphs."""

from __future__ import annotations

from typing import Any

import networkx as nx

from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import Node, TransformNode
from gflownet.autodiff.serialisation import write


def to_networkx(graph: Graph | Node) -> nx.MultiDiGraph:
    """Return the graph with an edge from each operand to what uses it, in topological order.

    A node is called by its id and has the fields of its JSON form, its `dtype`, and whether it `is_output`; an edge has
    the `position` of the operand (0, or 1 of a right one) and its `indices` there. A node used twice has two edges.
    """
    graph = Graph(graph) if isinstance(graph, Node) else graph
    known = {node: identifier for identifier, node in graph.ids.items()}
    found = nx.MultiDiGraph()
    for entry in write(graph.ids, graph.outputs)["nodes"]:
        node = graph.node(entry["id"])
        fields = {field: value for field, value in entry.items() if field not in ("id", "src", "srcL", "srcR")}
        found.add_node(entry["id"], **{**fields, "dtype": str(node.dtype).removeprefix("torch.")})
        found.nodes[entry["id"]]["is_output"] = node in graph.outputs
        for position, source in enumerate(node.inputs):
            found.add_edge(known[source], entry["id"], position=position, indices=_indices(entry, node, position))
    return found


def _indices(entry: dict[str, Any], node: Node, position: int) -> list[int] | None:
    """Return the signed indices of an operand; a function and a cast have none."""
    if isinstance(node, TransformNode):
        return entry["indexSrc"]
    return entry.get(("indexSrcL", "indexSrcR")[position])
