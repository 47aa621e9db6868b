"""Problems that prevent the translation of a computation graph, all found in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType, shown, thawed
from gflownet.graphs.limits import MAX_MAGNITUDE, MAX_PARAMETERS, has_too_many_parameters, message_size
from gflownet.graphs.operation_shapes import NodeShapeError, infer_shapes, is_operation_graph
from gflownet.graphs.ordering import followed_edges, reachable
from gflownet.graphs.vocabulary import (
    ACTIVATIONS,
    AGGREGATIONS,
    EDGE_ATTRIBUTES,
    MAX_WIDTH,
    NODE_ATTRIBUTES,
    TRANSLATION_SETTINGS,
    activation,
    aggregation,
    aggregation_parameters,
)
from gflownet.plugins import ExtensionPoint

# A tuple, because values of attributes may be unhashable.
_AGGREGATION_NAMES = tuple(AGGREGATIONS)


@dataclass(frozen=True)
class GraphProblem:
    """One error in a graph."""

    code: str  # stable, for programs
    message: str  # expected and actual value, for people
    node_id: int | None = None
    edge_id: int | None = None


def graph_problems(graph: GraphElements) -> list[GraphProblem]:
    """Return every problem: of the graph, then node by node, then edge by edge, by ascending id.

    Cycles are allowed: the edges of detect_cycles() are read one time step late.
    """
    return _problems(graph, _own_projection(graph), unreachable=[*_unreachable_outputs(graph)])


def blocking_problems(graph: GraphElements, projection: str | None = None) -> list[GraphProblem]:
    """Return the problems that prevent translation: all but outputs without a path from an input.

    `projection` overrides the graph's own setting.
    """
    return _problems(graph, projection or _own_projection(graph), unreachable=[])


def _problems(graph: GraphElements, projection: str, *, unreachable: list[GraphProblem]) -> list[GraphProblem]:
    if is_operation_graph(graph):
        return operation_problems(graph)
    problems = [*_missing_ends(graph), *_setting_problems(graph)]
    nodes, edges = dict(graph.nodes), graph.edges.values()
    # Every translation calls this, cached or not: skipping plainly valid elements takes a third of a full check.
    for node_id in sorted([node_id for node_id, node in nodes.items() if not _is_plain(node)]):
        problems += _node_problems(nodes[node_id])
    problems += unreachable
    targets = {node_id for node_id, node in nodes.items() if node.node_type is not NodeType.INPUT}
    unusual = [
        edge
        for edge in edges
        if edge.attributes
        or edge.target not in targets
        or edge.source not in nodes
        or not -MAX_MAGNITUDE <= edge.weight <= MAX_MAGNITUDE
    ]
    for edge in sorted(unusual, key=lambda edge: edge.edge_id):
        problems += _edge_problems(nodes, edge)
    if not graph.config["multigraph"]:
        problems += _duplicate_edges(graph)
    # Sizes can only be compared if all of them are valid.
    return problems if len(problems) > len(unreachable) else [*problems, *_size_problems(graph, projection)]


def operation_problems(graph: GraphElements) -> list[GraphProblem]:
    """Return the problems of an operation graph."""
    problems = [*_missing_ends(graph)]
    try:
        infer_shapes(graph)
    except NodeShapeError as error:
        problems.append(_at_node(error.node_id, "invalid_operation", error.reason))
    return problems


def _own_projection(graph: GraphElements) -> str:
    """Return the projection in a graph's translation settings, auto by default."""
    settings = graph.config.get("translation")
    return settings.get("projection", "auto") if isinstance(settings, Mapping) else "auto"


def _missing_ends(graph: GraphElements) -> Iterator[GraphProblem]:
    present = {node.node_type for node in graph.nodes.values()}
    for kind in (NodeType.INPUT, NodeType.OUTPUT):
        if kind not in present:
            yield GraphProblem(f"missing_{kind.value}", f"graph: expected at least one {kind.value} node, got none")


