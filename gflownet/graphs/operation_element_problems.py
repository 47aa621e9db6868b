"""Problems of single nodes and edges of an operation graph that need no shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gflownet.graphs.element_problems import (
    GraphProblem,
    at_edge,
    at_node,
    edge_problems,
    listed,
    node_problems,
    unexpected_value,
    value_problems,
)
from gflownet.graphs.elements import DEFAULT_WEIGHT, Edge, GraphElements, Node, NodeType
from gflownet.graphs.operation import operation, operation_errors
from gflownet.graphs.operation_shapes import ALIGNMENTS, AXES, MERGES, inner_ports, input_shape
from gflownet.graphs.subgraphs import RecursiveSubgraphError, UnknownSubgraphError
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT
from gflownet.operations.tensor_shape import Layout
from gflownet.operations.values import shown, thawed
from gflownet.operations.vocabulary import BOOL, NODE_ATTRIBUTES, Parameter, activation

MAX_REPEAT = 1000
DATA_TYPES = ("float", "token")
REPEAT = Parameter(
    f"an int in [1, {MAX_REPEAT:,}]",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_REPEAT,
)
_PORT = Parameter("a str", lambda value: isinstance(value, str))
_INPUT_ATTRIBUTES: Mapping[str, tuple[str, Parameter]] = {
    "layout": ("invalid_layout", Parameter(f"one of {', '.join(Layout)}", lambda value: value in tuple(Layout))),
    "dtype": ("invalid_dtype", Parameter(f"one of {', '.join(DATA_TYPES)}", lambda value: value in DATA_TYPES)),
    "port": ("invalid_attribute", _PORT),
}
_MERGE = Parameter(f"an aggregation out of {', '.join(MERGES)}", lambda value: value in MERGES)
# A tuple, because values of attributes may be unhashable.
_ALIGN = Parameter(f"one of {', '.join(ALIGNMENTS)}", lambda value: value in tuple(ALIGNMENTS))
_MERGE_ATTRIBUTES: Mapping[str, tuple[str, Parameter]] = {
    "aggregation": ("invalid_aggregation", _MERGE),
    "axis": ("invalid_axis", Parameter(f"one of {', '.join(AXES)}", lambda value: value in AXES)),
    "align": ("invalid_align", _ALIGN),
    "edge_weight": ("invalid_attribute", BOOL),
}
_SUBGRAPH_ATTRIBUTES: Mapping[str, tuple[str, Parameter]] = {
    **_MERGE_ATTRIBUTES,
    "repeat": ("invalid_repeat", REPEAT),
    "share": ("invalid_share", BOOL),
}


def operation_node_problems(graph: GraphElements, node: Node, *, is_subgraph: bool) -> Iterator[GraphProblem]:
    """Yield the problems of a node; the inputs of a subgraph need no shape."""
    name = node.node_id
    if node.node_type is NodeType.INPUT:
        yield from value_problems(node)
        yield from _attribute_problems(node, _INPUT_ATTRIBUTES, ("shape",), "an input")
        yield from _shape_problems(node, is_subgraph=is_subgraph)
        if is_subgraph and node.attributes.get("port") == WEIGHT_PORT:
            message = f"expected a port of a subgraph other than {WEIGHT_PORT}, got {WEIGHT_PORT}"
            yield at_node(name, "invalid_attribute", message)
        return
    if "operation" not in node.attributes and "subgraph" not in node.attributes:
        remaining = {key: value for key, value in node.attributes.items() if key != "align"}
        yield from node_problems(replace(node, attributes=remaining))
        if "align" in node.attributes and not _ALIGN.accepts(value := node.attributes["align"]):
            yield at_node(node.node_id, "invalid_align", unexpected_value(_ALIGN.expected, "align", value))
        return
    yield from value_problems(node)
    yield from _state_problems(node)
    if "axis" in node.attributes and node.aggregation != "concat":
        yield at_node(name, "invalid_axis", f"expected axis with aggregation concat, got {shown(node.aggregation)}")
    if node.output_size is not None:
        yield at_node(name, "unused_output_size", f"expected no output_size of an operation, got {node.output_size}")
    if node.bias != 0.0 and not node.attributes.get("edge_weight"):
        yield at_node(name, "unused_bias", f"expected bias 0.0 without edge_weight, got {node.bias}")
    if "subgraph" in node.attributes:
        yield from _attribute_problems(node, _SUBGRAPH_ATTRIBUTES, ("subgraph",), "a subgraph")
        yield from _subgraph_problems(graph, node)
        return
    yield from _attribute_problems(node, _MERGE_ATTRIBUTES, ("operation",), "an operation")
    errors = [*operation_errors(node.attributes["operation"])]
    for code, message in errors:
        yield at_node(name, code, message)
    if not any(code in ("invalid_operation", "unknown_operation") for code, _ in errors):
        yield from _port_problems(graph, node, operation(node.attributes["operation"]["name"]).ports)


def operation_edge_problems(graph: GraphElements, edge: Edge) -> Iterator[GraphProblem]:
    """Yield the problems of an edge."""
    nodes, attributes = (
        graph.nodes,
        {key: value for key, value in edge.attributes.items() if key not in ("port", "operation")},
    )
    yield from edge_problems(nodes, Edge(edge.edge_id, edge.source, edge.target, edge.weight, edge.enabled, attributes))
    if "port" in edge.attributes and not _PORT.accepts(edge.attributes["port"]):
        message = unexpected_value(_PORT.expected, "port", edge.attributes["port"])
        yield at_edge(edge.edge_id, "invalid_attribute", message)
    if "operation" in edge.attributes:
        message = "expected operations on nodes, got one on an edge: call edge_operations_to_nodes first"
        yield at_edge(edge.edge_id, "operation_on_edge", message)
    target = nodes.get(edge.target)
    if target is None or edge.weight == DEFAULT_WEIGHT or target.node_type is NodeType.INPUT:
        return
    if edge.attributes.get("port") == WEIGHT_PORT and "operation" in target.attributes:  # tied: not scaled
        message = f"expected weight {DEFAULT_WEIGHT} into the port {WEIGHT_PORT}, got {edge.weight}"
        yield at_edge(edge.edge_id, "unused_weight", message)
    elif {"operation", "subgraph"} & target.attributes.keys() and not target.attributes.get("edge_weight"):
        message = f"expected weight {DEFAULT_WEIGHT} without edge_weight of node {edge.target}, got {edge.weight}"
        yield at_edge(edge.edge_id, "unused_weight", message)


def _attribute_problems(
    node: Node, accepted: Mapping[str, tuple[str, Parameter]], other_names: tuple[str, ...], kind: str
) -> Iterator[GraphProblem]:
    for key, value in node.attributes.items():
        if key in accepted:
            code, parameter = accepted[key]
            if not parameter.accepts(value):
                message = unexpected_value(parameter.expected, key, value).replace(" for aggregation,", ",")
                yield at_node(node.node_id, code, message)
        elif key in NODE_ATTRIBUTES:
            if not NODE_ATTRIBUTES[key].accepts(value):
                message = unexpected_value(NODE_ATTRIBUTES[key].expected, key, value)
                yield at_node(node.node_id, "invalid_attribute", message)
        elif key not in other_names:
            names = listed([*accepted, *other_names])
            message = f"expected attributes of {kind} out of {names}, got {shown(key)}"
            yield at_node(node.node_id, "unknown_attribute", message)


def _shape_problems(node: Node, *, is_subgraph: bool) -> Iterator[GraphProblem]:
    shape, size = node.attributes.get("shape"), node.output_size
    if shape is not None and size is not None and thawed(shape) != [size]:
        message = f"expected a shape or an output_size, got {shown(thawed(shape))} and {size}"
        yield at_node(node.node_id, "invalid_shape", message)
        return
    if shape is None and size is None:
        if not is_subgraph:
            yield at_node(node.node_id, "missing_shape", "expected a shape of the input, got none")
        return
    try:
        input_shape(node)
    except ValueError as error:
        if not any(True for _ in _attribute_problems(node, _INPUT_ATTRIBUTES, ("shape",), "an input")):
            yield at_node(node.node_id, "invalid_shape", str(error))


def _state_problems(node: Node) -> Iterator[GraphProblem]:
    """Yield a problem for an activation with a state between time steps."""
    try:
        has_state = activation(node.activation_function).max_parameters(1) > 0
    except ValueError:
        return
    if has_state:
        name = node.activation_function
        message = f"expected an activation without state (use an operation lstm, gru or rhn), got {name}"
        yield at_node(node.node_id, "invalid_activation", message)


def _subgraph_problems(graph: GraphElements, node: Node) -> Iterator[GraphProblem]:
    if "operation" in node.attributes:
        return  # reported as an unknown attribute of a subgraph
    try:
        inner = graph.subgraph(node.attributes["subgraph"])
    except UnknownSubgraphError as error:
        yield at_node(node.node_id, "unknown_subgraph", str(error))
    except RecursiveSubgraphError as error:
        yield at_node(node.node_id, "recursive_subgraph", str(error))
    except ValueError as error:
        yield at_node(node.node_id, "invalid_subgraph", str(error))
    else:
        names = [
            each.attributes.get("port", INPUT_PORT) for each in inner.nodes.values() if each.node_type is NodeType.INPUT
        ]
        if not names or not all(isinstance(name, str) for name in names):
            return  # reported in the subgraph
        if len(set(names)) < len(names):
            message = f"expected different ports of the inputs of the subgraph, got {', '.join(names)}"
            yield at_node(node.node_id, "duplicate_port", message)
        else:
            yield from _port_problems(graph, node, tuple(inner_ports(inner)))
            if INPUT_PORT not in names and node.attributes.get("repeat", 1) != 1:
                message = f"expected a port {INPUT_PORT} of a repeated subgraph, got {', '.join(names)}"
                yield at_node(node.node_id, "repeat_mismatch", message)


def _port_problems(graph: GraphElements, node: Node, ports: tuple[str, ...]) -> Iterator[GraphProblem]:
    """Yield the unknown ports of a node's in-edges, and the ports without an edge."""
    # Edges from missing nodes feed a port, too: they are reported once, as edges.
    into = [edge for _, edge in sorted(graph.edges.items()) if edge.enabled and edge.target == node.node_id]
    used = [edge.attributes.get("port", INPUT_PORT) for edge in into]
    if not all(isinstance(port, str) for port in used):
        return  # reported as an invalid attribute of the edge
    fed = dict.fromkeys(used)
    names = ", ".join(ports) or "none"
    for port in fed:
        if port not in ports:
            yield at_node(node.node_id, "unknown_port", f"expected edges into ports out of {names}, got {shown(port)}")
    for port in ports:
        if port not in fed:
            yield at_node(node.node_id, "missing_port", f"expected an edge into the port {port}, got none")
