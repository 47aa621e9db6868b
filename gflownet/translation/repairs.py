"""repair: the nearest valid graph and the list of changes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, TypeGuard

from gflownet.graphs.computation_graph import ComputationGraph, Edge, Node, NodeType
from gflownet.graphs.elements import DEFAULT_AGGREGATION, DEFAULT_WEIGHT
from gflownet.graphs.limits import MAX_MAGNITUDE
from gflownet.graphs.ordering import reachable
from gflownet.operations.values import shown, thawed
from gflownet.operations.vocabulary import (
    ACTIVATIONS,
    AGGREGATIONS,
    EDGE_ATTRIBUTES,
    MAX_WIDTH,
    NODE_ATTRIBUTES,
    TRANSLATION_SETTINGS,
    activation,
    aggregation,
)
from gflownet.translation.planning import checked_options

STRATEGIES = ("minimal", "disable")


@dataclass(frozen=True)
class Change:
    """One change by repair."""

    message: str  # "node 3: activation_function 'rellu' -> 'relu'"
    node_id: int | None = None
    edge_id: int | None = None


@dataclass(frozen=True)
class RepairedGraph:
    """A valid graph and the changes that led to it."""

    graph: ComputationGraph
    changes: tuple[Change, ...]  # empty for a graph that was valid


def repair(graph: ComputationGraph, *, strategy: str = "minimal") -> RepairedGraph:
    """Return a valid graph near `graph`, which is not changed.

    Invalid values become the nearest valid one, or the default. Dangling edges, duplicates and edges into inputs are
    removed. With strategy "disable" every hidden node and edge with an invalid value is also cut off, by disabling
    edges. An output that no input reaches is connected by enabling a minimum number of edges, or by one new edge from
    the first input.

    Raises: ValueError for a graph without inputs or outputs, one too large, or an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if not graph.input_node_ids or not graph.output_node_ids:
        raise ValueError("expected a graph with input and output nodes: repair does not add them")
    changes: list[Change] = []
    nodes = {node_id: _repaired_node(graph, node, changes) for node_id, node in graph.nodes.items()}
    edges = _repaired_edges(graph, changes)
    if strategy == "disable":
        _disable(graph, edges, changes)
    _connect_outputs(nodes, edges, changes)
    repaired = _assembled(_repaired_config(graph, changes), nodes, edges)
    if any(problem.code == "unequal_widths" for problem in repaired.validate()):
        changes.append(Change("graph: projection 'never' -> 'auto'"))
        settings = {**repaired.config["translation"], "projection": "auto"}
        repaired = _assembled({**repaired.config, "translation": settings}, nodes, edges)
    checked_options(repaired)
    assert not repaired.validate(), "repair left a problem"
    return RepairedGraph(repaired, tuple(changes))


def _repaired_config(graph: ComputationGraph, changes: list[Change]) -> Mapping[str, Any]:
    """Return the config with only the valid translation settings."""
    if "translation" not in graph.config:
        return graph.config
    settings = graph.config["translation"]
    before = settings if isinstance(settings, Mapping) else {}
    valid = {k: v for k, v in before.items() if k in TRANSLATION_SETTINGS and TRANSLATION_SETTINGS[k].accepts(v)}
    if valid != settings:
        changes.append(Change(f"graph: translation {shown(thawed(settings))} -> {valid}"))
    return {**graph.config, "translation": valid}


def _repaired_node(graph: ComputationGraph, node: Node, changes: list[Change]) -> Node:
    is_input = node.node_type is NodeType.INPUT
    repaired = replace(
        node,
        output_size=node.output_size if _is_width(node.output_size) else _likely_size(graph, node),
        activation_function=_known_activation(node),
        bias=0.0 if is_input or not abs(node.bias) <= MAX_MAGNITUDE else node.bias,
        attributes=_repaired_attributes(node),
    )
    for name in ("output_size", "activation_function", "bias"):
        before, after = getattr(node, name), getattr(repaired, name)
        if before != after:
            changes.append(_node_change(node, f"{name} {shown(before)} -> {shown(after)}"))
    before, after = node.attributes, repaired.attributes
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            text = f"{key} {shown(before.get(key))} -> {shown(after[key])}" if key in after else f"{key} removed"
            changes.append(_node_change(node, text))
    return repaired


