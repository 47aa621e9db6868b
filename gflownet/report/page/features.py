"""Features of architectures: what an architecture of any environment has, by category, from its node-link data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from gflownet.graphs.assignment import values_of
from gflownet.operations.vocabulary import short_name
from gflownet.report.page.drawings import label_of, text_of

# Settings of an operation that are not features: names and structure.
_NO_SETTINGS = frozenset({"name"})
_MAX_TEXT = 60
_DEFAULT_ACTIVATION = "linear"
_short = cache(short_name)


class Category(StrEnum):
    """Kinds of features, in the order of the page."""

    OPERATION = "operations"
    SETTING = "settings of operations"
    PLACE = "values of places"
    AGGREGATION = "aggregations and widths"
    CONNECTION = "connections"
    NODE = "kinds of nodes"


Feature = tuple[Category, str]


@dataclass(frozen=True)
class Description:
    """Features and size of an architecture."""

    features: set[Feature]
    num_nodes: int  # hidden nodes, of all nodes where there are no inputs and outputs
    num_edges: int


def described(graph: Mapping[str, Any]) -> Description:
    """Return the description of node-link data."""
    return Description(features_of(graph), *size_of(graph))


def features_of(graph: Mapping[str, Any]) -> set[Feature]:
    """Return the features of an architecture; none of data in another form."""
    try:
        return {(category, text[:_MAX_TEXT]) for category, text in _features(graph)}
    except (KeyError, TypeError, AttributeError, ValueError):
        return set()


def size_of(graph: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of hidden nodes, of all nodes where there are no inputs and outputs, and of edges.

    Choices have neither.
    """
    nodes, edges = graph.get("nodes"), graph.get("edges")
    if not isinstance(nodes, list) or not isinstance(edges, list) or values_of(graph):
        return 0, 0
    hidden = [node for node in nodes if not isinstance(node, dict) or node.get("node_type", "hidden") == "hidden"]
    return len(hidden), len(edges)


def _features(graph: Mapping[str, Any]) -> Iterator[Feature]:
    nodes = graph["nodes"]
    if all("node_type" in node for node in nodes):
        yield from _network_features(graph)
    elif all("name" in node and "value" in node for node in nodes):
        yield from _assignment_features(nodes)
    else:
        yield from _coloured_features(graph)


def _network_features(graph: Mapping[str, Any]) -> Iterator[Feature]:
    label: dict[Any, str] = {}
    for node in graph["nodes"]:
        kind = node["node_type"]
        operation = _operation(node)
        activation = _short(str(node.get("activation_function", _DEFAULT_ACTIVATION)))
        label[node["id"]] = kind if kind != "hidden" else str(operation.get("name", activation))
        if kind != "hidden":
            continue
        if operation:
            yield Category.OPERATION, str(operation["name"])
            settings = {key: value for key, value in operation.items() if key not in _NO_SETTINGS}
            yield from ((Category.SETTING, f"{operation['name']}: {key} {value}") for key, value in settings.items())
        else:
            yield Category.OPERATION, f"activation {activation}"
            if node.get("output_size") is not None:
                yield Category.AGGREGATION, f"width {node['output_size']}"
        if "aggregation" in node:
            yield Category.AGGREGATION, f"aggregation {_short(str(node['aggregation']))}"
    for edge in graph["edges"]:
        if edge.get("is_recurrent"):
            yield Category.CONNECTION, "a recurrent edge"
        if edge.get("enabled", True) is False:
            yield Category.CONNECTION, "a disabled edge"
            continue
        yield Category.CONNECTION, f"{label.get(edge['source'], '?')} → {label.get(edge['target'], '?')}"
        if isinstance(edge.get("operation"), dict):
            yield Category.OPERATION, str(edge["operation"].get("name"))


def _operation(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the operation of a node, empty without one; files have it as a field or among the attributes."""
    operation = node.get("operation") or (node.get("attributes") or {}).get("operation")
    return operation if isinstance(operation, dict) else {}


def _assignment_features(nodes: list[Mapping[str, Any]]) -> Iterator[Feature]:
    is_cell = all("<-" in str(node["name"]) or str(node["name"]).startswith("layer") for node in nodes)
    for node in nodes:
        yield Category.PLACE, f"{node['name']} = {text_of(node['value'])}"
        if is_cell:
            yield Category.OPERATION, text_of(node["value"])


def _coloured_features(graph: Mapping[str, Any]) -> Iterator[Feature]:
    is_program = (graph.get("graph") or {}).get("program") is not None
    label = {node["id"]: label_of(str(node["colour"])) for node in graph["nodes"]}
    for text in label.values():
        # Axes and indices of a program are named after inputs: A.0:4.
        if not is_program or not any(mark in text for mark in ".:"):
            yield (Category.OPERATION if is_program else Category.NODE), text
    arrow = "→" if graph.get("directed", True) else "\N{EN DASH}"
    for edge in graph["edges"]:
        ends = [label[edge["source"]], label[edge["target"]]]
        if is_program and any(mark in text for text in ends for mark in ".:"):
            continue
        if not graph.get("directed", True):
            ends.sort()
        yield Category.CONNECTION, f"{ends[0]} {arrow} {ends[1]}"