def _setting_problems(graph: GraphElements) -> Iterator[GraphProblem]:
    settings, code = graph.config.get("translation", {}), "invalid_translation_setting"
    if not isinstance(settings, Mapping):
        yield GraphProblem(code, f"graph: expected an object under translation, got {shown(settings)}")
        return
    for key, value in settings.items():
        if key not in TRANSLATION_SETTINGS:
            names = _listed(TRANSLATION_SETTINGS)
            yield GraphProblem(code, f"graph: expected translation settings out of {names}, got {shown(key)}")
        elif not TRANSLATION_SETTINGS[key].accepts(value):
            yield GraphProblem(code, f"graph: {_expected(TRANSLATION_SETTINGS[key].expected, key, value)}")


def _size_problems(graph: GraphElements, projection: str) -> Iterator[GraphProblem]:
    for edge_id, edge in sorted(graph.edges.items()) if projection == "never" else ():
        node, size = graph.nodes[edge.target], graph.nodes[edge.source].output_size
        expected = message_size(node)
        if edge.enabled and size != expected:
            message = (
                f"expected equal widths with projection=never, "
                f"got {size} from node {edge.source} and {expected} at node {edge.target}"
            )
            yield _at_edge(edge_id, "unequal_widths", message)
    if has_too_many_parameters(graph, projection):
        yield GraphProblem("too_many_parameters", f"graph: expected at most {MAX_PARAMETERS:,} parameters, got more")


def _is_plain(node: Node) -> bool:
    """Return whether a node has only valid fields and no attribute but an aggregation."""
    size, attributes = node.output_size, node.attributes
    return (
        size is not None
        and 1 <= size <= MAX_WIDTH
        and -MAX_MAGNITUDE <= node.bias <= MAX_MAGNITUDE
        and node.activation_function in ACTIVATIONS
        and (node.node_type is not NodeType.INPUT or (node.bias == 0.0 and node.activation_function == "linear"))
        and (not attributes or (len(attributes) == 1 and attributes.get("aggregation") in _AGGREGATION_NAMES))
    )


def _node_problems(node: Node) -> Iterator[GraphProblem]:
    size, name = node.output_size, node.node_id
    is_input = node.node_type is NodeType.INPUT
    if size is None:
        yield _at_node(name, "missing_output_size", "expected an output_size, got none")
    elif not 1 <= size <= MAX_WIDTH:
        message = f"expected an output_size in [1, {MAX_WIDTH:,}], got {shown(size)}"
        yield _at_node(name, "invalid_output_size", message)
    if reason := _name_problem(node.activation_function, ACTIVATIONS, activation, "an activation"):
        yield _at_node(name, "invalid_activation", reason)
    if not abs(node.bias) <= MAX_MAGNITUDE:
        yield _at_node(name, "non_finite_bias", f"expected a finite bias of float32, got {node.bias}")
    # An input passes its data on: its activation and bias would be ignored.
    is_known = node.activation_function in ACTIVATIONS or ":" in node.activation_function
    if is_input and is_known and node.activation_function not in ("linear", "identity"):
        message = f"expected an input to be linear, got activation {shown(node.activation_function)}"
        yield _at_node(name, "invalid_input_node", message)
    if is_input and abs(node.bias) <= MAX_MAGNITUDE and node.bias != 0.0:
        yield _at_node(name, "invalid_input_node", f"expected an input to have bias 0.0, got {node.bias}")
    if node.attributes:
        yield from _aggregation_problems(node)


def _name_problem(name: Any, known: ExtensionPoint, load: Callable[[str], object], kind: str) -> str:
    """Return why an activation or aggregation cannot be used; empty where it can."""
    if isinstance(name, str) and name in known:
        return ""
    if not isinstance(name, str) or ":" not in name:
        return f"expected {kind} out of {_listed(known)} or module:Class, got {shown(thawed(name))}"
    try:
        load(name)
    except ValueError as error:
        return str(error)
    return ""


