"""Problems of operation graphs: of nodes and edges first, then of shapes, then of sizes; subgraphs included.

A node whose shape cannot be inferred is reported once: the nodes that depend on it are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gflownet.graphs.element_problems import (
    MAX_ELEMENTS,
    MAX_EXPANDED_NODES,
    MAX_PARAMETERS,
    GraphProblem,
    duplicate_edges,
    missing_ends,
)
from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType
from gflownet.graphs.operation_costs import own_projection, total_cost
from gflownet.graphs.operation_element_problems import REPEAT, operation_edge_problems, operation_node_problems
from gflownet.graphs.operation_shapes import NodeShapeError, NodeShapes, infer_shapes, inner_ports, merge_plans
from gflownet.graphs.ordering import cycle_closing_edges, followed_edges, reachable, sorted_prefix
from gflownet.operations.tensor_shape import Shape


def operation_graph_problems(graph: GraphElements, unreachable: Iterable[GraphProblem]) -> list[GraphProblem]:
    """Return every problem: of the graph, node by node, edge by edge, then those of its subgraphs, then of shapes.

    Args:
        graph: an operation graph.
        unreachable: the problems of outputs without a path from an input; left out for outputs that depend on another
            problem.
    """
    statics = _Statics()
    problems = statics.check(graph)
    if (size := _num_expanded(graph, {})) > MAX_EXPANDED_NODES:
        message = f"graph: expected at most {MAX_EXPANDED_NODES:,} nodes with all repetitions, got {size:,}"
        return [*problems, GraphProblem("too_many_nodes", message)]
    shapes = _Shapes(statics)
    node_shapes = shapes.infer(graph, ())
    problems += shapes.problems
    problems += [each for each in unreachable if each.node_id in node_shapes]
    return problems or [*_cost_problems(graph, node_shapes)]


def _cost_problems(graph: GraphElements, node_shapes: Mapping[int, NodeShapes]) -> Iterator[GraphProblem]:
    """Yield a problem for too many parameters, or for a user's class whose costs cannot be counted."""
    try:
        cost = total_cost(graph, node_shapes, own_projection(graph))
    except NodeShapeError as error:
        yield GraphProblem("shape_mismatch", str(error), error.node_id)
        return
    if cost.num_parameters > MAX_PARAMETERS:
        yield GraphProblem("too_many_parameters", f"graph: expected at most {MAX_PARAMETERS:,} parameters, got more")


def static_problems(graph: GraphElements) -> list[GraphProblem]:
    """Return the problems that need no shapes."""
    return _Statics().check(graph)


def known_shapes(graph: GraphElements) -> dict[int, NodeShapes]:
    """Return the shapes of the nodes of an operation graph that depend on no problem."""
    statics = _Statics()
    statics.check(graph)
    return {} if _num_expanded(graph, {}) > MAX_EXPANDED_NODES else _Shapes(statics).infer(graph, ())


class _Statics:
    """Problems that need no shapes, by graph."""

    def __init__(self) -> None:
        self.broken: dict[int, set[int]] = {}  # id() of a graph -> nodes whose shape is not inferred
        self.graphs: list[GraphElements] = []  # all graphs above: their id() stays theirs

    def check(self, graph: GraphElements, name: str = "") -> list[GraphProblem]:
        """Return the problems of a graph, then those of the subgraphs that it applies, each checked once."""
        if id(graph) in self.broken:
            return []
        self.graphs.append(graph)
        broken = self.broken[id(graph)] = set()
        problems = [*(_subgraph_ends(graph) if name else missing_ends(graph))]
        if name and "translation" in graph.config:
            message = "graph: expected translation settings of the whole graph, got settings of a subgraph"
            problems.append(GraphProblem("invalid_translation_setting", message))
        for _, node in sorted(graph.nodes.items()):
            problems += operation_node_problems(graph, node, is_subgraph=bool(name))
        problems += _graph_edge_problems(graph)
        for problem in problems:
            broken |= _touched(graph, problem)
        problems = [_within(problem, name) for problem in problems]
        for node_id, node in sorted(graph.nodes.items()):
            if "subgraph" in node.attributes and (inner := _subgraph(graph, node)) is not None:
                problems += self.check(inner, node.attributes["subgraph"])
                if self.broken[id(inner)]:
                    broken.add(node_id)
        return problems


def _subgraph(graph: GraphElements, node: Node) -> GraphElements | None:
    try:
        return graph.subgraph(node.attributes["subgraph"])
    except ValueError:
        return None


def _subgraph_ends(graph: GraphElements) -> Iterator[GraphProblem]:
    types = [node.node_type for node in graph.nodes.values()]
    if NodeType.INPUT not in types:
        yield GraphProblem("missing_input", "graph: expected at least one input node, got none")
    if (count := types.count(NodeType.OUTPUT)) != 1:
        yield GraphProblem("subgraph_outputs", f"graph: expected exactly one output node in a subgraph, got {count}")


def _graph_edge_problems(graph: GraphElements) -> Iterator[GraphProblem]:
    for _, edge in sorted(graph.edges.items()):
        yield from operation_edge_problems(graph, edge)
    for edge_id in cycle_closing_edges(graph, lambda: sorted(graph.nodes)):
        edge = graph.edges[edge_id]
        if graph.nodes[edge.target].node_type is NodeType.INPUT:
            continue  # reported as an edge into an input
        message = f"edge {edge_id}: expected no cycle, got one closed by {edge.source} -> {edge.target}"
        yield GraphProblem("cycle", message, edge_id=edge_id)
    if not graph.config["multigraph"]:
        yield from duplicate_edges(graph)


