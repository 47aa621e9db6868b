"""Problems of single nodes and edges that need no shapes, and problems of every graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gflownet.graphs.elements import (
    DEFAULT_WEIGHT,
    Edge,
    GraphElements,
    Node,
    NodeKind,
    NodeType,
    inner_ports,
    input_shape,
)
from gflownet.graphs.merges import ALIGNMENTS, MERGES
from gflownet.graphs.node_link import SubgraphError
from gflownet.graphs.operation import operation_errors
from gflownet.graphs.ordering import followed_edges, reachable
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT
from gflownet.operations.tensor_shape import AXES, Layout
from gflownet.operations.values import shown, thawed
from gflownet.operations.vocabulary import (
    ACTIVATIONS,
    AGGREGATIONS,
    BOOL,
    EDGE_ATTRIBUTES,
    MAX_WIDTH,
    NODE_ATTRIBUTES,
    POSITIVE_INT,
    Parameter,
    activation,
    aggregation,
    aggregation_parameters,
)
from gflownet.plugins import ExtensionPoint

# Edge weights and biases become float32; a larger float would be infinity there.
MAX_MAGNITUDE = (2 - 2**-23) * 2.0**127
MAX_REPEAT = 1000
MAX_SHOWN = 8  # ports in a message
DATA_TYPES = ("float", "token")
REPEAT = Parameter(
    f"an int in [1, {MAX_REPEAT:,}]",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_REPEAT,
)
_PORT = Parameter("a str", lambda value: isinstance(value, str))
_Accepted = Mapping[str, tuple[str, Parameter]]  # code of the problem and parameter, by attribute
_INPUT_ATTRIBUTES: _Accepted = {
    "layout": ("invalid_layout", Parameter(f"one of {', '.join(Layout)}", lambda value: value in tuple(Layout))),
    "dtype": ("invalid_dtype", Parameter(f"one of {', '.join(DATA_TYPES)}", lambda value: value in DATA_TYPES)),
    "port": ("invalid_attribute", _PORT),
}
_MERGE = Parameter(f"an aggregation out of {', '.join(MERGES)}", lambda value: value in MERGES)
# A tuple, because values of attributes may be unhashable.
_ALIGN = Parameter(f"one of {', '.join(ALIGNMENTS)}", lambda value: value in tuple(ALIGNMENTS))
_POSITIONS = Parameter(
    "a list of 1 to 3 sizes >= 1",
    lambda value: isinstance(value, tuple | list) and 1 <= len(value) <= 3 and all(map(POSITIVE_INT.accepts, value)),
)
_MERGE_ATTRIBUTES: _Accepted = {
    "aggregation": ("invalid_aggregation", _MERGE),
    "axis": ("invalid_axis", Parameter(f"one of {', '.join(AXES)}", lambda value: value in AXES)),
    "align": ("invalid_align", _ALIGN),
    "positions": ("invalid_attribute", _POSITIONS),
    "edge_weight": ("invalid_attribute", BOOL),
}
_SUBGRAPH_ATTRIBUTES: _Accepted = {
    **_MERGE_ATTRIBUTES,
    "repeat": ("invalid_repeat", REPEAT),
    "share": ("invalid_share", BOOL),
}
_NAME = Parameter("a name, a text", lambda value: isinstance(value, str) and value != "")
_OPERATION_ATTRIBUTES: _Accepted = {**_MERGE_ATTRIBUTES, "share": ("invalid_share", _NAME)}
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
        and (not attributes or ({*attributes} == {"aggregation"} and attributes["aggregation"] in _AGGREGATION_NAMES))
    )


def node_problems(graph: GraphElements, node: Node, *, is_vectors: bool, is_subgraph: bool) -> Iterator[GraphProblem]:
    """Yield the problems of a node.

    Args:
        graph: of the node.
        node: an input, an operation, a subgraph, or, with none of them, a neuron.
        is_vectors: whether the graph has neurons only; its inputs have their fields.
        is_subgraph: whether it is a subgraph, whose inputs need no shape.
    """
    kind = node.kind
    if is_vectors or kind is NodeKind.NEURON:
        yield from _neuron_problems(node, is_vectors=is_vectors)
        return
    yield from _value_problems(node)
    if kind is NodeKind.INPUT:
        yield from _attribute_problems(node, _INPUT_ATTRIBUTES, ("shape",), "an input")
        yield from _shape_problems(node, is_subgraph=is_subgraph)
        if is_subgraph and node.port == WEIGHT_PORT:
            message = f"expected a port of a subgraph other than {WEIGHT_PORT}, got {WEIGHT_PORT}"
            yield _at_node(node, "invalid_attribute", message)
        return
    yield from _unused_problems(node)
    if kind is NodeKind.SUBGRAPH:
        yield from _attribute_problems(node, _SUBGRAPH_ATTRIBUTES, ("subgraph",), "a subgraph")
        yield from _subgraph_problems(graph, node)
        return
    yield from _attribute_problems(node, _OPERATION_ATTRIBUTES, ("operation",), "an operation")
    try:
        applied = node.applied
    except ValueError:
        errors = [*operation_errors(node.operation)]
        yield from (_at_node(node, code, message) for code, message, _ in errors)
        row = errors[-1][2]
        ports = () if row is None else row.required_ports(node.operation)
    else:
        row, ports = applied.row, applied.required_ports
    if row is not None:
        yield from _port_problems(graph, node, ports, row.optional_ports)


def _neuron_problems(node: Node, *, is_vectors: bool) -> Iterator[GraphProblem]:
    size = node.output_size
    if size is None:
        yield _at_node(node, "missing_output_size", "expected an output_size, got none")
    elif not 1 <= size <= MAX_WIDTH:
        yield _at_node(node, "invalid_output_size", f"expected an output_size in [1, {MAX_WIDTH:,}], got {shown(size)}")
    yield from _value_problems(node)
    reason = _name_problem(node.aggregation, AGGREGATIONS, aggregation, "an aggregation")
    if reason:
        yield _at_node(node, "invalid_aggregation", reason)
    own = {} if reason else aggregation(node.aggregation).accepted()
    accepted = {key: ("invalid_agg_param", parameter) for key, parameter in own.items()}
    accepted |= {} if is_vectors else {"align": ("invalid_align", _ALIGN)}
    others = [key for key in node.attributes if key in aggregation_parameters() and key not in own]
    yield from _attribute_problems(node, accepted, ("aggregation", *others), "a neuron")
    for key in others if not reason else ():
        message = f"expected {node.aggregation} parameters out of {listed(own)}, got {shown(key)}"
        yield _at_node(node, "invalid_agg_param", message)


def _value_problems(node: Node) -> Iterator[GraphProblem]:
    """Yield the problems of a node's activation and bias."""
    is_input = node.node_type is NodeType.INPUT
    if reason := _name_problem(node.activation_function, ACTIVATIONS, activation, "an activation"):
        yield _at_node(node, "invalid_activation", reason)
    if not abs(node.bias) <= MAX_MAGNITUDE:
        yield _at_node(node, "non_finite_bias", f"expected a finite bias of float32, got {node.bias}")
    if not is_input:
        return
    # An input passes its data on: its activation and bias would be ignored.
    is_known = node.activation_function in ACTIVATIONS or ":" in node.activation_function
    if is_known and node.activation_function not in ("linear", "identity"):
        message = f"expected an input to be linear, got activation {shown(node.activation_function)}"
        yield _at_node(node, "invalid_input_node", message)
    if abs(node.bias) <= MAX_MAGNITUDE and node.bias != 0.0:
        yield _at_node(node, "invalid_input_node", f"expected an input to have bias 0.0, got {node.bias}")


