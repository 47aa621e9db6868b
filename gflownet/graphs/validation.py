"""Everything that keeps a computation graph from being translated, found in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gflownet.graphs.elements import Edge, Node, NodeType, shown, thawed
from gflownet.graphs.limits import MAX_MAGNITUDE, MAX_PARAMETERS, has_too_many_parameters, message_size
from gflownet.graphs.ordering import reachable
from gflownet.graphs.vocabulary import (
    ACTIVATIONS,
    AGGREGATION_PARAMETERS,
    AGGREGATIONS,
    EDGE_ATTRIBUTES,
    MAX_WIDTH,
    NODE_ATTRIBUTES,
    TRANSLATION_SETTINGS,
)

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph


# A tuple, because values of attributes may have no hash.
_AGGREGATION_NAMES = tuple(AGGREGATIONS)


@dataclass(frozen=True)
class GraphProblem:
    """One thing that is wrong with a graph."""

    code: str  # stable, for programs
    message: str  # what was expected and what was got, for people
    node_id: int | None = None
    edge_id: int | None = None


def graph_problems(graph: ComputationGraph) -> list[GraphProblem]:
    """Every problem of the graph: of the whole, then node by node, then edge by edge, by ascending id.

    Cycles are no problem: the edges of detect_cycles() are read one time step late.
    """
    return _problems(graph, own_projection(graph), unreachable=[*_unreachable_outputs(graph)])


def blocking_problems(graph: ComputationGraph, projection: str | None = None) -> list[GraphProblem]:
    """The problems that keep a graph from being translated: all but outputs that no input reaches.

    `projection` overrides the graph's own setting.
    """
    return _problems(graph, projection or own_projection(graph), unreachable=[])


def _problems(graph: ComputationGraph, projection: str, *, unreachable: list[GraphProblem]) -> list[GraphProblem]:
    problems = [*_missing_ends(graph), *_setting_problems(graph)]
    nodes, edges = dict(graph.nodes), graph.edges.values()
    # Every translation comes through here, cached or not: what is plainly sound is passed over first, at a third of the
    # cost of a whole check.
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
    # Sizes can only be compared where all of them are valid.
    return problems if len(problems) > len(unreachable) else [*problems, *_size_problems(graph, projection)]


def own_projection(graph: ComputationGraph) -> str:
    """The projection in a graph's translation settings, auto where there is none."""
    settings = graph.config.get("translation")
    return settings.get("projection", "auto") if isinstance(settings, Mapping) else "auto"


def _missing_ends(graph: ComputationGraph) -> Iterator[GraphProblem]:
    node_types = {node.node_type for node in graph.nodes.values()}
    if NodeType.INPUT not in node_types:
        yield GraphProblem("missing_input", "graph: expected at least one input node, got none")
    if NodeType.OUTPUT not in node_types:
        yield GraphProblem("missing_output", "graph: expected at least one output node, got none")


def _setting_problems(graph: ComputationGraph) -> Iterator[GraphProblem]:
    if "translation" not in graph.config:
        return
    settings, code = graph.config["translation"], "invalid_translation_setting"
    if not isinstance(settings, Mapping):
        yield GraphProblem(code, f"graph: expected an object under translation, got {shown(settings)}")
        return
    for key, value in settings.items():
        if key not in TRANSLATION_SETTINGS:
            known = _listed(TRANSLATION_SETTINGS)
            yield GraphProblem(code, f"graph: expected translation settings out of {known}, got {shown(key)}")
        elif not TRANSLATION_SETTINGS[key].accepts(value):
            yield GraphProblem(code, _expected("graph", TRANSLATION_SETTINGS[key].expected, key, value))


def _size_problems(graph: ComputationGraph, projection: str) -> Iterator[GraphProblem]:
    if projection == "never":
        yield from _unequal_widths(graph)
    if has_too_many_parameters(graph, projection):
        yield GraphProblem("too_many_parameters", f"graph: expected at most {MAX_PARAMETERS:,} parameters, got more")


def _unequal_widths(graph: ComputationGraph) -> Iterator[GraphProblem]:
    for edge_id, edge in sorted(graph.edges.items()):
        node, size = graph.nodes[edge.target], graph.nodes[edge.source].output_size
        expected = message_size(node.aggregation, node.attributes, node.output_size or 0)
        if edge.enabled and size != expected:
            message = (
                f"edge {edge_id}: expected equal widths with projection=never, "
                f"got {size} from node {edge.source} and {expected} at node {edge.target}"
            )
            yield GraphProblem("unequal_widths", message, edge_id=edge_id)


def _is_plain(node: Node) -> bool:
    """Whether a node is sound by its fields alone."""
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
    size = node.output_size
    if size is None:
        yield GraphProblem("missing_output_size", f"{_name(node)}: expected an output_size, got none", node.node_id)
    elif not 1 <= size <= MAX_WIDTH:
        message = f"{_name(node)}: expected an output_size in [1, {MAX_WIDTH:,}], got {shown(size)}"
        yield GraphProblem("invalid_output_size", message, node.node_id)
    if node.activation_function not in ACTIVATIONS:
        known = _listed(ACTIVATIONS)
        message = f"{_name(node)}: expected an activation out of {known}, got {shown(node.activation_function)}"
        yield GraphProblem("invalid_activation", message, node.node_id)
    if not abs(node.bias) <= MAX_MAGNITUDE:
        message = f"{_name(node)}: expected a finite bias of float32, got {node.bias}"
        yield GraphProblem("non_finite_bias", message, node.node_id)
    if node.node_type is NodeType.INPUT:
        yield from _input_problems(node, _name(node))
    if node.attributes:
        yield from _aggregation_problems(node, _name(node))


