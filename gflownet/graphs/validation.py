"""Problems that prevent the translation of a computation graph, all found in one pass.

Problems of nodes and edges come first, then those of shapes, then of sizes; subgraphs included. A node whose shape
cannot be inferred is reported once: the nodes that depend on it are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gflownet.graphs.element_problems import (
    REPEAT,
    GraphProblem,
    at_edge,
    duplicate_edges,
    edge_problems,
    end_problems,
    is_plain,
    listed,
    node_problems,
    unexpected_value,
    unreachable_outputs,
)
from gflownet.graphs.elements import DEFAULT_WEIGHT, Edge, GraphElements, Node, NodeType, is_dense
from gflownet.graphs.operation_costs import graph_cost, own_projection, total_cost
from gflownet.graphs.operation_shapes import NodeShapeError, NodeShapes, infer_shapes, inner_ports, merge_plans
from gflownet.graphs.ordering import cycle_closing_edges, followed_edges, reachable, sorted_prefix
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.values import shown
from gflownet.operations.vocabulary import TRANSLATION_SETTINGS, aggregation

__all__ = ["GraphProblem", "blocking_problems", "graph_problems"]

# 4 GiB of float32: more than a search can train, less than an allocation that ends the process.
MAX_PARAMETERS = 2**30
# Elements of one node's output for one example: 4 GiB of float32.
MAX_ELEMENTS = 2**30
# Nodes of a graph, those of a subgraph once per repetition.
MAX_EXPANDED_NODES = 100_000
# Upper bounds for every built-in recurrent cell of width D: 8 D^2 + 1000 D weights.
_CELL_SQUARES, _CELL_ROWS = 8, 1000


def graph_problems(graph: GraphElements) -> list[GraphProblem]:
    """Return every problem: of the graph, node by node, edge by edge, by ascending id, then of subgraphs and shapes.

    Outputs without a path from an input are problems, but for those that depend on another problem. Cycles of dense
    graphs are allowed: the edges of detect_cycles() are read one time step late.
    """
    return _problems(graph, own_projection(graph), unreachable=[*unreachable_outputs(graph)])


def blocking_problems(graph: GraphElements, projection: str | None = None) -> list[GraphProblem]:
    """Return the problems that prevent translation: all but outputs without a path from an input.

    `projection` overrides the graph's own setting.
    """
    return _problems(graph, projection or own_projection(graph), unreachable=[])


def _problems(graph: GraphElements, projection: str, *, unreachable: list[GraphProblem]) -> list[GraphProblem]:
    statics, is_vectors = _Statics(), is_dense(graph)
    problems = [*_setting_problems(graph), *statics.check(graph, is_vectors=is_vectors)]
    if is_vectors:  # sizes can only be compared if all of them are valid
        return [*problems, *unreachable] if problems else [*unreachable, *_size_problems(graph, projection)]
    if (size := _num_expanded(graph, {})) > MAX_EXPANDED_NODES:
        message = f"graph: expected at most {MAX_EXPANDED_NODES:,} nodes with all repetitions, got {size:,}"
        return [*problems, GraphProblem("too_many_nodes", message)]
    shapes = _Shapes(statics)
    node_shapes = shapes.infer(graph, ())
    problems += shapes.problems
    problems += [each for each in unreachable if each.node_id in node_shapes]
    return problems or [*_cost_problems(graph, node_shapes)]


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
    """Yield the problems of the widths of neurons, and one for too many parameters."""
    for _, edge in sorted(graph.edges.items()) if projection == "never" else ():
        size, expected = graph.nodes[edge.source].output_size, _message_size(graph.nodes[edge.target])
        if edge.enabled and size != expected:
            message = (
                f"expected equal widths with projection=never, "
                f"got {size} from node {edge.source} and {expected} at node {edge.target}"
            )
            yield at_edge(edge, "unequal_widths", message)
    nodes = graph.nodes.values()
    widest = max(node.output_size or 0 for node in nodes)
    for node in nodes:
        if node.attributes:
            kind, width = aggregation(node.aggregation), _message_size(node)
            widest = max(widest, width, kind.aggregated_size(node.attributes, width, 1))
    num_terms = 2 * len(graph.edges) + (_CELL_SQUARES + 2) * len(nodes)
    if (widest + _CELL_ROWS) ** 2 * num_terms > MAX_PARAMETERS:  # an upper bound is cheaper than the number
        late = cycle_closing_edges(graph, lambda: sorted(graph.nodes))
        if graph_cost(graph, projection, late=late).num_parameters > MAX_PARAMETERS:
            yield _too_many_parameters()


def _message_size(node: Node) -> int:
    """Return the width of every message into a neuron."""
    return aggregation(node.aggregation).message_size(node.attributes, node.output_size or 0)


def _too_many_parameters() -> GraphProblem:
    return GraphProblem("too_many_parameters", f"graph: expected at most {MAX_PARAMETERS:,} parameters, got more")


def _cost_problems(graph: GraphElements, node_shapes: Mapping[int, NodeShapes]) -> Iterator[GraphProblem]:
    """Yield a problem for too many parameters, or for a user's class whose costs cannot be counted."""
    try:
        cost = total_cost(graph, node_shapes, own_projection(graph))
    except NodeShapeError as error:
        yield GraphProblem("shape_mismatch", str(error), error.node_id)
        return
    if cost.num_parameters > MAX_PARAMETERS:
        yield _too_many_parameters()


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

    def check(self, graph: GraphElements, name: str = "", *, is_vectors: bool = False) -> list[GraphProblem]:
        """Return the problems of a graph, then those of the subgraphs that it applies, each checked once."""
        if id(graph) in self.broken:
            return []
        self.graphs.append(graph)
        broken = self.broken[id(graph)] = set()
        problems = [*end_problems(graph, is_subgraph=bool(name))]
        if name and "translation" in graph.config:
            message = "graph: expected translation settings of the whole graph, got settings of a subgraph"
            problems.append(GraphProblem("invalid_translation_setting", message))
        # Every translation calls this, cached or not: skipping plain nodes and edges takes a third of a full check.
        for _, node in sorted((key, node) for key, node in graph.nodes.items() if not is_plain(node)):
            problems += node_problems(graph, node, is_vectors=is_vectors, is_subgraph=bool(name))
        problems += _graph_edge_problems(graph, is_vectors=is_vectors)
        for problem in problems:
            broken |= _touched(graph, problem)
        problems = [_within(problem, name) for problem in problems]
        for node_id, node in sorted(graph.nodes.items()) if not is_vectors else ():
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


def _graph_edge_problems(graph: GraphElements, *, is_vectors: bool) -> Iterator[GraphProblem]:
    targets = {node_id for node_id, node in graph.nodes.items() if node.node_type is not NodeType.INPUT}
    unusual = [
        edge
        for edge in graph.edges.values()
        if edge.attributes
        or edge.weight != DEFAULT_WEIGHT
        or edge.target not in targets
        or edge.source not in graph.nodes
    ]
    for edge in sorted(unusual, key=lambda edge: edge.edge_id):
        yield from edge_problems(graph, edge, is_vectors=is_vectors)
    for edge_id in () if is_vectors else cycle_closing_edges(graph, lambda: sorted(graph.nodes)):
        edge = graph.edges[edge_id]
        if graph.nodes[edge.target].node_type is NodeType.INPUT:
            continue  # reported as an edge into an input
        yield at_edge(edge, "cycle", f"expected no cycle, got one closed by {edge.source} -> {edge.target}")
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
