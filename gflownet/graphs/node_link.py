"""Computation graphs as JSON in networkx's node-link form (edges under "edges"), read strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gflownet.graphs.elements import GraphElements, checked_int, shown, thawed

_GRAPH_FIELDS = ("directed", "multigraph", "graph", "nodes", "edges", "subgraphs")
_NODE_FIELDS = ("id", "node_type", "output_size", "activation_function", "bias", "attributes")
# networkx writes a key for each parallel edge; it repeats edge_id.
_EDGE_FIELDS = ("source", "target", "edge_id", "weight", "enabled", "attributes", "key")
# Attributes of operation graphs that may be written as fields of a node or an edge.
OPERATION_NODE_FIELDS = (
    "operation",
    "aggregation",
    "shape",
    "layout",
    "dtype",
    "subgraph",
    "repeat",
    "share",
    "align",
    "edge_weight",
)
OPERATION_EDGE_FIELDS = ("port",)

Fields = dict[str, Any]


def node_link_dict(graph: GraphElements) -> Fields:
    """Return the graph as plain JSON values, nodes and edges by ascending id, every field written out."""
    config = thawed(graph.config)
    multigraph = config.pop("multigraph")
    nodes = [
        {
            "id": node.node_id,
            "node_type": node.node_type.value,
            "output_size": node.output_size,
            "activation_function": node.activation_function,
            "bias": node.bias,
            "attributes": thawed(node.attributes),
        }
        for _, node in sorted(graph.nodes.items())
    ]
    edges = [
        {
            "source": edge.source,
            "target": edge.target,
            "edge_id": edge.edge_id,
            "weight": edge.weight,
            "enabled": edge.enabled,
            "attributes": thawed(edge.attributes),
            **({"key": edge.edge_id} if multigraph else {}),
        }
        for _, edge in sorted(graph.edges.items())
    ]
    return {"directed": True, "multigraph": multigraph, "graph": config, "nodes": nodes, "edges": edges}


def read_config(data: Any) -> Fields:
    """Return the config of a graph in node-link form. Raises ValueError for data of another form."""
    _check_fields(data, _GRAPH_FIELDS, "graph")
    if data.get("directed", True) is not True:
        raise ValueError(f"graph: expected directed true, got {shown(data['directed'])}")
    config = data.get("graph", {})
    if not isinstance(config, Mapping):
        raise ValueError(f"graph: expected an object under graph, got {shown(config)}")
    subgraphs = {"subgraphs": data["subgraphs"]} if data.get("subgraphs") else {}
    return {**config, **subgraphs, "multigraph": data.get("multigraph", False)}


def read_nodes(data: Mapping[str, Any]) -> Iterator[Fields]:
    """Yield the arguments of `ComputationGraph.add_node` of every node. Raises ValueError naming node and field."""
    for position, entry in enumerate(_entries(data, "nodes")):
        owner = f"nodes[{position}]"
        entry = _with_attributes(entry, OPERATION_NODE_FIELDS)
        _check_fields(entry, _NODE_FIELDS, owner)
        node_id = checked_int(_required(entry, "id", owner), owner, "id")
        _required(entry, "node_type", f"node {node_id}")
        fields = {"output_size": None, **entry, "node_id": node_id}
        del fields["id"]
        yield fields


def read_edges(data: Mapping[str, Any]) -> Iterator[Fields]:
    """Yield the arguments of `ComputationGraph.add_edge` of every edge. Raises ValueError naming edge and field.

    Edges with an id come first, so that a generated id never takes one that is still to be read.
    """
    entries = list(enumerate(_entries(data, "edges")))
    for position, entry in sorted(entries, key=lambda item: isinstance(item[1], Mapping) and "edge_id" not in item[1]):
        owner = f"edges[{position}]"
        entry = _with_attributes(entry, OPERATION_EDGE_FIELDS)
        _check_fields(entry, _EDGE_FIELDS, owner)
        fields = dict(entry)
        fields.pop("key", None)
        if "edge_id" in fields:
            fields["edge_id"] = checked_int(fields["edge_id"], owner, "edge_id")
        fields["source"] = checked_int(_required(fields, "source", owner), owner, "source")
        fields["target"] = checked_int(_required(fields, "target", owner), owner, "target")
        yield fields


def _with_attributes(entry: Any, names: Sequence[str]) -> Any:
    """Return a node or an edge with its short fields moved under `attributes`."""
    if not isinstance(entry, Mapping) or not any(name in entry for name in names):
        return entry
    short = {name: entry[name] for name in names if name in entry}
    others = {name: value for name, value in entry.items() if name not in names}
    return {**others, "attributes": {**others.get("attributes", {}), **short}}


def objects_under(data: Any, name: str, fields: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return a new list of the objects under data[name]. Raises ValueError where one of them lacks a field."""
    if not isinstance(data, Mapping) or not isinstance(data.get(name), list | tuple):
        raise ValueError(f"graph: expected an object with a list of {name}, got {shown(data)}")
    for position, entry in enumerate(data[name]):
        if not isinstance(entry, Mapping) or any(field not in entry for field in fields):
            expected = ", ".join(fields)
            raise ValueError(f"{name}[{position}]: expected an object with {expected}, got {shown(entry)}")
    return list(data[name])


def _entries(data: Mapping[str, Any], name: str) -> Sequence[Any]:
    entries = data.get(name, [])
    if not isinstance(entries, list | tuple):
        raise ValueError(f"graph: expected a list of {name}, got {shown(entries)}")
    return entries


def _required(entry: Mapping[str, Any], name: str, owner: str) -> Any:
    if name not in entry:
        raise ValueError(f"{owner}: expected a field {name}, got none")
    return entry[name]


def _check_fields(entry: Any, names: Sequence[str], owner: str) -> None:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{owner}: expected an object, got {shown(entry)}")
    for name, value in entry.items():
        if name not in names:
            raise ValueError(f"{owner}: expected fields out of {', '.join(names)}, got {shown(name)}")
        if value is None and name != "output_size":
            raise ValueError(f"{owner}: expected a value for {name}, got null")
