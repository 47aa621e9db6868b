"""The immutable plan of an operation graph: order of computation, names of modules, subgraphs, adapters. No torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.elements import Edge, thawed
from gflownet.graphs.limits import is_projected
from gflownet.graphs.operation import INPUT_PORT, WEIGHT_PORT
from gflownet.graphs.operation_costs import live_nodes
from gflownet.graphs.operation_shapes import NodeShapes, infer_shapes, inner_ports, repetitions
from gflownet.graphs.tensor_shape import Layout, Shape
from gflownet.graphs.vocabulary import aggregation, short_name
from gflownet.operations.composite import Composite
from gflownet.translation.emit import identifier
from gflownet.translation.plan import EdgePlan, NodePlan
from gflownet.translation.planning import TranslationConfig

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_]+")
_PARAMETERS = re.compile(r"(adapt|weight|bias|gate|router|proj|post|q)(_|$)")  # begin the names of parameters


@dataclass(frozen=True)
class StepPlan:
    """One live node that is not an INPUT: activation(operation(merge(aligned inputs)))."""

    shapes: NodeShapes
    label: str  # name of its module: "conv2d_3", or of its subgraph: "block_3"
    edge_labels: Mapping[int, str]  # by edge id: the end of the names of adapters and edge weights
    tied_to: str = ""  # name of the module whose weight the port `weight` reads
    bodies: tuple[OperationPlan, ...] = ()  # of a subgraph or composite: one per repetition
    is_shared: bool = False  # one module for all repetitions, and for all nodes that share the subgraph
    is_first: bool = True  # False: an earlier step makes the module
    ordinary: NodePlan | None = None  # of a node without operation

    @property
    def node_id(self) -> int:
        """The node's id."""
        return self.shapes.node.node_id

    @cached_property
    def input_shapes(self) -> dict[str, Shape]:
        """The merged shape at every port."""
        return {port: plan.shape for port, plan in self.shapes.inputs.items()}

    @property
    def ports(self) -> tuple[str, ...]:
        """The ports in the order of the arguments of the module."""
        if self.bodies:
            return tuple(port for port, _, _ in self.bodies[0].inputs)
        return self.shapes.operation.row.ports if self.shapes.operation is not None else (INPUT_PORT,)


@dataclass(frozen=True)
class OperationPlan:
    """A whole model, or a subgraph for certain input shapes. Two graphs with the same key share one class."""

    name: str  # "" of the model, the name of a subgraph or composite
    inputs: tuple[tuple[str, int, Shape], ...]  # port, node id and shape, by ascending id: the arguments of forward
    steps: tuple[StepPlan, ...]  # sources before targets
    outputs: tuple[tuple[int, Shape], ...]
    dead_node_ids: tuple[int, ...]  # nodes without a path to an output: left out
    channels_last: bool
    autocast: str | None  # name of a dtype
    key: str

    def __deepcopy__(self, memo: dict[int, Any]) -> OperationPlan:
        return self

    @cached_property
    def bodies(self) -> tuple[OperationPlan, ...]:
        """The different plans that its steps call."""
        return tuple({body.key: body for step in self.steps for body in step.bodies}.values())

    @property
    def is_concatenated(self) -> bool:
        """Whether several outputs are returned side by side, not as a tuple."""
        return len(self.outputs) > 1 and all(shape.layout is Layout.VECTOR for _, shape in self.outputs)


def operation_key(graph: ComputationGraph, options: TranslationConfig) -> str:
    """Return a digest of everything that a plan depends on, first values of weights and biases included."""
    nodes = [
        [node_id, node.node_type.value, node.output_size, node.activation_function, node.bias, _plain(node.attributes)]
        for node_id, node in sorted(graph.nodes.items())
    ]
    edges = [
        [edge.edge_id, edge.source, edge.target, edge.weight, _plain(edge.attributes)]
        for _, edge in sorted(graph.edges.items())
        if edge.enabled
    ]
    config = [graph.config["multigraph"], thawed(graph.config.get("subgraphs", {}))]
    settings = [options.projection, options.memory_format, options.autocast]
    text = json.dumps([nodes, edges, config, settings], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: thawed(value) for key, value in attributes.items() if key != "derivation_uuid"}


def build_operation_plan(graph: ComputationGraph, options: TranslationConfig, key: str) -> OperationPlan:
    """Return the plan of a valid operation graph."""
    plan = _plan("", graph, infer_shapes(graph), options.projection or "auto", key)
    return replace(plan, channels_last=options.memory_format == "channels_last", autocast=options.autocast)


def _plan(
    name: str, graph: ComputationGraph, known: Mapping[int, NodeShapes], projection: str, key: str
) -> OperationPlan:
    live = live_nodes(known)
    ports = {node_id: port for port, node_id in inner_ports(graph).items()}
    inputs = tuple((ports.get(node_id, INPUT_PORT), node_id, known[node_id].output) for node_id in graph.input_node_ids)
    steps: dict[int, StepPlan] = {}
    for node_id, shapes in known.items():
        if shapes.node.node_type is not NodeType.INPUT and node_id in live:
            steps[node_id] = _step(graph, shapes, projection, steps)
    outputs = tuple((node_id, known[node_id].output) for node_id in graph.output_node_ids)
    dead = tuple(sorted(known.keys() - live))
    return OperationPlan(name, inputs, tuple(steps.values()), outputs, dead, False, None, key)


