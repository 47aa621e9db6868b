"""Computation graphs as JSON in networkx's node-link form (edges under "edges"), read strictly.

Operation graphs are written short: attributes as fields, defaults left out, subgraphs next to nodes and edges. Unknown,
recursive and deeply nested subgraphs are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from gflownet.graphs.elements import (
    DEFAULT_WEIGHT,
    TENSOR_ATTRIBUTES,
    Edge,
    GraphElements,
    Node,
    NodeType,
    maps_tensors,
)
from gflownet.operations.values import checked_int, shown, thawed

_GRAPH_FIELDS = ("directed", "multigraph", "graph", "nodes", "edges", "subgraphs")
_NODE_FIELDS = ("id", "node_type", "output_size", "activation_function", "bias", "attributes")
# networkx writes a key for each parallel edge; it repeats edge_id.
_EDGE_FIELDS = ("source", "target", "edge_id", "weight", "enabled", "attributes", "key")


def node_link_dict(graph: GraphElements) -> Fields:
    """Return the graph as plain JSON values, nodes and edges by ascending id.

    Every field is written out, except in operation graphs (see `short_elements`).
    """
    config = thawed(graph.config)
    multigraph, definitions = config.pop("multigraph"), config.pop("subgraphs", {})
    subgraphs = {} if definitions == {} else {"subgraphs": definitions}
    if maps_tensors(graph):
        head = {"directed": True, "multigraph": multigraph} | ({"graph": config} if config else {})
        return {**head, **short_elements(graph.nodes.values(), graph.edges.values()), **subgraphs}
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
    return {"directed": True, "multigraph": multigraph, "graph": config, "nodes": nodes, "edges": edges, **subgraphs}


def read_subgraph(data: Any, name: str) -> Fields:
    """Return the data of a subgraph in the short form. Raises ValueError naming subgraph, node and field."""
    try:
        config = read_config(data)
        nodes = [
            Node(
                fields["node_id"],
                cast(NodeType, fields["node_type"]),
                *(fields.get(key, default) for key, default in _NODE_DEFAULTS.items()),
            )
            for fields in read_nodes(data, is_subgraph=True)
        ]
        edges: list[Edge] = []
        next_id = 0
        for fields in read_edges(data, is_subgraph=True):
            edge_id, ends = fields.get("edge_id", next_id), (fields["source"], fields["target"])
            edges.append(Edge(edge_id, *ends, *(fields.get(key, default) for key, default in _EDGE_DEFAULTS.items())))
            next_id = max(next_id, edge_id + 1)
        _check_distinct([node.node_id for node in nodes], "node")
        _check_distinct([edge.edge_id for edge in edges], "edge")
    except ValueError as error:
        raise ValueError(f"subgraph {name}: {error}") from None
    multigraph, subgraphs = config.pop("multigraph"), config.pop("subgraphs", {})
    head = ({"multigraph": True} if multigraph else {}) | ({"graph": config} if config else {})
    return {**head, **short_elements(nodes, edges), **({"subgraphs": subgraphs} if subgraphs else {})}


_NODE_VALUES: Fields = {"output_size": None, "activation_function": "linear", "bias": 0.0}
_EDGE_VALUES: Fields = {"weight": DEFAULT_WEIGHT, "enabled": True}
_NODE_DEFAULTS, _EDGE_DEFAULTS = {**_NODE_VALUES, "attributes": {}}, {**_EDGE_VALUES, "attributes": {}}


def _check_distinct(ids: Sequence[int], kind: str) -> None:
    for each, count in Counter(ids).items():
        if count > 1:
            raise ValueError(f"{kind} {each}: expected an unused id, got one already taken")


def read_config(data: Any) -> Fields:
    """Return the config of a graph in node-link form. Raises ValueError for data of another form."""
    _check_fields(data, _GRAPH_FIELDS, "graph")
    if data.get("directed", True) is not True:
        raise ValueError(f"graph: expected directed true, got {shown(data['directed'])}")
    config = data.get("graph", {})
    if not isinstance(config, Mapping):
        raise ValueError(f"graph: expected an object under graph, got {shown(config)}")
    if "subgraphs" in config:
        raise ValueError("graph: expected subgraphs next to nodes and edges, got them under graph")
    multigraph = data.get("multigraph", False)
    if not isinstance(multigraph, bool):
        raise ValueError(f"graph: expected a bool multigraph, got {shown(multigraph)}")
    subgraphs = data.get("subgraphs", {})
    if not isinstance(subgraphs, Mapping):
        raise ValueError(f"graph: expected an object under subgraphs, got {shown(subgraphs)}")
    for name in subgraphs:
        if not isinstance(name, str) or not name:
            raise ValueError(f"graph: expected names under subgraphs, got {shown(name)}")
    read = {name: read_subgraph(subgraph, shown(name)[1:-1]) for name, subgraph in subgraphs.items()}
    return {**config, **({"subgraphs": read} if read else {}), "multigraph": multigraph}


def read_nodes(data: Mapping[str, Any], *, is_subgraph: bool = False) -> Iterator[Fields]:
    """Yield the arguments of `ComputationGraph.add_node` of every node. Raises ValueError naming node and field."""
    short = OPERATION_NODE_FIELDS if is_subgraph or _has_operations(data) else ()
    for position, entry in enumerate(_entries(data, "nodes")):
        owner = f"nodes[{position}]"
        _check_fields(entry, (*_NODE_FIELDS, *short), owner)
        node_id = checked_int(_required(entry, "id", owner), owner, "id")
        entry = _with_attributes(entry, short, f"node {node_id}")
        entry = {**_default_type(entry), **entry}
        _required(entry, "node_type", f"node {node_id}")
        fields = {"output_size": None, **entry, "node_id": node_id}
        del fields["id"]
        yield fields


def read_edges(data: Mapping[str, Any], *, is_subgraph: bool = False) -> Iterator[Fields]:
    """Yield the arguments of `ComputationGraph.add_edge` of every edge. Raises ValueError naming edge and field.

    Edges with an id come first, so that a generated id never takes one that is still to be read.
    """
    short = OPERATION_EDGE_FIELDS if is_subgraph or _has_operations(data) else ()
    entries = list(enumerate(_entries(data, "edges")))
    for position, entry in sorted(entries, key=lambda item: isinstance(item[1], Mapping) and "edge_id" not in item[1]):
        owner = f"edges[{position}]"
        _check_fields(entry, (*_EDGE_FIELDS, *short), owner)
        fields = _with_attributes(entry, short, owner)
        fields.pop("key", None)
        if "edge_id" in fields:
            fields["edge_id"] = checked_int(fields["edge_id"], owner, "edge_id")
        fields["source"] = checked_int(_required(fields, "source", owner), owner, "source")
        fields["target"] = checked_int(_required(fields, "target", owner), owner, "target")
        yield fields


def _has_operations(data: Mapping[str, Any]) -> bool:
    """Return whether some node has an attribute of operation graphs, as a field or under `attributes`."""
    for entry in _entries(data, "nodes"):
        attributes = entry.get("attributes") if isinstance(entry, Mapping) else None
        keys = {*entry, *(attributes if isinstance(attributes, Mapping) else ())} if isinstance(entry, Mapping) else ()
        if any(key in keys for key in TENSOR_ATTRIBUTES):
            return True
    return False


def _with_attributes(entry: Mapping[str, Any], names: Sequence[str], owner: str) -> Fields:
    """Return a node or an edge with its short fields moved under `attributes`."""
    short = {name: entry[name] for name in names if name in entry}
    if not short:
        return dict(entry)
    remaining = {name: value for name, value in entry.items() if name not in names}
    attributes = remaining.get("attributes", {})
    if isinstance(attributes, Mapping):
        for name in short:
            if name in attributes:
                raise ValueError(f"{owner}: expected {name} once, got it as a field and under attributes")
        remaining["attributes"] = {**attributes, **short}
    return remaining


def _default_type(entry: Mapping[str, Any]) -> Fields:
    """Return the type of a node that names none: hidden with an operation or a subgraph, input with a shape."""
    attributes = entry.get("attributes")
    for key, node_type in (("operation", "hidden"), ("subgraph", "hidden"), ("shape", "input")):
        if isinstance(attributes, Mapping) and key in attributes and "node_type" not in entry:
            return {"node_type": node_type}
    return {}


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


# Attributes of operation graphs that are written as fields of a node or an edge.
OPERATION_NODE_FIELDS = (
    "shape",
    "layout",
    "dtype",
    "port",
    "aggregation",
    "axis",
    "align",
    "positions",
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
        "nodes": [
            _short(node, {"id": node.node_id, "node_type": node.node_type.value}, OPERATION_NODE_FIELDS, _NODE_VALUES)
            for node in sorted(nodes, key=lambda node: node.node_id)
        ],
        "edges": [
            _short(edge, ends | ({"edge_id": edge.edge_id} if has_ids else {}), OPERATION_EDGE_FIELDS, _EDGE_VALUES)
            for edge, ends in ((edge, {"source": edge.source, "target": edge.target}) for edge in by_id)
        ],
    }


def _short(element: Node | Edge, head: Fields, names: Sequence[str], defaults: Fields) -> Fields:
    """Return the attributes that are fields, other values than defaults, and the other attributes: those with null."""
    remaining = thawed(element.attributes)
    fields = {name: remaining.pop(name) for name in names if remaining.get(name) is not None}
    values = {name: value for name in defaults if (value := getattr(element, name)) != defaults[name]}
    return {**head, **fields, **values, **({"attributes": remaining} if remaining else {})}


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


# Levels of subgraphs within subgraphs; far below Python's recursion limit.
MAX_LEVELS = 32


class SubgraphError(ValueError):
    """A node applies a subgraph that is not defined, that applies itself, or that is nested too deeply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # of the problem