def _name_problem(name: Any, names: ExtensionPoint, load: Callable[[str], object], kind: str) -> str:
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


def _unused_problems(node: Node) -> Iterator[GraphProblem]:
    """Yield the problems of fields that an operation or a subgraph would ignore."""
    name = node.activation_function
    if not _name_problem(name, ACTIVATIONS, activation, "") and activation(name).max_parameters(1) > 0:
        message = f"expected an activation without state (use an operation lstm, gru or rhn), got {name}"
        yield _at_node(node, "invalid_activation", message)
    if "axis" in node.attributes and node.aggregation != "concat":
        yield _at_node(node, "invalid_axis", f"expected axis with aggregation concat, got {shown(node.aggregation)}")
    if node.output_size is not None:
        yield _at_node(node, "unused_output_size", f"expected no output_size of an operation, got {node.output_size}")
    if node.bias != 0.0 and not node.has_edge_weights:
        yield _at_node(node, "unused_bias", f"expected bias 0.0 without edge_weight, got {node.bias}")


def _attribute_problems(
    node: Node, accepted: _Accepted, other_names: tuple[str, ...], kind: str
) -> Iterator[GraphProblem]:
    for key, value in node.attributes.items():
        code, parameter = accepted.get(key) or ("invalid_attribute", NODE_ATTRIBUTES.get(key))
        if parameter is not None and not parameter.accepts(value):
            message = unexpected_value(parameter.expected, key, value).replace(" for aggregation,", ",")
            yield _at_node(node, code, message)
        elif parameter is None and key not in other_names:
            names = listed([*accepted, *other_names])
            message = f"expected attributes of {kind} out of {names}, got {shown(key)}"
            yield _at_node(node, "unknown_attribute", message)


