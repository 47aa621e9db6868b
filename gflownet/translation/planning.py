"""Options of a translation, and the plan of a graph: evaluation order, live nodes, labels, subgraphs. No torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

from gflownet.graphs.composite import Composite
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.elements import Edge, is_dense
from gflownet.graphs.operation_costs import live_nodes
from gflownet.graphs.operation_shapes import NodeShapes, infer_shapes, inner_ports, neuron_settings, repetitions
from gflownet.graphs.validation import blocking_problems
from gflownet.operations.neuron import Neuron, NeuronPlan
from gflownet.operations.neuron_code import identifier
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT
from gflownet.operations.parameters import Initial
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import AUTOCAST_DTYPES, DTYPES, MEMORY_FORMATS, PROJECTIONS, short_name
from gflownet.translation.plan import ModelPlan, StepPlan

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_]+")
_PARAMETERS = re.compile(r"(adapt|weight|bias|gate|router|proj|post|q)(_|$)")  # begin the names of parameters

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

    def completed(self, settings: Mapping[str, Any]) -> TranslationConfig:
        """Return the options with None replaced by a graph's translation settings or the defaults."""
        options = {name: getattr(self, name) for name in _CHOICES}
        values = {name: settings.get(name) if value is None else value for name, value in options.items()}
        return replace(self, **{**values, "projection": values["projection"] or "auto"})


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


def structural_key(graph: ComputationGraph, options: TranslationConfig) -> tuple[Any, ...]:
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
    config = bool(graph.config.get("multigraph")), _text(graph.config.get("subgraphs"))
    return options.projection or "auto", options.memory_format, options.autocast, *config, nodes, edges


def _frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    if not attributes:
        return ()
    return tuple(
        sorted((k, _text(v) if isinstance(v, Mapping) else v) for k, v in attributes.items() if k != "derivation_uuid")
    )


def _text(data: Any) -> str:
    return json.dumps(thawed(data), sort_keys=True) if data else ""


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
        if getattr(options, name) is not None and is_dense(graph):
            raise ValueError(f"{name}: expected an operation graph, got a graph without operations")
    return options


def checked_plan(graph: ComputationGraph, config: Mapping[str, Any] | TranslationConfig | None = None) -> ModelPlan:
    """Return the plan of a graph, built without the cache. Raises ValueError as checked_options."""
    options = checked_options(graph, config)
    return build_plan(graph, options, structural_key(graph, options))


def build_plan(graph: ComputationGraph, options: TranslationConfig, key: Any) -> ModelPlan:
    """Return the plan of a valid graph. Edges that close an unmarked cycle become recurrent."""
    shapes = infer_shapes(graph, late=graph.detect_cycles())
    plan = _plan("", graph, shapes, options.projection or "auto", key)
    return replace(plan, channels_last=options.memory_format == "channels_last", autocast=options.autocast)


def _plan(
    name: str, graph: ComputationGraph, node_shapes: Mapping[int, NodeShapes], projection: str, key: Any
) -> ModelPlan:
    live, is_vectors = live_nodes(node_shapes), not name and is_dense(graph)
    ports = {node_id: port for port, node_id in inner_ports(graph).items()}
    inputs = tuple(
        (ports.get(node_id, INPUT_PORT), node_id, node_shapes[node_id].output) for node_id in graph.input_node_ids
    )
    steps: dict[int, StepPlan] = {}
    for node_id, shapes in node_shapes.items():
        if shapes.node.node_type is not NodeType.INPUT and (is_vectors or node_id in live):
            steps[node_id] = _step(graph, shapes, projection, steps, is_vectors=is_vectors, is_live=node_id in live)
    outputs = tuple((node_id, node_shapes[node_id].output) for node_id in graph.output_node_ids)
    dead = tuple(sorted(node_shapes.keys() - live))
    plan = ModelPlan(name, inputs, tuple(steps.values()), outputs, dead, is_vectors, False, None, (), key)
    return replace(plan, values=tuple(parameter_values(graph, plan))) if name else plan


def parameter_values(graph: ComputationGraph, plan: ModelPlan) -> list[float]:
    """Return the first values of plan.scalars."""
    nodes, edges = graph.nodes, graph.edges
    return [
        nodes[parameter.owner].bias
        if parameter.initial is Initial.BIAS
        else edges[parameter.owner].weight
        if parameter.initial is Initial.WEIGHT
        else 0.0
        for parameter in plan.scalars
    ]


