"""Features of architectures: what an architecture of any environment has, from its node-link data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gflownet.graphs.assignment import values_of
from gflownet.operations.vocabulary import short_name
from gflownet.report.page.drawings import label_of, text_of

_MAX_TEXT = 60
_DEFAULT_ACTIVATION = "linear"
_short = cache(short_name)


@dataclass(frozen=True)
class Description:
    """Features and size of an architecture."""

    features: set[str]
    num_nodes: int  # hidden nodes, of all nodes where there are no inputs and outputs
    num_edges: int


def described(graph: Mapping[str, Any]) -> Description:
    """Return the description of node-link data; without features where it has another form.

    Choices have no hidden nodes and no edges.
    """
    try:
        features = {text[:_MAX_TEXT] for text in _features(graph)}
    except (KeyError, TypeError, AttributeError, ValueError):
        features = set[str]()
    nodes, edges = graph.get("nodes"), graph.get("edges")
    if not isinstance(nodes, list) or not isinstance(edges, list) or values_of(graph):
        return Description(features, 0, 0)
    hidden = [node for node in nodes if not isinstance(node, dict) or node.get("node_type", "hidden") == "hidden"]
    return Description(features, len(hidden), len(edges))


def _features(graph: Mapping[str, Any]) -> Iterator[str]:
    nodes = graph["nodes"]
    if all("node_type" in node for node in nodes):
        yield from _network_features(graph)
    elif all("name" in node and "value" in node for node in nodes):
        yield from (f"{node['name']} = {text_of(node['value'])}" for node in nodes)
        if all("<-" in str(node["name"]) or str(node["name"]).startswith("layer") for node in nodes):  # operations
            yield from (text_of(node["value"]) for node in nodes)
    else:
        yield from _coloured_features(graph)


def _network_features(graph: Mapping[str, Any]) -> Iterator[str]:
    label: dict[Any, str] = {}
    for node in graph["nodes"]:
        kind, activation = node["node_type"], _short(str(node.get("activation_function", _DEFAULT_ACTIVATION)))
        operation = node.get("operation") or (node.get("attributes") or {}).get("operation")  # files have a field
        name = str(operation.get("name", activation)) if isinstance(operation, dict) else activation
        label[node["id"]] = kind if kind != "hidden" else name
        if kind != "hidden":
            continue
        if isinstance(operation, dict):
            yield name
            yield from (f"{name}: {key} {value}" for key, value in operation.items() if key != "name")
        else:
            yield f"activation {activation}"
            if node.get("output_size") is not None:
                yield f"width {node['output_size']}"
        if "aggregation" in node:
            yield f"aggregation {_short(str(node['aggregation']))}"
    for edge in graph["edges"]:
        if edge.get("is_recurrent"):
            yield "a recurrent edge"
        if edge.get("enabled", True) is False:
            yield "a disabled edge"
            continue
        yield f"{label.get(edge['source'], '?')} → {label.get(edge['target'], '?')}"
        if isinstance(edge.get("operation"), dict):
            yield str(edge["operation"].get("name"))


def _coloured_features(graph: Mapping[str, Any]) -> Iterator[str]:
    is_program = (graph.get("graph") or {}).get("program") is not None
    # Axes and indices of a program are named after inputs: A.0:4.
    marks = ".:" if is_program else ""
    label = {node["id"]: label_of(str(node["colour"])) for node in graph["nodes"]}
    yield from (text for text in label.values() if not any(mark in text for mark in marks))
    is_directed = graph.get("directed", True)
    for edge in graph["edges"]:
        ends = [label[edge["source"]], label[edge["target"]]]
        if not any(mark in text for text in ends for mark in marks):
            yield (" → " if is_directed else " \N{EN DASH} ").join(ends if is_directed else sorted(ends))
