"""Problems that prevent the translation of a computation graph, all found in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gflownet.graphs.element_problems import (
    MAX_MAGNITUDE,
    MAX_PARAMETERS,
    GraphProblem,
    at_edge,
    duplicate_edges,
    edge_problems,
    has_too_many_parameters,
    is_plain,
    listed,
    message_size,
    missing_ends,
    node_problems,
    unexpected_value,
    unreachable_outputs,
)
from gflownet.graphs.elements import GraphElements, NodeType, is_dense
from gflownet.graphs.operation_problems import operation_graph_problems
from gflownet.operations.values import shown
from gflownet.operations.vocabulary import TRANSLATION_SETTINGS

__all__ = ["GraphProblem", "blocking_problems", "graph_problems"]


def graph_problems(graph: GraphElements) -> list[GraphProblem]:
    """Return every problem: of the graph, then node by node, then edge by edge, by ascending id.

    Cycles are allowed: the edges of detect_cycles() are read one time step late. Operation graphs: see
    `operation_graph_problems`.
    """
    return _problems(graph, _own_projection(graph), unreachable=[*unreachable_outputs(graph)])


def blocking_problems(graph: GraphElements, projection: str | None = None) -> list[GraphProblem]:
    """Return the problems that prevent translation: all but outputs without a path from an input.

    `projection` overrides the graph's own setting.
    """
    return _problems(graph, projection or _own_projection(graph), unreachable=[])


def _problems(graph: GraphElements, projection: str, *, unreachable: list[GraphProblem]) -> list[GraphProblem]:
    if not is_dense(graph):
        return [*_setting_problems(graph), *operation_graph_problems(graph, unreachable)]
    problems = [*missing_ends(graph), *_setting_problems(graph)]
    nodes, edges = dict(graph.nodes), graph.edges.values()
    # Every translation calls this, cached or not: skipping plainly valid elements takes a third of a full check.
    for node_id in sorted([node_id for node_id, node in nodes.items() if not is_plain(node)]):
        problems += node_problems(nodes[node_id])
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
        problems += edge_problems(nodes, edge)
    if not graph.config["multigraph"]:
        problems += duplicate_edges(graph)
    # Sizes can only be compared if all of them are valid.
    return problems if len(problems) > len(unreachable) else [*problems, *_size_problems(graph, projection)]


def _own_projection(graph: GraphElements) -> str:
    """Return the projection in a graph's translation settings, auto by default."""
    settings = graph.config.get("translation")
    return settings.get("projection", "auto") if isinstance(settings, Mapping) else "auto"


def _setting_problems(graph: GraphElements) -> Iterator[GraphProblem]:
    settings, code = graph.config.get("translation", {}), "invalid_translation_setting"
    if not isinstance(settings, Mapping):
        yield GraphProblem(code, f"graph: expected an object under translation, got {shown(settings)}")
        return
    for key, value in settings.items():
        if key not in TRANSLATION_SETTINGS:
            names = listed(TRANSLATION_SETTINGS)
            yield GraphProblem(code, f"graph: expected translation settings out of {names}, got {shown(key)}")
        elif not TRANSLATION_SETTINGS[key].accepts(value):
            yield GraphProblem(code, f"graph: {unexpected_value(TRANSLATION_SETTINGS[key].expected, key, value)}")


def _size_problems(graph: GraphElements, projection: str) -> Iterator[GraphProblem]:
    for edge_id, edge in sorted(graph.edges.items()) if projection == "never" else ():
        node, size = graph.nodes[edge.target], graph.nodes[edge.source].output_size
        expected = message_size(node)
        if edge.enabled and size != expected:
            message = (
                f"expected equal widths with projection=never, "
                f"got {size} from node {edge.source} and {expected} at node {edge.target}"
            )
            yield at_edge(edge_id, "unequal_widths", message)
    if has_too_many_parameters(graph, projection):
        yield GraphProblem("too_many_parameters", f"graph: expected at most {MAX_PARAMETERS:,} parameters, got more")