def _step(graph: ComputationGraph, shapes: NodeShapes, projection: str, earlier: Mapping[int, StepPlan]) -> StepPlan:
    edges = shapes.edges
    labels = _edge_labels(edges, is_multigraph=bool(graph.config["multigraph"]))
    node, tied = shapes.node, shapes.inputs.get(WEIGHT_PORT)
    tied_to = earlier[tied.edges[0].source].label if tied and tied.edges[0].source in earlier else ""
    inputs = {port: plan.shape for port, plan in shapes.inputs.items()}
    if shapes.is_ordinary:
        ordinary = _ordinary(graph, shapes, projection, labels)
        return StepPlan(shapes, identifier(f"node_{node.node_id}"), labels, ordinary=ordinary)
    if shapes.operation is None:
        name = node.attributes["subgraph"]
        bodies = _bodies(name, graph.subgraph(name), inputs, projection, node.attributes.get("repeat", 1))
        if (shared := shapes.shared_subgraph) and (first := _first_shared(shared, earlier)):
            return StepPlan(shapes, first.label, labels, bodies=bodies, is_shared=True, is_first=False)
        return StepPlan(shapes, _label(name, node.node_id), labels, bodies=bodies, is_shared=bool(shared))
    label = _label(shapes.operation.name, node.node_id)
    row = shapes.operation.row
    if issubclass(row, Composite):
        inner = row.computation_graph(inputs, shapes.operation.settings)
        bodies = _bodies(shapes.operation.name, inner, inputs, projection, 1)
        return StepPlan(shapes, label, labels, tied_to, bodies=bodies)
    return StepPlan(shapes, label, labels, tied_to)


def _first_shared(subgraph: str, earlier: Mapping[int, StepPlan]) -> StepPlan | None:
    """Return the step that makes the module of a shared subgraph."""
    return next((step for step in earlier.values() if step.shapes.shared_subgraph == subgraph), None)


def _edge_labels(edges: Sequence[Edge], *, is_multigraph: bool) -> dict[int, str]:
    """Return a different label for every edge into a node: its ends, or its id if several edges have these ends."""
    if is_multigraph:
        return {edge.edge_id: identifier(f"{edge.edge_id}") for edge in edges}
    counts = Counter(edge.source for edge in edges)
    ends = {edge.edge_id: f"{edge.source}_{edge.target}" for edge in edges}
    more = {edge.edge_id: f"_{edge.edge_id}" if counts[edge.source] > 1 else "" for edge in edges}
    return {edge_id: identifier(f"{label}{more[edge_id]}") for edge_id, label in ends.items()}


def _bodies(
    name: str, inner: ComputationGraph, inputs: Mapping[str, Shape], projection: str, repeat: int
) -> tuple[OperationPlan, ...]:
    """Return the plan of every repetition; repetitions with equal shapes have the same plan."""
    digest = operation_key(inner, TranslationConfig(projection=projection))
    plans: dict[str, OperationPlan] = {}
    bodies = []
    for known in repetitions(inner, inputs, repeat):
        sizes = [f"{known[node_id].output}" for node_id in inner.input_node_ids]
        key = sha256("\n".join([name, digest, *sizes]).encode()).hexdigest()
        if key not in plans:
            plans[key] = _plan(name, inner, known, projection, key)
        bodies.append(plans[key])
    return tuple(bodies)


def _ordinary(graph: ComputationGraph, shapes: NodeShapes, projection: str, labels: Mapping[int, str]) -> NodePlan:
    (merge,), node = shapes.inputs.values(), shapes.node
    kind = aggregation(node.aggregation)
    width = kind.message_size(node.attributes, shapes.output.channels)
    sources = [adapter.source.channels for adapter in merge.adapters]
    edges = tuple(
        EdgePlan(
            edge.edge_id,
            edge.source,
            labels[edge.edge_id],
            size,
            graph.nodes[edge.source].node_type is NodeType.INPUT,
            is_recurrent=False,
            is_projected=is_projected(size, width, projection),
        )
        for edge, size in zip(merge.edges, sources, strict=True)
    )
    accepted = kind.accepted()
    settings = tuple(sorted((key, value) for key, value in node.attributes.items() if key in accepted))
    size = shapes.output.channels
    return NodePlan(node.node_id, size, node.activation_function, node.aggregation, settings, edges, is_live=True)


def _label(name: str, node_id: int) -> str:
    """Return the name of a node's module: the operation or subgraph, then the id."""
    word = _NOT_OF_A_NAME.sub("_", short_name(name)).strip("_") or "node"
    is_free = word.isidentifier() and not _PARAMETERS.match(word)
    return identifier(f"{word if is_free else f'node_{word}'}_{node_id}")
