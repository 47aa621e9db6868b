"""From a graph to its plan: the order of evaluation, what is live, which layers stand where."""

from collections.abc import Mapping
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph, Edge, Node, NodeType
from gflownet.graphs.limits import is_projected
from gflownet.graphs.validation import blocking_problems
from gflownet.graphs.vocabulary import aggregation
from gflownet.translation.config import TranslationConfig, read_config
from gflownet.translation.plan import EdgePlan, ModelPlan, NodePlan


def structural_key(graph: ComputationGraph, projection: str) -> tuple[Any, ...]:
    """All that decides a plan, and nothing else: not the values of biases and weights, not derivation_uuid."""
    nodes = tuple(
        (node.node_id, node.node_type.value, node.output_size, node.activation_function, _frozen(node.attributes))
        for node in graph.nodes.values()
    )
    edges = tuple(
        (edge.edge_id, edge.source, edge.target, _frozen(edge.attributes))
        for edge in graph.edges.values()
        if edge.enabled
    )
    return projection, bool(graph.config.get("multigraph")), nodes, edges


def checked_options(
    graph: ComputationGraph, config: Mapping[str, Any] | TranslationConfig | None = None
) -> TranslationConfig:
    """The options of a graph's translation: those of `config`, else the graph's own, else the defaults.

    Every translation comes through here first, whether its class is cached or not.

    Raises: ValueError that lists every problem of the graph that keeps it from being a model.
    """
    options = read_config(config)
    problems = blocking_problems(graph, options.projection)
    if problems:
        listed = "\n".join(f"- {problem.message}" for problem in problems)
        raise ValueError(f"the graph cannot be translated:\n{listed}")
    return options.completed(graph.config.get("translation", {}))


def checked_plan(graph: ComputationGraph, config: Mapping[str, Any] | None = None) -> ModelPlan:
    """The plan of a graph, built without the cache. Raises ValueError as checked_options."""
    projection = checked_options(graph, config).projection or "auto"
    return build_plan(graph, projection, structural_key(graph, projection))


def build_plan(graph: ComputationGraph, projection: str, key: tuple[Any, ...]) -> ModelPlan:
    """The plan of a valid graph. Edges that close an unmarked cycle are taken as recurrent."""
    recurrent = frozenset(graph.detect_cycles())
    order = _evaluation_order(graph, recurrent)
    live = _live_nodes(graph)
    nodes = tuple(
        _plan_node(graph, graph.nodes[node_id], projection, recurrent, node_id in live)
        for node_id in order
        if graph.nodes[node_id].node_type is not NodeType.INPUT
    )
    inputs = tuple((node_id, _size(graph.nodes[node_id])) for node_id in graph.input_node_ids)
    return ModelPlan(inputs, nodes, tuple(graph.output_node_ids), key)


def _plan_node(
    graph: ComputationGraph, node: Node, projection: str, recurrent: frozenset[int], is_live: bool
) -> NodePlan:
    size = _size(node)
    kind = aggregation(node.aggregation)
    width = kind.message_size(node.attributes, size)
    edges = tuple(
        _plan_edge(graph, edge, width, projection, recurrent) for edge in graph.in_edges(node.node_id) if edge.enabled
    )
    accepted = kind.accepted() if node.attributes else {}
    settings = tuple(sorted((k, v) for k, v in node.attributes.items() if k in accepted))
    return NodePlan(node.node_id, size, node.activation_function, node.aggregation, settings, edges, is_live)


def _plan_edge(graph: ComputationGraph, edge: Edge, width: int, projection: str, recurrent: frozenset[int]) -> EdgePlan:
    source_size = _size(graph.nodes[edge.source])
    label = f"{edge.edge_id}" if graph.config.get("multigraph") else f"{edge.source}_{edge.target}"
    reads_input = graph.nodes[edge.source].node_type is NodeType.INPUT
    is_recurrent = edge.is_recurrent or edge.edge_id in recurrent
    has_matrix = is_projected(source_size, width, projection)
    return EdgePlan(edge.edge_id, edge.source, label, source_size, reads_input, is_recurrent, has_matrix)


def _evaluation_order(graph: ComputationGraph, recurrent: frozenset[int]) -> list[int]:
    """Sources before targets along the edges of one time step; ties by node id."""
    if not recurrent:
        return list(graph.topological_sort(ignore_recurrent=True))
    waiting = dict.fromkeys(graph.nodes, 0)
    targets: dict[int, list[int]] = {node_id: [] for node_id in graph.nodes}
    for edge in graph.edges.values():
        if edge.enabled and not edge.is_recurrent and edge.edge_id not in recurrent:
            waiting[edge.target] += 1
            targets[edge.source].append(edge.target)
    ready = sorted((node_id for node_id, count in waiting.items() if not count), reverse=True)
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for target in targets[order[-1]]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
        ready.sort(reverse=True)
    assert len(order) == len(graph.nodes), "detect_cycles() left a cycle"
    return order


def _live_nodes(graph: ComputationGraph) -> set[int]:
    """The nodes with an enabled path to an OUTPUT node, recurrent edges included."""
    sources: dict[int, list[int]] = {}
    for edge in graph.edges.values():
        if edge.enabled:
            sources.setdefault(edge.target, []).append(edge.source)
    live = set(graph.output_node_ids)
    pending = list(live)
    while pending:
        for source in sources.get(pending.pop(), ()):
            if source not in live:
                live.add(source)
                pending.append(source)
    return live


def _size(node: Node) -> int:
    assert node.output_size is not None, "validate() lets no node without output_size pass"
    return node.output_size


def _frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    if not attributes:
        return ()
    # A mapping is no attribute that validate() accepts; its text only keeps the key hashable until it is refused.
    return tuple(
        sorted((k, repr(v) if isinstance(v, Mapping) else v) for k, v in attributes.items() if k != "derivation_uuid")
    )