def _step(
    graph: ComputationGraph,
    shapes: NodeShapes,
    projection: str,
    earlier: Mapping[int, StepPlan],
    *,
    is_vectors: bool,
    is_live: bool,
) -> StepPlan:
    edges = shapes.edges
    labels = _edge_labels(edges, is_multigraph=bool(graph.config["multigraph"]))
    if not is_vectors:  # names of parameters are identifiers there
        labels = {edge_id: identifier(label) for edge_id, label in labels.items()}
    node, tied = shapes.node, shapes.inputs.get(WEIGHT_PORT)
    tied_to = earlier[tied.edges[0].source].label if tied and tied.edges[0].source in earlier else ""
    inputs = {port: plan.shape for port, plan in shapes.inputs.items()}
    if shapes.is_neuron:
        label = f"{node.node_id}" if is_vectors else identifier(f"{node.node_id}")
        neuron = _neuron(graph, shapes, projection, labels, label)
        return StepPlan(shapes, "", labels, is_live, neuron=neuron)
    first = _first_shared(shapes, earlier)
    if shapes.operation is None:
        name = node.attributes["subgraph"]
        bodies = _bodies(name, graph.subgraph(name), inputs, projection, node.attributes.get("repeat", 1))
        label = first.label if first else _label(name, node.node_id)
        is_shared = shapes.shared_weights is not None
        return StepPlan(shapes, label, labels, bodies=bodies, is_shared=is_shared, is_first=first is None)
    label = first.label if first else _label(shapes.operation.name, node.node_id)
    row, bodies = shapes.operation.row, ()
    if issubclass(row, Composite):
        inner = row.computation_graph(inputs, shapes.operation.settings)
        bodies = _bodies(shapes.operation.name, inner, inputs, projection, 1)
    return StepPlan(shapes, label, labels, tied_to=tied_to, bodies=bodies, is_first=first is None)


def _first_shared(shapes: NodeShapes, earlier: Mapping[int, StepPlan]) -> StepPlan | None:
    """Return the earlier step that makes the module of a node that shares weights."""
    if (shared := shapes.shared_weights) is None:
        return None
    return next((step for step in earlier.values() if step.shapes.shared_weights == shared), None)


def _edge_labels(edges: Sequence[Edge], *, is_multigraph: bool) -> dict[int, str]:
    """Return a different label for every edge into a node: its ends, or its id if several edges have these ends."""
    if is_multigraph:
        return {edge.edge_id: f"{edge.edge_id}" for edge in edges}
    if len({edge.source for edge in edges}) == len(edges):
        return {edge.edge_id: f"{edge.source}_{edge.target}" for edge in edges}
    counts = Counter(edge.source for edge in edges)
    more = {edge.edge_id: f"_{edge.edge_id}" if counts[edge.source] > 1 else "" for edge in edges}
    return {edge.edge_id: f"{edge.source}_{edge.target}{more[edge.edge_id]}" for edge in edges}


def _bodies(
    name: str, inner: ComputationGraph, inputs: Mapping[str, Shape], projection: str, repeat: int
) -> tuple[ModelPlan, ...]:
    """Return the plan of every repetition; repetitions with equal shapes have the same plan."""
    digest = _body_digest(inner, projection)
    plans: dict[str, ModelPlan] = {}
    bodies = []
    for node_shapes in repetitions(inner, inputs, repeat):
        sizes = [f"{node_shapes[node_id].output}" for node_id in inner.input_node_ids]
        key = sha256("\n".join([name, digest, *sizes]).encode()).hexdigest()
        if key not in plans:
            plans[key] = _plan(name, inner, node_shapes, projection, key)
        bodies.append(plans[key])
    return tuple(bodies)


def _body_digest(inner: ComputationGraph, projection: str) -> str:
    """Return a digest of a subgraph, first values of its weights and biases included: its class holds them."""
    values = [node.bias for node in inner.nodes.values()], [edge.weight for edge in inner.edges.values()]
    text = repr((structural_key(inner, TranslationConfig(projection=projection)), values))
    return sha256(text.encode()).hexdigest()


def _neuron(
    graph: ComputationGraph, shapes: NodeShapes, projection: str, labels: Mapping[int, str], label: str
) -> NeuronPlan:
    merge, node, nodes = shapes.inputs[INPUT_PORT], shapes.node, graph.nodes
    is_input = [nodes[edge.source].node_type is NodeType.INPUT for edge in merge.edges]
    ends = [(e.edge_id, e.source, i, e.edge_id in merge.late) for e, i in zip(merge.edges, is_input, strict=True)]
    inputs = {labels[e.edge_id]: each.target for e, each in zip(merge.edges, merge.adapters, strict=True)}
    settings = neuron_settings(node, projection)
    return Neuron.plan(inputs, settings, node_id=node.node_id, label=label, ends=ends)


def _label(name: str, node_id: int) -> str:
    """Return the name of a node's module: the operation or subgraph, then the id."""
    word = _NOT_OF_A_NAME.sub("_", short_name(name)).strip("_") or "node"
    is_free = word.isidentifier() and not _PARAMETERS.match(word)
    return identifier(f"{word if is_free else f'node_{word}'}_{node_id}")