def _touched(graph: GraphElements, problem: GraphProblem) -> set[int]:
    """Return the nodes whose shape depends on a problem directly; every node for a problem of the graph."""
    if problem.node_id is not None:
        return {problem.node_id}
    if problem.edge_id is None:
        return set(graph.nodes)
    edge = graph.edges[problem.edge_id]
    return {edge.target} & graph.nodes.keys()


def _within(problem: GraphProblem, name: str) -> GraphProblem:
    """Return a problem with the name of its subgraph."""
    if not name:
        return problem
    message = problem.message.removeprefix("graph: ")
    return replace(problem, message=f"subgraph {name}: {message}", subgraph=name)


def _num_expanded(graph: GraphElements, counts: dict[int, int]) -> int:
    """Return the number of nodes with all repetitions; invalid subgraphs and repetitions count once."""
    if id(graph) not in counts:
        counts[id(graph)] = len(graph.nodes) + sum(_num_applied(graph, node, counts) for node in graph.nodes.values())
    return counts[id(graph)]


def _num_applied(graph: GraphElements, node: Node, counts: dict[int, int]) -> int:
    if "subgraph" not in node.attributes:
        return 0
    repeat = node.attributes.get("repeat", 1)
    inner = _subgraph(graph, node)
    if inner is None:
        return 0
    return (repeat if REPEAT.accepts(repeat) else 1) * _num_expanded(inner, counts)


@dataclass
class _Remainder:
    """A graph without some of its nodes."""

    whole: GraphElements
    config: Mapping[str, Any]
    nodes: Mapping[int, Node]
    edges: Mapping[int, Edge]

    def subgraph(self, name: str) -> GraphElements:
        return self.whole.subgraph(name)


class _Shapes:
    """Problems of shapes and sizes, by graph."""

    def __init__(self, statics: _Statics) -> None:
        self._broken = statics.broken
        self.problems: list[GraphProblem] = []  # each once
        self._num_reports = 0

    def infer(self, graph: GraphElements, inputs: Sequence[Shape], name: str = "") -> dict[int, NodeShapes]:
        """Return the shapes of all nodes that depend on no problem; problems are appended."""
        removed, failed = set(self._broken[id(graph)]), []
        is_fed = not inputs or all(graph.nodes[node_id].node_type is not NodeType.INPUT for node_id in removed)
        node_shapes: dict[int, NodeShapes] | None = None if is_fed else {}
        while node_shapes is None:
            part = _without(graph, removed)
            try:
                node_shapes = infer_shapes(part, inputs)
            except NodeShapeError as error:
                failed.append(error)
                removed.add(error.node_id)
        for error in sorted(failed, key=lambda error: error.node_id):
            self._explain(graph, error, node_shapes, name)
        large = {node_id for node_id, shapes in node_shapes.items() if shapes.output.num_elements > MAX_ELEMENTS}
        for node_id in sorted(large - _downstream(graph, large)):
            got = node_shapes[node_id].output
            message = f"node {node_id}: expected at most {MAX_ELEMENTS:,} elements of its output, got {got}"
            self._report(GraphProblem("tensor_too_large", message, node_id), name)
        return {} if large else node_shapes

    def _explain(
        self, graph: GraphElements, error: NodeShapeError, node_shapes: Mapping[int, NodeShapes], name: str
    ) -> None:
        """Append the problems inside of a subgraph that does not fit its inputs, else the problem of the node."""
        node, num_before = graph.nodes[error.node_id], self._num_reports
        code, message = "share_mismatch" if error.is_share else "shape_mismatch", error.reason
        if "subgraph" in node.attributes and not error.is_share:
            inner_name = node.attributes["subgraph"]
            inner = graph.subgraph(inner_name)
            edges = [edge for edge in followed_edges(graph, ignore_recurrent=True) if edge.target == node.node_id]
            try:
                plans = merge_plans(node, edges, node_shapes)
            except ValueError:
                plans = {}
            if plans:
                self.infer(inner, [plans[port].shape for port in inner_ports(inner)], inner_name)
                if self._num_reports > num_before:
                    return
                code = "repeat_mismatch"
        self._report(GraphProblem(code, f"node {node.node_id}: {message}", node.node_id), name)

    def _report(self, problem: GraphProblem, name: str) -> None:
        problem = _within(problem, name)
        self._num_reports += 1
        if problem not in self.problems:
            self.problems.append(problem)


def _downstream(graph: GraphElements, starts: Iterable[int]) -> set[int]:
    """Return the nodes that depend on others, without those."""
    starts, targets = set(starts), {}
    for edge in followed_edges(graph, ignore_recurrent=False):
        targets.setdefault(edge.source, []).append(edge.target)
    following = {target for start in starts for target in targets.get(start, ())}
    return reachable(following, lambda node_id: targets.get(node_id, ()))


def _without(graph: GraphElements, removed: set[int]) -> _Remainder:
    """Return the graph without nodes, those that depend on them, and those on or behind a cycle."""
    removed = removed | _downstream(graph, removed)
    nodes = {node_id: node for node_id, node in graph.nodes.items() if node_id not in removed}
    edges = [
        edge for edge in followed_edges(graph, ignore_recurrent=False) if edge.source in nodes and edge.target in nodes
    ]
    acyclic = sorted_prefix(nodes, [edge for edge in edges if not edge.is_recurrent])
    inside = {edge.edge_id: edge for edge in edges if edge.source in acyclic and edge.target in acyclic}
    return _Remainder(graph, graph.config, {node_id: nodes[node_id] for node_id in acyclic}, inside)
