"""Problems that prevent the translation of a computation graph, all found in one pass.

Problems of nodes and edges come first, then those of shapes, then of sizes; subgraphs included. A node whose shape
cannot be inferred is reported once: the nodes that depend on it are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

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
from gflownet.graphs.elements import DEFAULT_WEIGHT, GraphElements, NodeType, applied_subgraph, maps_tensors
from gflownet.graphs.ordering import cycle_closing_edges
from gflownet.graphs.typed import NodeShapeError, TypedGraph
from gflownet.graphs.visit import visited
from gflownet.operations.values import shown
from gflownet.operations.vocabulary import TRANSLATION_SETTINGS

__all__ = ["GraphProblem", "graph_problems", "typed"]

# 4 GiB of float32: more than a search can train, less than an allocation that ends the process.
MAX_PARAMETERS = 2**30
# Elements of one node's output for one example: 4 GiB of float32.
MAX_ELEMENTS = 2**30
# Nodes of a graph, those of a subgraph once per repetition.
MAX_EXPANDED_NODES = 100_000
_SIZE_CODES = ("unequal_widths", "too_many_parameters")


def graph_problems(graph: GraphElements) -> list[GraphProblem]:
    """Return every problem: of the graph, node by node, edge by edge, by ascending id, then of subgraphs and shapes.

    Outputs without a path from an input are problems, but for those that depend on another problem. Cycles of dense
    graphs are allowed: the edges of detect_cycles() are read one time step late.
    """
    known = graph.typed()
    unreachable = [each for each in unreachable_outputs(graph) if known.takes_columns or each.node_id in known.nodes]
    are_sizes = any(problem.code in _SIZE_CODES for problem in known.problems)
    return [*unreachable, *known.problems] if are_sizes else [*known.problems, *unreachable]


def typed(graph: GraphElements, projection: str) -> TypedGraph:
    """Return a graph with the problems that prevent its translation, and the nodes that depend on none of them."""
    broken: dict[int, set[int]] = {}
    problems = [*_setting_problems(graph), *static_problems(graph, broken)]
    is_vectors = not maps_tensors(graph)
    size = 0 if is_vectors else _num_expanded(graph, {}) if graph.config.get("subgraphs") else len(graph.nodes)
    known = visited(graph, projection, broken=graph.nodes if size > MAX_EXPANDED_NODES else broken[id(graph)])
    if size > MAX_EXPANDED_NODES:
        message = f"graph: expected at most {MAX_EXPANDED_NODES:,} nodes with all repetitions, got {size:,}"
        problems.append(GraphProblem("too_many_nodes", message))
    elif not is_vectors:  # neurons between vectors fit
        problems += dict.fromkeys(_shape_problems(known))
    if not problems:
        problems += _width_problems(known) if is_vectors and projection == "never" else ()
        problems += _cost_problems(known)
    known.problems = tuple(problems)
    return known


def _shape_problems(known: TypedGraph) -> Iterator[GraphProblem]:
    """Yield the problems of nodes without a shape, then of outputs that are too large."""
    for node_id, failure in sorted(known.failures.items()):
        inside = [] if failure.body is None else [*_shape_problems(failure.body)]
        yield from inside or [_within(GraphProblem(failure.code, str(failure), node_id), known.name)]
    large = {node_id for node_id, each in known.nodes.items() if each.output.num_elements > MAX_ELEMENTS}
    for node_id in sorted(large):
        node = known.nodes[node_id]
        if not large.intersection(known.sources(node_id)):
            message = f"node {node_id}: expected at most {MAX_ELEMENTS:,} elements of its output, got {node.output}"
            yield _within(GraphProblem("tensor_too_large", message, node_id), known.name)


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


def _width_problems(known: TypedGraph) -> Iterator[GraphProblem]:
    """Yield the edges between unequal widths, where neurons have no projections."""
    edges = [(edge.edge_id, edge, place, step) for step in known.neurons for place, edge in enumerate(step.edges)]
    for _, edge, place, step in sorted(edges, key=lambda each: each[0]):
        size, expected = step.sizes.sources[place], step.sizes.message
        if size != expected:
            message = (
                f"expected equal widths with projection=never, "
                f"got {size} from node {edge.source} and {expected} at node {edge.target}"
            )
            yield at_edge(edge, "unequal_widths", message)


def _cost_problems(known: TypedGraph) -> Iterator[GraphProblem]:
    """Yield a problem for too many parameters, or for a user's class whose costs cannot be counted."""
    try:
        cost = known.cost
    except NodeShapeError as error:
        yield GraphProblem("shape_mismatch", str(error), error.node_id)
        return
    if cost.num_parameters > MAX_PARAMETERS:
        yield GraphProblem("too_many_parameters", f"graph: expected at most {MAX_PARAMETERS:,} parameters, got more")


def static_problems(graph: GraphElements, broken: dict[int, set[int]], name: str = "") -> list[GraphProblem]:
    """Return the problems that need no shapes, then those of the subgraphs that it applies, each checked once.

    `broken` is filled: the nodes whose shape is not inferred, by the id() of their graph.
    """
    if id(graph) in broken:
        return []
    own, is_vectors = broken.setdefault(id(graph), set()), not (name or maps_tensors(graph))
    problems = [*end_problems(graph, is_subgraph=bool(name))]
    if name and "translation" in graph.config:
        message = "graph: expected translation settings of the whole graph, got settings of a subgraph"
        problems.append(GraphProblem("invalid_translation_setting", message))
    # Every new graph comes here: skipping plain nodes and edges takes a third of a full check.
    for _, node in sorted((key, node) for key, node in graph.nodes.items() if not is_plain(node)):
        problems += node_problems(graph, node, is_vectors=is_vectors, is_subgraph=bool(name))
    problems += _graph_edge_problems(graph, is_vectors=is_vectors)
    for problem in problems:
        own |= _touched(graph, problem)
    problems = [_within(problem, name) for problem in problems]
    for node_id, node in sorted(graph.nodes.items()) if not is_vectors else ():
        if (inner := applied_subgraph(graph, node)) is not None:
            problems += static_problems(inner, broken, node.subgraph)
            if broken[id(inner)]:
                own.add(node_id)
    return problems


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
        counts[id(graph)] = len(graph.nodes)
        for node in graph.nodes.values():
            if (inner := applied_subgraph(graph, node)) is not None:
                repeat = node.repeat if REPEAT.accepts(node.repeat) else 1
                counts[id(graph)] += repeat * _num_expanded(inner, counts)
    return counts[id(graph)]