def _name(node: Node) -> str:
    return f"node {node.node_id}"


def _input_problems(node: Node, name: str) -> Iterator[GraphProblem]:
    """An input passes its data on; whatever else it asks for would be ignored."""
    if node.activation_function in ACTIVATIONS and node.activation_function not in ("linear", "identity"):
        message = f"{name}: expected an input to be linear, got activation {shown(node.activation_function)}"
        yield GraphProblem("invalid_input_node", message, node.node_id)
    if abs(node.bias) <= MAX_MAGNITUDE and node.bias != 0.0:
        message = f"{name}: expected an input to have bias 0.0, got {node.bias}"
        yield GraphProblem("invalid_input_node", message, node.node_id)


def _aggregation_problems(node: Node, name: str) -> Iterator[GraphProblem]:
    aggregation = node.aggregation
    known = isinstance(aggregation, str) and aggregation in AGGREGATIONS
    if not known:
        message = f"{name}: expected an aggregation out of {_listed(AGGREGATIONS)}, got {shown(thawed(aggregation))}"
        yield GraphProblem("invalid_aggregation", message, node.node_id)
    accepted = AGGREGATIONS[aggregation] if known else {}
    for key, value in node.attributes.items():
        if key == "aggregation":
            continue
        if key in NODE_ATTRIBUTES:
            if not NODE_ATTRIBUTES[key].accepts(value):
                message = _expected(name, NODE_ATTRIBUTES[key].expected, key, value)
                yield GraphProblem("invalid_attribute", message, node.node_id)
        elif key not in AGGREGATION_PARAMETERS:
            yield GraphProblem("unknown_attribute", f"{name}: expected no attribute {shown(key)}", node.node_id)
        elif key in accepted and not accepted[key].accepts(value):
            message = _expected(name, accepted[key].expected, key, value)
            yield GraphProblem("invalid_agg_param", message, node.node_id)
        elif known and key not in accepted:
            message = f"{name}: expected {aggregation} parameters out of {_listed(accepted)}, got {shown(key)}"
            yield GraphProblem("invalid_agg_param", message, node.node_id)


def _edge_problems(nodes: Mapping[int, Node], edge: Edge) -> Iterator[GraphProblem]:
    edge_id = edge.edge_id
    if edge.source not in nodes:
        message = f"edge {edge_id}: expected a source among the nodes, got {edge.source}"
        yield GraphProblem("dangling_edge", message, edge_id=edge_id)
    if edge.target not in nodes:
        message = f"edge {edge_id}: expected a target among the nodes, got {edge.target}"
        yield GraphProblem("dangling_edge", message, edge_id=edge_id)
    elif nodes[edge.target].node_type is NodeType.INPUT:
        message = f"edge {edge_id}: expected no edge into an input, got target {edge.target}"
        yield GraphProblem("edge_into_input", message, edge_id=edge_id)
    if not abs(edge.weight) <= MAX_MAGNITUDE:
        message = f"edge {edge_id}: expected a finite weight of float32, got {edge.weight}"
        yield GraphProblem("non_finite_weight", message, edge_id=edge_id)
    for key, value in edge.attributes.items():
        if key not in EDGE_ATTRIBUTES:
            message = f"edge {edge_id}: expected attributes out of {_listed(EDGE_ATTRIBUTES)}, got {shown(key)}"
            yield GraphProblem("unknown_attribute", message, edge_id=edge_id)
        elif not EDGE_ATTRIBUTES[key].accepts(value):
            message = _expected(f"edge {edge_id}", EDGE_ATTRIBUTES[key].expected, key, value)
            yield GraphProblem("invalid_attribute", message, edge_id=edge_id)


def _duplicate_edges(graph: ComputationGraph) -> Iterator[GraphProblem]:
    if len({(edge.source, edge.target) for edge in graph.edges.values()}) == len(graph.edges):
        return
    first: dict[tuple[int, int], int] = {}
    for edge_id, edge in sorted(graph.edges.items()):
        earlier = first.setdefault((edge.source, edge.target), edge_id)
        if earlier != edge_id:
            message = f"edge {edge_id}: expected one edge {edge.source} -> {edge.target}, got edge {earlier} before it"
            yield GraphProblem("duplicate_edge", message, edge_id=edge_id)


def _unreachable_outputs(graph: ComputationGraph) -> Iterator[GraphProblem]:
    fed = reachable(
        graph.input_node_ids,
        lambda node_id: [e.target for e in graph.out_edges(node_id) if e.enabled and e.target in graph.nodes],
    )
    for node_id in graph.output_node_ids:
        if node_id not in fed:
            message = f"node {node_id}: expected a path of enabled edges from an input to this output, got none"
            yield GraphProblem("unreachable_output", message, node_id)


def _expected(name: str, expected: str, key: str, value: Any) -> str:
    return f"{name}: expected {expected} for {key}, got {shown(thawed(value))}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
