"""The short JSON form of operation graphs: attributes as fields, defaults left out; and its form for networkx."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gflownet.graphs.elements import DEFAULT_WEIGHT, Edge, Node
from gflownet.operations.values import thawed

# Attributes of operation graphs that are written as fields of a node or an edge.
OPERATION_NODE_FIELDS = (
    "shape",
    "layout",
    "dtype",
    "port",
    "aggregation",
    "axis",
    "align",
    "edge_weight",
    "operation",
    "subgraph",
    "repeat",
    "share",
)
OPERATION_EDGE_FIELDS = ("port", "operation")

Fields = dict[str, Any]


def short_elements(nodes: Iterable[Node], edges: Iterable[Edge]) -> Fields:
    """Return nodes and edges by ascending id, attributes as fields, defaults left out.

    The ids of edges are left out where they count up from 0: reading gives the same ones.
    """
    by_id = sorted(edges, key=lambda edge: edge.edge_id)
    has_ids = [edge.edge_id for edge in by_id] != list(range(len(by_id)))
    return {
        "nodes": [_short_node(node) for node in sorted(nodes, key=lambda node: node.node_id)],
        "edges": [_short_edge(edge, has_id=has_ids) for edge in by_id],
    }


def _short_node(node: Node) -> Fields:
    fields = {"id": node.node_id, "node_type": node.node_type.value}
    short, attributes = _split(node.attributes, OPERATION_NODE_FIELDS)
    values = {"output_size": node.output_size, "activation_function": node.activation_function, "bias": node.bias}
    defaults = {"output_size": None, "activation_function": "linear", "bias": 0.0}
    return {**fields, **short, **_without(values, defaults), **attributes}


def _short_edge(edge: Edge, *, has_id: bool) -> Fields:
    fields = {"source": edge.source, "target": edge.target} | ({"edge_id": edge.edge_id} if has_id else {})
    short, attributes = _split(edge.attributes, OPERATION_EDGE_FIELDS)
    values = {"weight": edge.weight, "enabled": edge.enabled}
    return {**fields, **short, **_without(values, {"weight": DEFAULT_WEIGHT, "enabled": True}), **attributes}


def _split(attributes: Mapping[str, Any], names: Sequence[str]) -> tuple[Fields, Fields]:
    """Return the attributes that are fields, and the others under `attributes`; a null cannot be a field."""
    short = {name: thawed(attributes[name]) for name in names if attributes.get(name) is not None}
    remaining = {name: thawed(value) for name, value in attributes.items() if name not in short}
    return short, {"attributes": remaining} if remaining else {}


def _without(values: Fields, defaults: Fields) -> Fields:
    return {name: value for name, value in values.items() if value != defaults[name]}


def networkx_dict(data: Fields) -> Fields:
    """Return short data for networkx's reader: with edge ids, and everything else about the graph as graph data."""
    head, edges = dict(data.get("graph", {})), data["edges"]
    head |= {"subgraphs": data["subgraphs"]} if "subgraphs" in data else {}
    edges = [{"edge_id": place, **edge} for place, edge in enumerate(edges)]
    is_parallel = len({(edge["source"], edge["target"]) for edge in edges}) < len(edges)
    if is_parallel and not data["multigraph"]:
        head["multigraph"] = False
    if is_parallel or data["multigraph"]:
        edges = [{**edge, "key": edge["edge_id"]} for edge in edges]
    multigraph = is_parallel or data["multigraph"]
    return {"directed": True, "multigraph": multigraph, "graph": head, "nodes": data["nodes"], "edges": edges}


def from_networkx_dict(data: Fields) -> Fields:
    """Return node-link data as `to_dict` writes them from those of networkx."""
    head = dict(data["graph"])
    moved = {name: head.pop(name) for name in ("subgraphs", "multigraph") if name in head}
    return {**data, "graph": head, **moved}