def _shape_problems(node: Node, *, is_subgraph: bool) -> Iterator[GraphProblem]:
    shape, size = node.attributes.get("shape"), node.output_size
    if shape is not None and size is not None and thawed(shape) != [size]:
        message = f"expected a shape or an output_size, got {shown(thawed(shape))} and {size}"
        yield _at_node(node, "invalid_shape", message)
        return
    if shape is None and size is None:
        if not is_subgraph:
            yield _at_node(node, "missing_shape", "expected a shape of the input, got none")
        return
    try:
        input_shape(node)
    except ValueError as error:
        if not any(True for _ in _attribute_problems(node, _INPUT_ATTRIBUTES, ("shape",), "an input")):
            yield _at_node(node, "invalid_shape", str(error))


def _subgraph_problems(graph: GraphElements, node: Node) -> Iterator[GraphProblem]:
    if node.operation is not None:
        return  # reported as an unknown attribute of a subgraph
    try:
        inner = graph.subgraph(node.subgraph)
    except ValueError as error:
        yield _at_node(node, error.code if isinstance(error, SubgraphError) else "invalid_subgraph", str(error))
        return
    inputs = [each for each in inner.nodes.values() if each.node_type is NodeType.INPUT]
    names = [each.port for each in inputs]
    if not names or not all(isinstance(name, str) for name in names):
        return  # reported in the subgraph
    if len(set(names)) < len(names):
        message = f"expected different ports of the inputs of the subgraph, got {', '.join(names)}"
        yield _at_node(node, "duplicate_port", message)
        return
    yield from _port_problems(graph, node, tuple(inner_ports(inner)))
    if INPUT_PORT not in names and node.repeat != 1:
        message = f"expected a port {INPUT_PORT} of a repeated subgraph, got {', '.join(names)}"
        yield _at_node(node, "repeat_mismatch", message)