def _node_change(node: Node, text: str) -> Change:
    return Change(f"node {node.node_id}: {text}", node_id=node.node_id)


def _edge_change(edge_id: int, text: str) -> Change:
    return Change(f"edge {edge_id}: {text}", edge_id=edge_id)


def _repaired_attributes(node: Node) -> dict[str, Any]:
    """Return the valid attributes, with a known aggregation."""
    name = _nearest(str(node.aggregation), AGGREGATIONS, DEFAULT_AGGREGATION, aggregation)
    accepted = {**NODE_ATTRIBUTES, **aggregation(name).accepted()}
    valid = {key: value for key, value in node.attributes.items() if key in accepted and accepted[key].accepts(value)}
    return {**valid, "aggregation": name} if "aggregation" in node.attributes else valid


def _repaired_edges(graph: ComputationGraph, changes: list[Change]) -> dict[int, Edge]:
    edges: dict[int, Edge] = {}
    pairs: set[tuple[int, int]] = set()
    for edge_id, edge in sorted(graph.edges.items()):
        reason = _fatal(graph, edge, pairs)
        if reason:
            changes.append(_edge_change(edge_id, f"removed, {reason}"))
            continue
        pairs.add((edge.source, edge.target))
        weight = edge.weight if abs(edge.weight) <= MAX_MAGNITUDE else DEFAULT_WEIGHT
        attributes = {
            k: v for k, v in edge.attributes.items() if k in EDGE_ATTRIBUTES and EDGE_ATTRIBUTES[k].accepts(v)
        }
        if weight != edge.weight:
            changes.append(_edge_change(edge_id, f"weight {edge.weight} -> {weight}"))
        for key in edge.attributes.keys() - attributes.keys():
            changes.append(_edge_change(edge_id, f"{key} removed"))
        edges[edge_id] = replace(edge, weight=weight, attributes=attributes)
    return edges


def _fatal(graph: ComputationGraph, edge: Edge, pairs: set[tuple[int, int]]) -> str:
    """Return why an edge must be removed, or an empty text."""
    for node_id in (edge.source, edge.target):
        if node_id not in graph.nodes:
            return f"there is no node {node_id}"
    if graph.nodes[edge.target].node_type is NodeType.INPUT:
        return f"node {edge.target} is an input"
    if not graph.config["multigraph"] and (edge.source, edge.target) in pairs:
        return f"another edge goes from node {edge.source} to node {edge.target}"
    return ""


def _disable(graph: ComputationGraph, edges: dict[int, Edge], changes: list[Change]) -> None:
    """Disable the edges of hidden nodes that had an invalid value, and edges that had one."""
    bad_edges = {change.edge_id for change in changes}
    bad_nodes = {
        change.node_id
        for change in changes
        if change.node_id is not None and graph.nodes[change.node_id].node_type is NodeType.HIDDEN
    }
    for edge_id, edge in edges.items():
        if edge.enabled and (edge_id in bad_edges or edge.source in bad_nodes or edge.target in bad_nodes):
            edges[edge_id] = replace(edge, enabled=False)
            changes.append(_edge_change(edge_id, "disabled"))


