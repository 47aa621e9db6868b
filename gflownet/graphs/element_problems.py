"""Problems of nodes and edges that need no shapes, and the problems of every computation graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType
from gflownet.graphs.operation_shapes import neuron_settings
from gflownet.graphs.ordering import followed_edges, reachable
from gflownet.operations.neuron import Neuron
from gflownet.operations.operation import INPUT_PORT
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.values import shown, thawed
from gflownet.operations.vocabulary import (
    ACTIVATIONS,
    AGGREGATIONS,
    EDGE_ATTRIBUTES,
    MAX_WIDTH,
    NODE_ATTRIBUTES,
    activation,
    aggregation,
    aggregation_parameters,
)
from gflownet.plugins import ExtensionPoint

# 4 GiB of float32: more than a search can train, less than an allocation that ends the process.
MAX_PARAMETERS = 2**30
# Elements of one node's output for one example: 4 GiB of float32.
MAX_ELEMENTS = 2**30
# Nodes of an operation graph, those of a subgraph once per repetition.
MAX_EXPANDED_NODES = 100_000
# Edge weights and biases become float32; a larger float would be infinity there.
MAX_MAGNITUDE = (2 - 2**-23) * 2.0**127

# Upper bounds for every built-in recurrent cell of width D: 8 D^2 + 1000 D weights.
_CELL_SQUARES, _CELL_ROWS = 8, 1000


def has_too_many_parameters(graph: GraphElements, projection: str) -> bool:
    """Return whether a graph of valid nodes and edges needs more than MAX_PARAMETERS (cells by an upper bound)."""
    nodes = graph.nodes.values()
    widest = max(node.output_size or 0 for node in nodes)
    for node in nodes:
        if node.attributes:
            kind, width = aggregation(node.aggregation), message_size(node)
            widest = max(widest, width, kind.aggregated_size(node.attributes, width, 1))
    num_terms = 2 * len(graph.edges) + (_CELL_SQUARES + 2) * len(nodes)
    if (widest + _CELL_ROWS) ** 2 * num_terms <= MAX_PARAMETERS:
        return False
    in_edges: dict[int, list[Edge]] = {}
    for edge in graph.edges.values():
        if edge.enabled:
            in_edges.setdefault(edge.target, []).append(edge)
    targets = (node for node in nodes if node.node_type is not NodeType.INPUT)
    counts = (_num_parameters(graph, node, in_edges.get(node.node_id, []), projection) for node in targets)
    return sum(counts) > MAX_PARAMETERS


def _num_parameters(graph: GraphElements, node: Node, edges: list[Edge], projection: str) -> int:
    inputs = {f"{edge.edge_id}": Shape((graph.nodes[edge.source].output_size or 1,), Layout.VECTOR) for edge in edges}
    return Neuron.num_parameters(inputs, neuron_settings(node, projection))


def message_size(node: Node) -> int:
    """Return the width of every message into a node with a valid aggregation."""
    return aggregation(node.aggregation).message_size(node.attributes, node.output_size or 0)


# A tuple, because values of attributes may be unhashable.
_AGGREGATION_NAMES = tuple(AGGREGATIONS)


@dataclass(frozen=True)
class GraphProblem:
    """One error in a graph."""

    code: str  # stable, for programs
    message: str  # expected and actual value, for people
    node_id: int | None = None
    edge_id: int | None = None
    subgraph: str = ""  # name of the subgraph that holds the node or edge; empty: the graph itself


def is_plain(node: Node) -> bool:
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


def node_problems(node: Node) -> Iterator[GraphProblem]:
    """Yield the problems of a node that maps vectors."""
    size, name = node.output_size, node.node_id
    if size is None:
        yield at_node(name, "missing_output_size", "expected an output_size, got none")
    elif not 1 <= size <= MAX_WIDTH:
        message = f"expected an output_size in [1, {MAX_WIDTH:,}], got {shown(size)}"
        yield at_node(name, "invalid_output_size", message)
    yield from value_problems(node)
    if node.attributes:
        yield from _aggregation_problems(node)


def value_problems(node: Node) -> Iterator[GraphProblem]:
    """Yield the problems of a node's activation and bias."""
    name, is_input = node.node_id, node.node_type is NodeType.INPUT
    if reason := name_problem(node.activation_function, ACTIVATIONS, activation, "an activation"):
        yield at_node(name, "invalid_activation", reason)
    if not abs(node.bias) <= MAX_MAGNITUDE:
        yield at_node(name, "non_finite_bias", f"expected a finite bias of float32, got {node.bias}")
    # An input passes its data on: its activation and bias would be ignored.
    is_known = node.activation_function in ACTIVATIONS or ":" in node.activation_function
    if is_input and is_known and node.activation_function not in ("linear", "identity"):
        message = f"expected an input to be linear, got activation {shown(node.activation_function)}"
        yield at_node(name, "invalid_input_node", message)
    if is_input and abs(node.bias) <= MAX_MAGNITUDE and node.bias != 0.0:
        yield at_node(name, "invalid_input_node", f"expected an input to have bias 0.0, got {node.bias}")