def subgraph_data(subgraphs: Any, name: Any) -> Mapping[str, Any]:
    """Return the node-link data of a subgraph.

    Raises:
        SubgraphError: no such subgraph; it applies itself, directly or through others, or more than MAX_LEVELS levels.
        ValueError: the data are not an object.
    """
    if not isinstance(subgraphs, Mapping):
        raise ValueError(f"graph: expected an object under subgraphs, got {shown(subgraphs)}")
    if not isinstance(name, str) or name not in subgraphs:
        message = f"expected a subgraph out of {', '.join(subgraphs) or 'none'}, got {shown(name)}"
        raise SubgraphError("unknown_subgraph", message)
    _check_levels(subgraphs, name)
    data = subgraphs[name]
    if not isinstance(data, Mapping):
        raise ValueError(f"subgraph {name}: expected an object, got {shown(data)}")
    return data


def applied_names(data: Any) -> list[str]:
    """Return the names of the subgraphs that node-link data apply from outside of their own, in order, once each."""
    if not isinstance(data, Mapping):
        return []
    definitions = data.get("subgraphs")
    definitions = definitions if isinstance(definitions, Mapping) else {}
    names = [name for entry in _node_entries(data) if isinstance(name := _applied(entry), str)]
    for inner in definitions.values():
        names += applied_names(inner)
    return [name for name in dict.fromkeys(names) if name not in definitions]


def _node_entries(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    nodes = data.get("nodes")
    return [entry for entry in nodes if isinstance(entry, Mapping)] if isinstance(nodes, list | tuple) else []


def _applied(entry: Mapping[str, Any]) -> Any:
    values = entry.get("attributes")
    return entry.get("subgraph", values.get("subgraph") if isinstance(values, Mapping) else None)


def _check_levels(subgraphs: Mapping[str, Any], name: str) -> None:
    """Raise SubgraphError where a depth-first search from `name` meets its own path or goes too deep."""
    finished: set[str] = set()
    path, pending = [name], [iter(applied_names(subgraphs[name]))]
    while path:
        following = next(pending[-1], None)
        if following is None:
            finished.add(path.pop())
            pending.pop()
        elif following in path:
            circle = " -> ".join([*path[path.index(following) :], following])
            raise SubgraphError("recursive_subgraph", f"expected no subgraph that applies itself, got {circle}")
        elif following in subgraphs and following not in finished:
            path.append(following)
            pending.append(iter(applied_names(subgraphs[following])))
            if len(path) > MAX_LEVELS:
                raise SubgraphError(
                    "recursive_subgraph", f"expected at most {MAX_LEVELS} levels of subgraphs, got more"
                )
