"""The computation graph as a coloured graph: what counts for identity becomes colour."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gflownet.graphs.canonical import CanonicalForm, ColouredGraph
from gflownet.graphs.elements import DEFAULT_AGGREGATION, Edge, Node, NodeType, thawed
from gflownet.graphs.vocabulary import ORDER_SENSITIVE_AGGREGATIONS

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph


def identified(graph: ComputationGraph) -> tuple[CanonicalForm, tuple[int, ...]]:
    """The canonical form and the node ids in canonical order."""
    ids, coloured = coloured_graph(graph)
    form = coloured.canonical_form()
    return form, tuple(ids[index] for index in form.order if ids[index] in graph.nodes)


def coloured_graph(graph: ComputationGraph) -> tuple[list[int], ColouredGraph]:
    """The node id of every index, and the coloured graph over these indices.

    Inputs and outputs carry their place in their colour, which fixes them. Ends of dangling edges become nodes of
    their own, so that a broken graph has an identity too.
    """
    ids = [*graph.input_node_ids, *graph.output_node_ids]
    colours = [
        f"{place} {_node_colour(graph.nodes[node_id])}"
        for group in (graph.input_node_ids, graph.output_node_ids)
        for place, node_id in enumerate(group)
    ]
    for node_id, node in graph.nodes.items():
        if node.node_type is NodeType.HIDDEN:
            ids.append(node_id)
            colours.append(_node_colour(node))
    index_of = {node_id: index for index, node_id in enumerate(ids)}
    for end in (end for edge in graph.edges.values() for end in (edge.source, edge.target)):
        if end not in index_of:
            index_of[end] = len(ids)
            ids.append(end)
            colours.append(f"missing {end}")
    return ids, ColouredGraph(tuple(colours), _edge_colours(graph, index_of))


def _edge_colours(graph: ComputationGraph, index_of: Mapping[int, int]) -> dict[tuple[int, int], str]:
    merged: dict[tuple[int, int], list[str]] = {}
    ranks = _ranks(graph)
    for edge in graph.edges.values():
        ends = index_of[edge.source], index_of[edge.target]
        merged.setdefault(ends, []).append(ranks.get(edge.edge_id, "") + _edge_colour(edge))
    return {ends: colours[0] if len(colours) == 1 else json.dumps(sorted(colours)) for ends, colours in merged.items()}


def _ranks(graph: ComputationGraph) -> dict[int, str]:
    """Edge id to the edge's place among its target's in-edges, where the target's aggregation depends on it."""
    return {
        edge.edge_id: f"#{rank} "
        for node_id, node in graph.nodes.items()
        if isinstance(node.aggregation, str) and node.aggregation in ORDER_SENSITIVE_AGGREGATIONS
        for rank, edge in enumerate(graph.in_edges(node_id))
    }


def _node_colour(node: Node) -> str:
    head = f"{node.node_type.value} {node.output_size} {node.bias!r} {json.dumps(node.activation_function)}"
    return head + _attributes_colour(node.attributes, {"aggregation": DEFAULT_AGGREGATION}, ("derivation_uuid",))


def _edge_colour(edge: Edge) -> str:
    head = f"{edge.weight!r} {'on' if edge.enabled else 'off'}"
    return head + _attributes_colour(edge.attributes, {"is_recurrent": False}, ("derivation_uuid", "order"))


def _attributes_colour(attributes: Mapping[str, Any], defaults: Mapping[str, Any], labels: tuple[str, ...]) -> str:
    """The attributes as text without labels and without what merely states a default."""
    counted = {
        key: thawed(value)
        for key, value in attributes.items()
        # repr, because an ill-valued 0 equals the default False.
        if key not in labels and not (key in defaults and repr(value) == repr(defaults[key]))
    }
    return " " + json.dumps(counted, sort_keys=True) if counted else ""