def name_problem(name: Any, names: ExtensionPoint, load: Callable[[str], object], kind: str) -> str:
    """Return why an activation or aggregation cannot be used; empty where it can."""
    if isinstance(name, str) and name in names:
        return ""
    if not isinstance(name, str) or ":" not in name:
        return f"expected {kind} out of {listed(names)} or module:Class, got {shown(thawed(name))}"
    try:
        load(name)
    except ValueError as error:
        return str(error)
    return ""


def _aggregation_problems(node: Node) -> Iterator[GraphProblem]:
    name = node.node_id
    reason = name_problem(node.aggregation, AGGREGATIONS, aggregation, "an aggregation")
    if reason:
        yield at_node(name, "invalid_aggregation", reason)
    accepted = {} if reason else aggregation(node.aggregation).accepted()
    for key, value in node.attributes.items():
        if key == "aggregation":
            continue
        if key in NODE_ATTRIBUTES:
            if not NODE_ATTRIBUTES[key].accepts(value):
                yield at_node(name, "invalid_attribute", unexpected_value(NODE_ATTRIBUTES[key].expected, key, value))
        elif key not in accepted and key not in aggregation_parameters():
            yield at_node(name, "unknown_attribute", f"expected no attribute {shown(key)}")
        elif key in accepted and not accepted[key].accepts(value):
            yield at_node(name, "invalid_agg_param", unexpected_value(accepted[key].expected, key, value))
        elif not reason and key not in accepted:
            message = f"expected {node.aggregation} parameters out of {listed(accepted)}, got {shown(key)}"
            yield at_node(name, "invalid_agg_param", message)


def edge_problems(nodes: Mapping[int, Node], edge: Edge) -> Iterator[GraphProblem]:
    """Yield the problems of an edge."""
    name = edge.edge_id
    for end, node_id in (("source", edge.source), ("target", edge.target)):
        if node_id not in nodes:
            yield at_edge(name, "dangling_edge", f"expected a {end} among the nodes, got {node_id}")
    if edge.target in nodes and nodes[edge.target].node_type is NodeType.INPUT:
        yield at_edge(name, "edge_into_input", f"expected no edge into an input, got target {edge.target}")
    if not abs(edge.weight) <= MAX_MAGNITUDE:
        yield at_edge(name, "non_finite_weight", f"expected a finite weight of float32, got {edge.weight}")
    for key, value in edge.attributes.items():
        if key not in EDGE_ATTRIBUTES:
            message = f"expected attributes out of {listed(EDGE_ATTRIBUTES)}, got {shown(key)}"
            yield at_edge(name, "unknown_attribute", message)
        elif not EDGE_ATTRIBUTES[key].accepts(value):
            yield at_edge(name, "invalid_attribute", unexpected_value(EDGE_ATTRIBUTES[key].expected, key, value))


def at_node(node_id: int, code: str, message: str) -> GraphProblem:
    """Return a problem of a node."""
    return GraphProblem(code, f"node {node_id}: {message}", node_id=node_id)


def at_edge(edge_id: int, code: str, message: str) -> GraphProblem:
    """Return a problem of an edge."""
    return GraphProblem(code, f"edge {edge_id}: {message}", edge_id=edge_id)


def unexpected_value(expected: str, key: str, value: Any) -> str:
    """Return the line for a value that is not accepted."""
    return f"expected {expected} for {key}, got {shown(thawed(value))}"


def listed(names: Iterable[str]) -> str:
    """Return the names in order, for a message."""
    return ", ".join(sorted(names))


def missing_ends(graph: GraphElements) -> Iterator[GraphProblem]:
    """Yield a problem for a graph without inputs, and for one without outputs."""
    present = {node.node_type for node in graph.nodes.values()}
    for kind in (NodeType.INPUT, NodeType.OUTPUT):
        if kind not in present:
            yield GraphProblem(f"missing_{kind.value}", f"graph: expected at least one {kind.value} node, got none")


def duplicate_edges(graph: GraphElements) -> Iterator[GraphProblem]:
    """Yield a problem for every edge with the same ends and port as an earlier one."""
    if len({(edge.source, edge.target) for edge in graph.edges.values()}) == len(graph.edges):
        return
    first: dict[Any, int] = {}
    for edge_id, edge in sorted(graph.edges.items()):
        port = edge.attributes.get("port", INPUT_PORT)
        earlier = first.setdefault((edge.source, edge.target, str(port)), edge_id)
        if earlier != edge_id:
            message = f"expected one edge {edge.source} -> {edge.target}, got edge {earlier} before it"
            yield at_edge(edge_id, "duplicate_edge", message)


def unreachable_outputs(graph: GraphElements) -> Iterator[GraphProblem]:
    """Yield a problem for every output without a path of enabled edges from an input."""
    nodes, targets = graph.nodes, {}
    for edge in followed_edges(graph, ignore_recurrent=False):
        targets.setdefault(edge.source, []).append(edge.target)
    inputs = [node_id for node_id, node in nodes.items() if node.node_type is NodeType.INPUT]
    fed = reachable(inputs, lambda node_id: targets.get(node_id, ()))
    for node_id, node in sorted(nodes.items()):
        if node.node_type is NodeType.OUTPUT and node_id not in fed:
            message = "expected a path of enabled edges from an input to this output, got none"
            yield at_node(node_id, "unreachable_output", message)
