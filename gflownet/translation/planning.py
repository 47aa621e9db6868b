"""Options of a translation, and the plan of a graph: evaluation order, live nodes, layers. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph, Edge, Node, NodeType
from gflownet.graphs.limits import is_projected
from gflownet.graphs.operation_shapes import is_operation_graph
from gflownet.graphs.ordering import followed_edges, reachable, sorted_prefix
from gflownet.graphs.validation import blocking_problems
from gflownet.graphs.vocabulary import AUTOCAST_DTYPES, DTYPES, MEMORY_FORMATS, PROJECTIONS, aggregation
from gflownet.translation.plan import EdgePlan, ModelPlan, NodePlan

# Options that a graph may carry under config["translation"].
_CHOICES = {"dtype": DTYPES, "projection": PROJECTIONS, "memory_format": MEMORY_FORMATS, "autocast": AUTOCAST_DTYPES}


@dataclass(frozen=True)
class TranslationConfig:
    """Options of to_pytorch_model. None: the setting of the graph, else the default."""

    device: Any = field(default="cpu", metadata={"help": "torch device of the parameters"})
    dtype: Any = field(
        default=None, metadata={"help": "floating torch dtype of the parameters or its name; by default float32"}
    )
    projection: str | None = field(
        default=None,
        metadata={
            "help": "auto (default): a linear layer on edges whose widths differ; always: on every edge; never: refuse "
            "such edges"
        },
    )
    enable_translation_cache: bool | None = field(
        default=None, metadata={"help": "use the cache of generated classes; None: the global switch"}
    )
    memory_format: str | None = field(
        default=None,
        metadata={
            "help": "of images in operation graphs: contiguous (default) or channels_last, faster on some devices"
        },
    )
    autocast: str | None = field(
        default=None,
        metadata={
            "help": "dtype of matrix products and convolutions in operation graphs (torch.autocast): bfloat16, "
            "float16; by default that of the parameters"
        },
    )

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            # A dtype may also be a torch.dtype.
            if value is not None and value not in choices and (name != "dtype" or isinstance(value, str)):
                raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")

    def completed(self, settings: Mapping[str, Any]) -> "TranslationConfig":
        """Return the options with None replaced by a graph's translation settings or the defaults."""
        options = {name: getattr(self, name) for name in _CHOICES}
        chosen = {name: settings.get(name) if value is None else value for name, value in options.items()}
        return replace(self, **{**chosen, "projection": chosen["projection"] or "auto"})


def read_config(config: Mapping[str, Any] | TranslationConfig | None) -> TranslationConfig:
    """Return the options as a dataclass. Raises ValueError for an unknown key, with the nearest known one."""
    if isinstance(config, TranslationConfig):
        return config
    names = [option.name for option in fields(TranslationConfig)]
    for key in config or {}:
        if key not in names:
            nearest = get_close_matches(str(key), names, n=1) or [", ".join(names)]
            raise ValueError(f"translation config: unknown key {key!r}, did you mean {nearest[0]}?")
    return TranslationConfig(**(config or {}))


def structural_key(graph: ComputationGraph, projection: str) -> tuple[Any, ...]:
    """Return everything a plan depends on: not the values of biases and weights, not derivation_uuid."""
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
    """Return the options of a graph's translation: `config`, else the graph's settings, else the defaults.

    Called before every translation, cached or not.

    Raises: ValueError that lists every problem of an invalid graph.
    """
    options = read_config(config)
    problems = blocking_problems(graph, options.projection)
    if problems:
        listed = "\n".join(f"- {problem.message}" for problem in problems)
        raise ValueError(f"the graph cannot be translated:\n{listed}")
    options = options.completed(graph.config.get("translation", {}))
    for name in ("memory_format", "autocast"):
        if getattr(options, name) is not None and not is_operation_graph(graph):
            raise ValueError(f"{name}: expected an operation graph, got a graph without operations")
    return options


def checked_plan(graph: ComputationGraph, config: Mapping[str, Any] | None = None) -> ModelPlan:
    """Return the plan of a graph, built without the cache. Raises ValueError as checked_options."""
    projection = checked_options(graph, config).projection or "auto"
    return build_plan(graph, projection, structural_key(graph, projection))


def build_plan(graph: ComputationGraph, projection: str, key: tuple[Any, ...]) -> ModelPlan:
    """Return the plan of a valid graph. Edges that close an unmarked cycle become recurrent."""
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
    """Return sources before targets along the edges of one time step; ties by node id."""
    edges = [edge for edge in followed_edges(graph, ignore_recurrent=True) if edge.edge_id not in recurrent]
    order = sorted_prefix(graph.nodes, edges)
    assert len(order) == len(graph.nodes), "detect_cycles() left a cycle"
    return order


def _live_nodes(graph: ComputationGraph) -> set[int]:
    """Return the nodes with an enabled path to an OUTPUT node, recurrent edges included."""
    sources: dict[int, list[int]] = {}
    for edge in followed_edges(graph, ignore_recurrent=False):
        sources.setdefault(edge.target, []).append(edge.source)
    return reachable(graph.output_node_ids, lambda node_id: sources.get(node_id, ()))


def _size(node: Node) -> int:
    assert node.output_size is not None, "validate() refuses nodes without output_size"
    return node.output_size


def _frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    if not attributes:
        return ()
    # validate() refuses mappings as attributes; their text keeps the key hashable until then.
    return tuple(
        sorted((k, repr(v) if isinstance(v, Mapping) else v) for k, v in attributes.items() if k != "derivation_uuid")
    )
