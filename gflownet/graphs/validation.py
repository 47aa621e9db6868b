"""Everything that keeps a computation graph from being translated, found in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from gflownet.graphs.elements import Edge, Node, NodeType, thawed
from gflownet.graphs.ordering import reachable
from gflownet.graphs.vocabulary import (
    ACTIVATIONS,
    AGGREGATION_PARAMETERS,
    AGGREGATIONS,
    EDGE_ATTRIBUTES,
    NODE_ATTRIBUTES,
)

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph


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
    problems = list(_missing_ends(graph))
    for node_id in sorted(graph.nodes):
        problems += _node_problems(graph.nodes[node_id])
    problems += _unreachable_outputs(graph)
    for edge_id in sorted(graph.edges):
        problems += _edge_problems(graph, graph.edges[edge_id])
    return problems + list(_duplicate_edges(graph))


def _missing_ends(graph: ComputationGraph) -> Iterator[GraphProblem]:
    if not graph.input_node_ids:
        yield GraphProblem("missing_input", "graph: expected at least one input node, got none")
    if not graph.output_node_ids:
        yield GraphProblem("missing_output", "graph: expected at least one output node, got none")


def _node_problems(node: Node) -> Iterator[GraphProblem]:
    name = f"node {node.node_id}"
    if node.output_size is None:
        yield GraphProblem("missing_output_size", f"{name}: expected an output_size, got none", node.node_id)
    elif node.output_size < 1:
        message = f"{name}: expected an output_size >= 1, got {node.output_size}"
        yield GraphProblem("invalid_output_size", message, node.node_id)
    if node.activation_function not in ACTIVATIONS:
        message = f"{name}: expected an activation out of {_listed(ACTIVATIONS)}, got {node.activation_function!r}"
        yield GraphProblem("invalid_activation", message, node.node_id)
    if not isfinite(node.bias):
        yield GraphProblem("non_finite_bias", f"{name}: expected a finite bias, got {node.bias}", node.node_id)
    if node.node_type is NodeType.INPUT:
        yield from _input_problems(node, name)
    yield from _aggregation_problems(node, name)


def _input_problems(node: Node, name: str) -> Iterator[GraphProblem]:
    """An input passes its data on; whatever else it asks for would be ignored."""
    if node.activation_function in ACTIVATIONS and node.activation_function not in ("linear", "identity"):
        message = f"{name}: expected an input to be linear, got activation {node.activation_function!r}"
        yield GraphProblem("invalid_input_node", message, node.node_id)
    if isfinite(node.bias) and node.bias != 0.0:
        message = f"{name}: expected an input to have bias 0.0, got {node.bias}"
        yield GraphProblem("invalid_input_node", message, node.node_id)


def _aggregation_problems(node: Node, name: str) -> Iterator[GraphProblem]:
    aggregation = node.aggregation
    known = isinstance(aggregation, str) and aggregation in AGGREGATIONS
    if not known:
        message = f"{name}: expected an aggregation out of {_listed(AGGREGATIONS)}, got {thawed(aggregation)!r}"
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
            yield GraphProblem("unknown_attribute", f"{name}: expected no attribute {key!r}", node.node_id)
        elif key in accepted and not accepted[key].accepts(value):
            message = _expected(name, accepted[key].expected, key, value)
            yield GraphProblem("invalid_agg_param", message, node.node_id)
        elif known and key not in accepted:
            message = f"{name}: expected {aggregation} parameters out of {_listed(accepted)}, got {key!r}"
            yield GraphProblem("invalid_agg_param", message, node.node_id)


def _edge_problems(graph: ComputationGraph, edge: Edge) -> Iterator[GraphProblem]:
    name = f"edge {edge.edge_id}"
    for end, node_id in (("source", edge.source), ("target", edge.target)):
        if node_id not in graph.nodes:
            message = f"{name}: expected a {end} among the nodes, got {node_id}"
            yield GraphProblem("dangling_edge", message, edge_id=edge.edge_id)
    if edge.target in graph.nodes and graph.nodes[edge.target].node_type is NodeType.INPUT:
        message = f"{name}: expected no edge into an input, got target {edge.target}"
        yield GraphProblem("edge_into_input", message, edge_id=edge.edge_id)
    if not isfinite(edge.weight):
        message = f"{name}: expected a finite weight, got {edge.weight}"
        yield GraphProblem("non_finite_weight", message, edge_id=edge.edge_id)
    for key, value in edge.attributes.items():
        if key not in EDGE_ATTRIBUTES:
            message = f"{name}: expected attributes out of {_listed(EDGE_ATTRIBUTES)}, got {key!r}"
            yield GraphProblem("unknown_attribute", message, edge_id=edge.edge_id)
        elif not EDGE_ATTRIBUTES[key].accepts(value):
            message = _expected(name, EDGE_ATTRIBUTES[key].expected, key, value)
            yield GraphProblem("invalid_attribute", message, edge_id=edge.edge_id)


def _duplicate_edges(graph: ComputationGraph) -> Iterator[GraphProblem]:
    if graph.config["multigraph"]:
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
    return f"{name}: expected {expected} for {key}, got {thawed(value)!r}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
