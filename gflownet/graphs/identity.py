"""Coloured graphs of computation graphs, independent of hidden ids and of defaults that are written out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.elements import (
    DEFAULT_AGGREGATION,
    Edge,
    GraphElements,
    Node,
    NodeKind,
    NodeType,
    input_shape,
    is_built_in,
    maps_tensors,
    names_classes,
    nested_graphs,
)
from gflownet.graphs.operation import OPERATIONS, graph_name, read_operation
from gflownet.graphs.typed import Call, TypedNode
from gflownet.operations.operation import INPUT_PORT
from gflownet.operations.tensor_shape import AXES
from gflownet.operations.values import is_number, thawed
from gflownet.operations.vocabulary import is_order_sensitive

_LABELS = ("derivation_uuid",)
_NODE_DEFAULTS = {"aggregation": DEFAULT_AGGREGATION}
_EDGE_LABELS = ("derivation_uuid", "order")
_EDGE_DEFAULTS = {"is_recurrent": False}
_OPERATION_NODE_DEFAULTS = {
    **_NODE_DEFAULTS,
    "axis": AXES[0],
    "align": "auto",
    "edge_weight": False,
    "port": INPUT_PORT,
    "repeat": 1,
    "share": False,
}
_OPERATION_EDGE_DEFAULTS = {**_EDGE_DEFAULTS, "port": INPUT_PORT}
_SHORT_NAMES = {home: name for name, home in OPERATIONS.homes.items()}  # one operation has one identity
_SHAPE_ATTRIBUTES = ("shape", "layout", "dtype")


def coloured_graph(
    graph: GraphElements, subgraph_key: Callable[[str], str], *, is_subgraph: bool = False
) -> tuple[list[int], ColouredGraph]:
    """Return the node id of every index, and the coloured graph over these indices.

    The colour of an input or output contains its place, which fixes it. Missing ends of edges become nodes, so that an
    invalid graph has an identity, too. Parallel edges are merged into one colour.

    Args:
        graph: any computation graph.
        subgraph_key: returns the identity of a subgraph by name. Raises ValueError for an invalid one.
        is_subgraph: inputs are fixed by their ports, and their shapes come from outside.
    """
    has_operations = is_subgraph or maps_tensors(graph)
    if has_operations:
        node_colours = _operation_node_colours(graph, subgraph_key, is_subgraph=is_subgraph)
    else:
        node_colours = {
            node_id: _head(node, node.output_size) + _attributes_colour(node.attributes, _NODE_DEFAULTS, _LABELS)
            for node_id, node in graph.nodes.items()
        }
    ids, colours = [], []
    inputs, outputs = (
        sorted(node_id for node_id, node in graph.nodes.items() if node.node_type is kind)
        for kind in (NodeType.INPUT, NodeType.OUTPUT)
    )
    if is_subgraph:
        inputs.sort(key=lambda node_id: str(graph.nodes[node_id].port))
    for group in (inputs, outputs):
        ids += group
        colours += [f"{place} {node_colours[node_id]}" for place, node_id in enumerate(group)]
    hidden = [node_id for node_id, node in graph.nodes.items() if node.node_type is NodeType.HIDDEN]
    ids += hidden
    colours += [node_colours[node_id] for node_id in hidden]
    index_of = {node_id: index for index, node_id in enumerate(ids)}
    for end in (end for edge in graph.edges.values() for end in (edge.source, edge.target)):
        if end not in index_of:
            index_of[end] = len(ids)
            ids.append(end)
            colours.append(f"missing {end}")
    ranks = dict(_ranks(graph, by_port=has_operations))
    defaults = _OPERATION_EDGE_DEFAULTS if has_operations else _EDGE_DEFAULTS
    merged: dict[tuple[int, int], list[str]] = {}
    for edge in graph.edges.values():
        ends = index_of[edge.source], index_of[edge.target]
        head = f"{ranks.get(edge.edge_id, '')}{edge.weight!r} {'on' if edge.enabled else 'off'}"
        merged.setdefault(ends, []).append(head + _attributes_colour(edge.attributes, defaults, _EDGE_LABELS))
    edges = {ends: each[0] if len(each) == 1 else json.dumps(sorted(each)) for ends, each in merged.items()}
    # One more node for every set of weights that several nodes share, joined to these.
    for node_ids in _sharing_nodes(graph):
        edges |= {(index_of[node_id], len(ids)): "shares" for node_id in node_ids}
        ids.append(min(*ids, *graph.nodes) - 1)
        colours.append("shared")
    return ids, ColouredGraph(tuple(colours), edges)


def _sharing_nodes(graph: GraphElements) -> Iterator[list[int]]:
    """Yield the nodes that share weights, by a subgraph, by `share` or by their derivation, where several do."""
    groups: dict[tuple[str, str], list[int]] = {}
    for node_id, node in graph.nodes.items():
        if isinstance(node.subgraph, str) and node.share is True:
            groups.setdefault(("subgraph", node.subgraph), []).append(node_id)
        elif node.operation is not None and isinstance(node.share, str):
            groups.setdefault(("operation", node.share), []).append(node_id)
        if isinstance(node.derivation, str) and node.kind is not NodeKind.INPUT:
            groups.setdefault(("derivation", node.derivation), []).append(node_id)
    yield from (node_ids for node_ids in groups.values() if len(node_ids) > 1)


def _broadcasts(graph: GraphElements) -> dict[int, int]:
    """Return the number of merges that broadcast at every node, those inside of its subgraph included.

    Without these, a node without `align` and one with align=auto have one colour: inputs of equal shapes are most
    common, and the colours are those of stored graphs. Empty where a class is not built in.
    """
    if not any(map(_may_broadcast, nested_graphs(graph))) or names_classes(graph, is_built_in):
        return {}
    return {node_id: _num_broadcasts(node) for node_id, node in graph.typed().nodes.items()}


def _may_broadcast(graph: GraphElements) -> bool:
    """Return whether some node merges several inputs without an alignment."""
    inputs = Counter((edge.target, str(edge.port)) for edge in graph.edges.values() if edge.enabled)
    several = {node_id for (node_id, _), count in inputs.items() if count > 1}
    return any(node_id in graph.nodes and graph.nodes[node_id].align is None for node_id in several)


def _num_broadcasts(node: TypedNode) -> int:
    count, previous = sum(any(each.is_broadcast for each in plan.adapters) for plan in node.inputs.values()), None
    for body in node.bodies if isinstance(node.what, Call) else ():
        if body is not previous:
            count += sum(map(_num_broadcasts, body.nodes.values()))
        previous = body
    return count


def _ranks(graph: GraphElements, *, by_port: bool) -> Iterator[tuple[int, str]]:
    """Yield the place of every edge into a node whose aggregation depends on the order.

    With operations it is that of an enabled edge among those into the same port.
    """
    ordered: dict[int, list[Edge]] = {
        node_id: [] for node_id, node in graph.nodes.items() if is_order_sensitive(node.aggregation)
    }
    for edge in graph.edges.values() if ordered else ():
        if edge.target in ordered:
            ordered[edge.target].append(edge)
    for edges in ordered.values():
        places: Counter[str] = Counter()
        for edge in sorted(edges, key=lambda edge: (edge.order, edge.edge_id)):
            if edge.enabled or not by_port:
                port = str(edge.port) if by_port else ""
                yield edge.edge_id, f"#{places[port]} "
                places[port] += 1


def _operation_node_colours(
    graph: GraphElements, subgraph_key: Callable[[str], str], *, is_subgraph: bool
) -> dict[int, str]:
    colours, broadcasts = {}, {} if is_subgraph else _broadcasts(graph)
    for node_id, node in graph.nodes.items():
        size, attributes = node.output_size, dict(node.attributes)
        attributes |= {"broadcasts": count} if (count := broadcasts.get(node_id)) else {}
        if node.node_type is NodeType.INPUT:
            size, attributes = _declared(node, attributes, is_subgraph=is_subgraph)
        if node.operation is not None:
            attributes["operation"] = _completed(node.operation)
            attributes.pop("share", None)  # names are interchangeable: nodes are joined
        if node.subgraph is not None:
            attributes["subgraph"] = _applied(node.subgraph, subgraph_key)
            if node.repeat == 1 and isinstance(node.share, bool):
                attributes.pop("share", None)
        colours[node_id] = _head(node, size) + _attributes_colour(attributes, _OPERATION_NODE_DEFAULTS, _LABELS)
    return colours


def _declared(node: Node, attributes: dict[str, Any], *, is_subgraph: bool) -> tuple[Any, dict[str, Any]]:
    """Return the shape of an input as text, and its other attributes; as written if the shape is invalid."""
    remaining = {key: value for key, value in attributes.items() if key not in _SHAPE_ATTRIBUTES}
    if is_subgraph:
        return "", remaining
    try:
        return str(input_shape(node)), remaining
    except ValueError:
        return node.output_size, attributes


def _completed(operation: Any) -> Any:
    """Return an operation with every setting; an invalid one, and one of a user's class, as written.

    The class is not imported: an identity runs no code that a graph names.
    """
    if not isinstance(operation, Mapping):
        return operation
    name = operation.get("name")
    name = _full_name(name) if isinstance(name, str) else name
    settings = {key: value for key, value in operation.items() if key != "name"}
    if is_built_in(name):
        try:
            applied = read_operation({**operation, "name": name})
            settings = dict(applied.items)
        except ValueError:
            return operation
    # An integral float is an int: 1.0 and 1 are one value of a setting.
    plain = {
        key: int(value) if is_number(value) and isinstance(value, float) and value.is_integer() else value
        for key, value in settings.items()
    }
    return {"name": name, "settings": plain}


def _full_name(name: str) -> str:
    """Return the one name of an operation: short for a built-in one, module:Class for an entry point."""
    try:
        return graph_name(_SHORT_NAMES.get(name, name))
    except ValueError:  # of several packages
        return name


def _applied(name: Any, subgraph_key: Callable[[str], str]) -> Any:
    try:
        return {"content": subgraph_key(name)}
    except ValueError:
        return name


def _head(node: Node, size: Any) -> str:
    return f"{node.node_type.value} {size} {node.bias!r} {json.dumps(node.activation_function)}"


def _attributes_colour(attributes: Mapping[str, Any], defaults: Mapping[str, Any], labels: tuple[str, ...]) -> str:
    """Return the attributes as text, without labels and default values."""
    counted = {
        key: thawed(value)
        for key, value in attributes.items()
        # repr, because an ill-valued 0 equals the default False.
        if key not in labels and not (key in defaults and repr(value) == repr(defaults[key]))
    }
    return " " + json.dumps(counted, sort_keys=True) if counted else ""