def _connect_outputs(nodes: Mapping[int, Node], edges: dict[int, Edge], changes: list[Change]) -> None:
    inputs = sorted(i for i, node in nodes.items() if node.node_type is NodeType.INPUT)
    outputs = sorted(i for i, node in nodes.items() if node.node_type is NodeType.OUTPUT)
    # Edges disabled by _disable stay disabled: only edges that were disabled before may be enabled.
    cut = {change.edge_id for change in changes if change.edge_id is not None}
    for output in outputs:
        if output in _fed(inputs, edges):
            continue
        path = _path_to(output, inputs, [edge for edge in edges.values() if edge.enabled or edge.edge_id not in cut])
        for edge in path:
            if not edge.enabled:
                edges[edge.edge_id] = replace(edge, enabled=True)
                changes.append(_edge_change(edge.edge_id, f"enabled, to reach output {output}"))
        if not path:
            _add_edge(inputs[0], output, edges, changes)


def _add_edge(source: int, target: int, edges: dict[int, Edge], changes: list[Change]) -> None:
    for edge in edges.values():
        if (edge.source, edge.target) == (source, target):
            edges[edge.edge_id] = replace(edge, enabled=True)
            changes.append(_edge_change(edge.edge_id, f"enabled, to reach output {target}"))
            return
    edge_id = max(edges, default=-1) + 1
    edges[edge_id] = Edge(edge_id, source, target)
    changes.append(_edge_change(edge_id, f"added from input {source} to output {target}"))


def _fed(inputs: list[int], edges: Mapping[int, Edge]) -> set[int]:
    targets: dict[int, list[int]] = {}
    for edge in edges.values():
        if edge.enabled:
            targets.setdefault(edge.source, []).append(edge.target)
    return reachable(inputs, lambda node_id: targets.get(node_id, []))


def _path_to(output: int, inputs: list[int], edges: list[Edge]) -> list[Edge]:
    """Return the edges of a path from an input to `output` with a minimum of disabled ones; empty: no path."""
    best: dict[int, tuple[int, list[Edge]]] = {node_id: (0, []) for node_id in inputs}
    for _ in range(len(edges) + 1):  # Bellman-Ford: a path has no more edges than there are
        improved = False
        for edge in edges:
            if edge.source in best:
                cost, path = best[edge.source]
                cost += not edge.enabled
                if edge.target not in best or cost < best[edge.target][0]:
                    best[edge.target] = cost, [*path, edge]
                    improved = True
        if not improved:
            break
    return best.get(output, (0, []))[1]


def _known_activation(node: Node) -> str:
    if node.node_type is NodeType.INPUT:
        return node.activation_function if node.activation_function in ("linear", "identity") else "linear"
    return _nearest(node.activation_function, ACTIVATIONS, "linear", activation)


def _nearest(name: str, names: Iterable[str], default: str, load: Callable[[str], object]) -> str:
    """Return the name itself where it can be used, else the nearest built-in one."""
    try:
        load(name)
    except ValueError:
        return (get_close_matches(name, names, n=1) or [default])[0]
    return name


def _is_width(size: int | None) -> TypeGuard[int]:
    return size is not None and 1 <= size <= MAX_WIDTH


def _likely_size(graph: ComputationGraph, node: Node) -> int:
    """Return the most common width among the neighbours (fewest projections), 1 without any."""
    ends = [(edge.source, edge.target) for edge in graph.edges.values() if node.node_id in (edge.source, edge.target)]
    sizes = Counter(
        graph.nodes[other].output_size
        for pair in ends
        for other in pair
        if other != node.node_id and other in graph.nodes
    )
    usable = [(count, size) for size, count in sizes.items() if _is_width(size)]
    return max(usable)[1] if usable else 1


def _assembled(config: Mapping[str, Any], nodes: Mapping[int, Node], edges: Mapping[int, Edge]) -> ComputationGraph:
    graph = ComputationGraph(config=config)
    for node in nodes.values():
        values = {item.name: getattr(node, item.name) for item in fields(node)}
        graph.add_node(values.pop("node_id"), values.pop("node_type"), **values)
    for edge in edges.values():
        values = {item.name: getattr(edge, item.name) for item in fields(edge)}
        graph.add_edge(values.pop("source"), values.pop("target"), **values)
    return graph