def _port_problems(
    graph: GraphElements, node: Node, ports: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Iterator[GraphProblem]:
    """Yield the unknown ports of a node's in-edges, and the ports without an edge."""
    # Edges from missing nodes feed a port, too: they are reported once, as edges.
    used = [edge.port for _, edge in sorted(graph.edges.items()) if edge.enabled and edge.target == node.node_id]
    if not {*map(type, used)} <= {str}:
        return  # reported as an invalid attribute of the edge
    fed = dict.fromkeys(used)
    accepted = (*ports, *optional)
    if {*ports} <= fed.keys() <= {*accepted}:
        return
    names = ", ".join([*accepted[:MAX_SHOWN], *(["..."] if len(accepted) > MAX_SHOWN else [])]) or "none"
    for port in fed:
        if port not in accepted:
            yield _at_node(node, "unknown_port", f"expected edges into ports out of {names}, got {shown(port)}")
    for port in ports:
        if port not in fed:
            yield _at_node(node, "missing_port", f"expected an edge into the port {port}, got none")


def edge_problems(graph: GraphElements, edge: Edge, *, is_vectors: bool) -> Iterator[GraphProblem]:
    """Yield the problems of an edge."""
    target = graph.nodes.get(edge.target)
    for end, node_id in (("source", edge.source), ("target", edge.target)):
        if node_id not in graph.nodes:
            yield at_edge(edge, "dangling_edge", f"expected a {end} among the nodes, got {node_id}")
    if target is not None and target.node_type is NodeType.INPUT:
        yield at_edge(edge, "edge_into_input", f"expected no edge into an input, got target {edge.target}")
    if not abs(edge.weight) <= MAX_MAGNITUDE:
        yield at_edge(edge, "non_finite_weight", f"expected a finite weight of float32, got {edge.weight}")
    accepted = EDGE_ATTRIBUTES if is_vectors else {**EDGE_ATTRIBUTES, "port": _PORT}
    for key, value in edge.attributes.items():
        if key == "operation":
            message = "expected operations on nodes, got one on an edge: call edge_operations_to_nodes first"
            yield at_edge(edge, "operation_on_edge", message)
        elif key not in accepted:
            message = f"expected attributes out of {listed(accepted)}, got {shown(key)}"
            yield at_edge(edge, "unknown_attribute", message)
        elif not accepted[key].accepts(value):
            yield at_edge(edge, "invalid_attribute", unexpected_value(accepted[key].expected, key, value))
    if target is None or edge.weight == DEFAULT_WEIGHT or target.kind in (NodeKind.NEURON, NodeKind.INPUT):
        return
    is_tied = edge.port == WEIGHT_PORT and target.kind is NodeKind.OPERATION
    if is_tied or not target.has_edge_weights:
        reason = f"into the port {WEIGHT_PORT}" if is_tied else f"without edge_weight of node {edge.target}"
        yield at_edge(edge, "unused_weight", f"expected weight {DEFAULT_WEIGHT} {reason}, got {edge.weight}")


def _at_node(node: Node, code: str, message: str) -> GraphProblem:
    return GraphProblem(code, f"node {node.node_id}: {message}", node_id=node.node_id)


def at_edge(edge: Edge, code: str, message: str) -> GraphProblem:
    """Return a problem of an edge."""
    return GraphProblem(code, f"edge {edge.edge_id}: {message}", edge_id=edge.edge_id)


def unexpected_value(expected: str, key: str, value: Any) -> str:
    """Return the line for a value that is not accepted."""
    return f"expected {expected} for {key}, got {shown(thawed(value))}"


def listed(names: Iterable[str]) -> str:
    """Return the names in order, for a message."""
    return ", ".join(sorted(names))


def end_problems(graph: GraphElements, *, is_subgraph: bool) -> Iterator[GraphProblem]:
    """Yield a problem for a graph without inputs or outputs, and for a subgraph with several outputs."""
    types = [node.node_type for node in graph.nodes.values()]
    for kind in (NodeType.INPUT,) if is_subgraph else (NodeType.INPUT, NodeType.OUTPUT):
        if kind not in types:
            yield GraphProblem(f"missing_{kind.value}", f"graph: expected at least one {kind.value} node, got none")
    if is_subgraph and (count := types.count(NodeType.OUTPUT)) != 1:
        yield GraphProblem("subgraph_outputs", f"graph: expected exactly one output node in a subgraph, got {count}")


def duplicate_edges(graph: GraphElements) -> Iterator[GraphProblem]:
    """Yield a problem for every edge with the same ends and port as an earlier one."""
    if len({(edge.source, edge.target) for edge in graph.edges.values()}) == len(graph.edges):
        return
    first: dict[Any, int] = {}
    for edge_id, edge in sorted(graph.edges.items()):
        port = edge.port
        earlier = first.setdefault((edge.source, edge.target, str(port)), edge_id)
        if earlier != edge_id:
            message = f"expected one edge {edge.source} -> {edge.target}, got edge {earlier} before it"
            yield at_edge(edge, "duplicate_edge", message)


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
            yield _at_node(node, "unreachable_output", message)
