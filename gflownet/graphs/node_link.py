"""Computation graphs as JSON in networkx's node-link form (edges under "edges"), read strictly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gflownet.graphs.elements import DEFAULT_WEIGHT, Edge, Node, checked_int, shown, thawed

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph

_GRAPH_FIELDS = ("directed", "multigraph", "graph", "nodes", "edges")
_NODE_FIELDS = ("id", "node_type", "output_size", "activation_function", "bias", "attributes")
# networkx writes the key of a parallel edge beside its data; edge_id says the same.
_EDGE_FIELDS = ("source", "target", "edge_id", "weight", "enabled", "attributes", "key")


def node_link_dict(graph: ComputationGraph) -> dict[str, Any]:
    """The graph as plain JSON values, nodes and edges by ascending id, every field written out."""
    config = thawed(graph.config)
    multigraph = config.pop("multigraph")
    return {
        "directed": True,
        "multigraph": multigraph,
        "graph": config,
        "nodes": [{"id": node_id, **node_fields(graph.nodes[node_id])} for node_id in sorted(graph.nodes)],
        "edges": [_edge_dict(graph.edges[edge_id], multigraph=multigraph) for edge_id in sorted(graph.edges)],
    }


def node_fields(node: Node) -> dict[str, Any]:
    """What a node-link entry says of a node beside its id."""
    return {
        "node_type": node.node_type.value,
        "output_size": node.output_size,
        "activation_function": node.activation_function,
        "bias": node.bias,
        "attributes": thawed(node.attributes),
    }


def edge_fields(edge: Edge) -> dict[str, Any]:
    """What a node-link entry says of an edge beside its ends."""
    return {
        "edge_id": edge.edge_id,
        "weight": edge.weight,
        "enabled": edge.enabled,
        "attributes": thawed(edge.attributes),
    }


def _edge_dict(edge: Edge, *, multigraph: bool) -> dict[str, Any]:
    key = {"key": edge.edge_id} if multigraph else {}
    return {"source": edge.source, "target": edge.target, **edge_fields(edge), **key}


def read_node_link(graph_class: type[ComputationGraph], data: Any) -> ComputationGraph:
    """The graph that node-link data describe, missing fields at their defaults.

    What is well-typed but makes no sense (dangling edges, unknown activations) is read for validate() to report.
    Raises: ValueError that names the node or edge and the field.
    """
    _check_fields(data, _GRAPH_FIELDS, "graph")
    if data.get("directed", True) is not True:
        raise ValueError(f"graph: expected directed true, got {shown(data['directed'])}")
    config = data.get("graph", {})
    if not isinstance(config, Mapping):
        raise ValueError(f"graph: expected an object under graph, got {shown(config)}")
    graph = graph_class(config={**config, "multigraph": data.get("multigraph", False)})
    for position, entry in enumerate(_entries(data, "nodes")):
        _read_node(graph, entry, f"nodes[{position}]")
    entries = list(enumerate(_entries(data, "edges")))
    # Edges that bring their id come first, so that a generated id never takes one that is still to be read.
    for position, entry in sorted(entries, key=lambda item: isinstance(item[1], Mapping) and "edge_id" not in item[1]):
        _read_edge(graph, entry, f"edges[{position}]")
    return graph


def objects_under(data: Any, name: str, fields: Sequence[str]) -> list[Mapping[str, Any]]:
    """A new list of the objects under data[name]. Raises ValueError where one of them lacks one of the fields."""
    if not isinstance(data, Mapping) or not isinstance(data.get(name), list | tuple):
        raise ValueError(f"graph: expected an object with a list of {name}, got {shown(data)}")
    for position, entry in enumerate(data[name]):
        if not isinstance(entry, Mapping) or any(field not in entry for field in fields):
            expected = ", ".join(fields)
            raise ValueError(f"{name}[{position}]: expected an object with {expected}, got {shown(entry)}")
    return list(data[name])


def _read_node(graph: ComputationGraph, entry: Any, name: str) -> None:
    _check_fields(entry, _NODE_FIELDS, name)
    node_id = checked_int(_required(entry, "id", name), name, "id")
    graph.add_node(
        node_id,
        _required(entry, "node_type", f"node {node_id}"),
        output_size=entry.get("output_size"),
        activation_function=entry.get("activation_function", "linear"),
        bias=entry.get("bias", 0.0),
        attributes=entry.get("attributes", {}),
    )


def _read_edge(graph: ComputationGraph, entry: Any, name: str) -> None:
    _check_fields(entry, _EDGE_FIELDS, name)
    edge_id = checked_int(entry["edge_id"], name, "edge_id") if "edge_id" in entry else None
    graph.add_edge(
        checked_int(_required(entry, "source", name), name, "source"),
        checked_int(_required(entry, "target", name), name, "target"),
        edge_id=edge_id,
        weight=entry.get("weight", DEFAULT_WEIGHT),
        enabled=entry.get("enabled", True),
        attributes=entry.get("attributes", {}),
    )


def _entries(data: Mapping[str, Any], name: str) -> Sequence[Any]:
    entries = data.get(name, [])
    if not isinstance(entries, list | tuple):
        raise ValueError(f"graph: expected a list of {name}, got {shown(entries)}")
    return entries


def _required(entry: Mapping[str, Any], name: str, owner: str) -> Any:
    if name not in entry:
        raise ValueError(f"{owner}: expected a field {name}, got none")
    return entry[name]


def _check_fields(entry: Any, known: Sequence[str], owner: str) -> None:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{owner}: expected an object, got {shown(entry)}")
    for name, value in entry.items():
        if name not in known:
            raise ValueError(f"{owner}: expected fields out of {', '.join(known)}, got {shown(name)}")
        if value is None and name != "output_size":
            raise ValueError(f"{owner}: expected a value for {name}, got null")