def _aggregation_problems(node: Node) -> Iterator[GraphProblem]:
    name = node.node_id
    reason = _name_problem(node.aggregation, AGGREGATIONS, aggregation, "an aggregation")
    if reason:
        yield _at_node(name, "invalid_aggregation", reason)
    accepted = {} if reason else aggregation(node.aggregation).accepted()
    for key, value in node.attributes.items():
        if key == "aggregation":
            continue
        if key in NODE_ATTRIBUTES:
            if not NODE_ATTRIBUTES[key].accepts(value):
                yield _at_node(name, "invalid_attribute", _expected(NODE_ATTRIBUTES[key].expected, key, value))
        elif key not in accepted and key not in aggregation_parameters():
            yield _at_node(name, "unknown_attribute", f"expected no attribute {shown(key)}")
        elif key in accepted and not accepted[key].accepts(value):
            yield _at_node(name, "invalid_agg_param", _expected(accepted[key].expected, key, value))
        elif not reason and key not in accepted:
            message = f"expected {node.aggregation} parameters out of {_listed(accepted)}, got {shown(key)}"
            yield _at_node(name, "invalid_agg_param", message)


def _edge_problems(nodes: Mapping[int, Node], edge: Edge) -> Iterator[GraphProblem]:
    name = edge.edge_id
    for end, node_id in (("source", edge.source), ("target", edge.target)):
        if node_id not in nodes:
            yield _at_edge(name, "dangling_edge", f"expected a {end} among the nodes, got {node_id}")
    if edge.target in nodes and nodes[edge.target].node_type is NodeType.INPUT:
        yield _at_edge(name, "edge_into_input", f"expected no edge into an input, got target {edge.target}")
    if not abs(edge.weight) <= MAX_MAGNITUDE:
        yield _at_edge(name, "non_finite_weight", f"expected a finite weight of float32, got {edge.weight}")
    for key, value in edge.attributes.items():
        if key not in EDGE_ATTRIBUTES:
            message = f"expected attributes out of {_listed(EDGE_ATTRIBUTES)}, got {shown(key)}"
            yield _at_edge(name, "unknown_attribute", message)
        elif not EDGE_ATTRIBUTES[key].accepts(value):
            yield _at_edge(name, "invalid_attribute", _expected(EDGE_ATTRIBUTES[key].expected, key, value))


def _duplicate_edges(graph: GraphElements) -> Iterator[GraphProblem]:
    if len({(edge.source, edge.target) for edge in graph.edges.values()}) == len(graph.edges):
        return
    first: dict[tuple[int, int], int] = {}
    for edge_id, edge in sorted(graph.edges.items()):
        earlier = first.setdefault((edge.source, edge.target), edge_id)
        if earlier != edge_id:
            message = f"expected one edge {edge.source} -> {edge.target}, got edge {earlier} before it"
            yield _at_edge(edge_id, "duplicate_edge", message)


def _unreachable_outputs(graph: GraphElements) -> Iterator[GraphProblem]:
    nodes, targets = graph.nodes, {}
    for edge in followed_edges(graph, ignore_recurrent=False):
        targets.setdefault(edge.source, []).append(edge.target)
    inputs = [node_id for node_id, node in nodes.items() if node.node_type is NodeType.INPUT]
    fed = reachable(inputs, lambda node_id: targets.get(node_id, ()))
    for node_id, node in sorted(nodes.items()):
        if node.node_type is NodeType.OUTPUT and node_id not in fed:
            message = "expected a path of enabled edges from an input to this output, got none"
            yield _at_node(node_id, "unreachable_output", message)


def _at_node(node_id: int, code: str, message: str) -> GraphProblem:
    return GraphProblem(code, f"node {node_id}: {message}", node_id=node_id)


def _at_edge(edge_id: int, code: str, message: str) -> GraphProblem:
    return GraphProblem(code, f"edge {edge_id}: {message}", edge_id=edge_id)


def _expected(expected: str, key: str, value: Any) -> str:
    return f"expected {expected} for {key}, got {shown(thawed(value))}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
