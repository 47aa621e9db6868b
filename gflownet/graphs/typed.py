"""The typed graph: what every node does, its merged inputs, its shape, parameters, state and cost. No torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Any

from gflownet.graphs.element_problems import GraphProblem
from gflownet.graphs.elements import Edge, GraphElements, Node, NodeType
from gflownet.graphs.merges import LEARNED_ALIGNMENTS, MergePlan
from gflownet.graphs.operation import AppliedOperation, OperationAt
from gflownet.graphs.ordering import reachable
from gflownet.operations.activations import Cell
from gflownet.operations.code import identifier, variable
from gflownet.operations.neuron import NeuronSizes
from gflownet.operations.operation import WEIGHT_PORT
from gflownet.operations.parameters import Initial, ParameterPlan
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.vocabulary import PROJECTIONS, short_name

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_]+")
_PARAMETERS = re.compile(r"(adapt|weight|bias|gate|router|proj|post|q)(_|$)")  # begin the names of parameters


class NodeShapeError(ShapeError):
    """No shape can be inferred for a node."""

    def __init__(
        self, node_id: int, reason: str, code: str = "shape_mismatch", *, body: TypedGraph | None = None
    ) -> None:
        super().__init__(f"node {node_id}: {reason}")
        self.node_id = node_id
        self.reason = reason
        self.code = code  # of the problem
        self.body = body  # the first repetition of a subgraph that does not fit its inputs


@dataclass(frozen=True)
class OperationCost:
    """Size of a node or a graph."""

    num_parameters: int = 0
    multiply_adds: int = 0  # of one example
    elementwise_flops: int = 0  # of neurons, counted in dense graphs only

    @property
    def flops(self) -> int:
        """2 per multiply-add, and the elementwise operations of neurons."""
        return 2 * self.multiply_adds + self.elementwise_flops

    def __add__(self, other: OperationCost) -> OperationCost:
        return OperationCost(
            self.num_parameters + other.num_parameters,
            self.multiply_adds + other.multiply_adds,
            self.elementwise_flops + other.elementwise_flops,
        )


@dataclass(frozen=True)
class StateSlot:
    """One tensor [B, *shape] of the recurrent state."""

    # "output" of a node that a recurrent edge reads; "hidden" of a cell, "cell" of an lstm; "token" of an rhn: 0 before
    # its first step, 1 after it; of a subgraph, the kind and the node inside.
    kind: str
    node_id: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of floats per row of the batch."""
        return prod(self.shape)


@dataclass(frozen=True)
class Input:
    """A value from outside."""

    port: str  # of a subgraph


@dataclass(frozen=True)
class Apply:
    """An operation; one made of other operations has their graph as its body."""

    operation: AppliedOperation
    at: OperationAt  # at the shapes of the node's inputs
    share: str  # names the weights of several nodes; "": weights of its own
    bodies: tuple[TypedGraph, ...] = ()


@dataclass(frozen=True)
class Call:
    """A subgraph, applied to its own output again and again."""

    name: str
    bodies: tuple[TypedGraph, ...]  # one per repetition; repetitions with equal shapes have the same
    is_shared: bool  # one set of weights for all repetitions, and for all nodes that share the subgraph


@dataclass(frozen=True)
class TypedNode:
    """A node: activation(what(merged inputs))."""

    node: Node
    what: Input | Apply | Call
    inputs: Mapping[str, MergePlan]  # by port
    output: Shape
    owner: int  # the node that makes the module: another one where weights are shared
    is_multigraph: bool = False  # labels of edges are their ids
    tied_to: str = ""  # name of the module whose weight the port `weight` reads
    has_edge_weights: bool = False  # each in-edge scales its value by a learned number, and a learned bias is added
    has_signs: bool = False  # names of parameters keep the minus sign of an id

    @cached_property
    def node_id(self) -> int:
        """The node's id."""
        return self.node.node_id

    @cached_property
    def edges(self) -> list[Edge]:
        """The enabled in-edges, port by port."""
        return [edge for plan in self.inputs.values() for edge in plan.edges]

    @property
    def is_first(self) -> bool:
        """Whether the node makes the module, which others may share."""
        return self.owner == self.node.node_id

    @property
    def is_neuron(self) -> bool:
        """Whether the node names no operation."""
        return isinstance(self.what, Apply) and not self.what.operation.name

    @property
    def sizes(self) -> NeuronSizes:
        """The widths inside of a neuron."""
        assert isinstance(self.what, Apply)
        return self.what.at.sizes

    @property
    def operation(self) -> AppliedOperation | None:
        """The operation; None of an input and a subgraph."""
        return self.what.operation if isinstance(self.what, Apply) else None

    @property
    def bodies(self) -> tuple[TypedGraph, ...]:
        """The graphs of a subgraph or composite, one per repetition."""
        return self.what.bodies if isinstance(self.what, Apply | Call) else ()

    @property
    def is_shared(self) -> bool:
        """Whether one module serves all repetitions of a subgraph."""
        return isinstance(self.what, Call) and self.what.is_shared

    @cached_property
    def input_shapes(self) -> dict[str, Shape]:
        """The merged shape at every port."""
        return {port: plan.shape for port, plan in self.inputs.items()}

    @property
    def ports(self) -> tuple[str, ...]:
        """The ports in the order of the arguments of its graphs."""
        return tuple(port for port, _, _ in self.bodies[0].inputs)

    @cached_property
    def label(self) -> str:
        """The name of the module: operation or subgraph, then the id of the owner; empty for a neuron."""
        if not isinstance(self.what, Apply | Call):
            return ""
        name = self.what.name if isinstance(self.what, Call) else self.what.operation.name
        word = _NOT_OF_A_NAME.sub("_", short_name(name)).strip("_") or "node"
        is_free = word.isidentifier() and not _PARAMETERS.match(word)
        return identifier(f"{word if is_free else f'node_{word}'}_{self.owner}")

    def named(self, name: str, edge: Edge | None = None) -> str:
        """Return the full name of a parameter, layer or adapter of the node or of an in-edge: weight_3_5 of weight."""
        head, dot, leaf = name.partition(".")
        full = f"{head}_{self.node_id if edge is None else self._edge_labels[edge.edge_id]}{dot}{leaf}"
        return full if self.has_signs else identifier(full)

    @cached_property
    def _edge_labels(self) -> dict[int, str]:
        """A different label for every in-edge: its ends, or its id if several edges have these ends."""
        if self.is_multigraph:
            return {edge.edge_id: f"{edge.edge_id}" for edge in self.edges}
        if len({edge.source for edge in self.edges}) == len(self.edges):
            return {edge.edge_id: f"{edge.source}_{edge.target}" for edge in self.edges}
        counts = Counter(edge.source for edge in self.edges)
        more = {edge.edge_id: f"_{edge.edge_id}" if counts[edge.source] > 1 else "" for edge in self.edges}
        return {edge.edge_id: f"{edge.source}_{edge.target}{more[edge.edge_id]}" for edge in self.edges}

    @cached_property
    def parameters(self) -> tuple[ParameterPlan, ...]:
        """The parameters of a neuron, or the scalar weights and the bias around an operation."""
        plans = [*self.what.at.parameters] if isinstance(self.what, Apply) else []
        if self.has_edge_weights:
            places = [place for place, edge in enumerate(self.edges) if edge.port != WEIGHT_PORT]
            plans += [ParameterPlan("weight", (), Initial.WEIGHT, owner=place) for place in places]
            plans.append(ParameterPlan("bias", (), Initial.BIAS))
        return tuple(map(self._completed, plans))

    def _completed(self, plan: ParameterPlan) -> ParameterPlan:
        edge = None if plan.owner is None else self.edges[plan.owner]
        owner = self.node_id if edge is None else edge.edge_id
        return ParameterPlan(self.named(plan.name, edge), plan.shape, plan.initial, plan.bound, owner)

    @cached_property
    def body_slots(self) -> tuple[tuple[StateSlot, ...], ...]:
        """The state of every repetition of a subgraph, as slots of this node."""
        return tuple(
            tuple(
                StateSlot(f"state{place}_{slot.kind}{slot.node_id}_", self.node_id, slot.shape) for slot in body.slots
            )
            for place, body in enumerate(self.bodies)
        )

    @cached_property
    def slots(self) -> tuple[StateSlot, ...]:
        """The state of the node itself; the outputs that recurrent edges read are slots of the graph."""
        if self.bodies or not isinstance(self.what, Apply):
            return tuple(slot for slots in self.body_slots for slot in slots)
        return tuple(StateSlot(kind, self.node_id, shape) for kind, shape in self.what.at.state.items())

    @cached_property
    def cost(self) -> OperationCost:
        """The cost of the node, of the adapters on its in-edges and of their weights; shared ones at their owner.

        Raises:
            NodeShapeError: a user's class fails.
        """
        plans = self.inputs.values() if self.node.align in LEARNED_ALIGNMENTS else ()
        learned = [adapter for plan in plans for adapter in plan.adapters]
        num_parameters = sum(adapter.num_parameters for adapter in learned)
        num_parameters += len(self.parameters) if self.has_edge_weights else 0
        multiply_adds, elements = sum(adapter.multiply_adds for adapter in learned), 0
        try:
            if isinstance(self.what, Apply):
                own, products = self.what.at.cost
                num_parameters, multiply_adds = num_parameters + own * self.is_first, multiply_adds + products
                elements = self.sizes.elementwise_flops if self.is_neuron else 0
            for repetition, body in enumerate(self.what.bodies if isinstance(self.what, Call) else ()):
                is_new = not self.is_shared or (self.is_first and repetition == 0)
                num_parameters += body.live_cost.num_parameters * is_new
                multiply_adds += body.live_cost.multiply_adds
        except ShapeError as error:
            name = self.operation.name if self.operation is not None else f"subgraph {getattr(self.what, 'name', '')}"
            raise NodeShapeError(self.node_id, f"{name}: {error}") from None
        return OperationCost(num_parameters, multiply_adds, elements)


TypedNodes = dict[int, TypedNode]  # by id
Failures = dict[int, NodeShapeError]


class TypedGraph:
    """A graph, or a subgraph for certain input shapes: all that validation, costs, drawings and translation read.

    It does not change. Two graphs with one `key` have one generated class.
    """

    def __init__(
        self,
        graph: GraphElements,
        projection: str,
        name: str,
        takes_columns: bool,
        nodes: TypedNodes,
        failures: Failures,
    ) -> None:
        self.graph, self.projection = graph, projection
        self.name = name  # of the subgraph or composite, "" of the model
        self.nodes = nodes  # that depend on no failure and no broken node, sources before targets
        self.failures = failures  # why nodes have no shape, in the order of the visit
        # Of neurons between inputs that declare widths: forward takes the features of all inputs as columns of one
        # tensor [B, F], an unmarked cycle is read one time step late, and dead nodes keep their parameters.
        self.takes_columns = takes_columns
        self.problems: tuple[GraphProblem, ...] = ()  # that prevent translation, set by validation
        self.memory_format: str | None = None  # of images
        self.autocast: str | None = None  # name of a dtype
        self.is_padded = False  # the last channel of the input is the mask of its values

    def __deepcopy__(self, memo: dict[int, Any]) -> TypedGraph:
        return self

    def changed(self, **options: Any) -> TypedGraph:
        """Return the graph with another name or with options of its model."""
        if options.items() <= vars(self).items():
            return self
        other = copy(self)
        vars(other).pop("key", None)
        vars(other).update(options)
        return other

    def sources(self, node_id: int) -> set[int]:
        """Return the nodes that a node depends on."""
        found = reachable([node_id], lambda each: [edge.source for edge in self.nodes[each].edges])
        return found - {node_id}

    @cached_property
    def live(self) -> frozenset[int]:
        """The OUTPUT nodes and all nodes with a path to one."""
        outputs = [node_id for node_id, each in self.nodes.items() if each.node.node_type is NodeType.OUTPUT]
        return frozenset(reachable(outputs, lambda node_id: [edge.source for edge in self.nodes[node_id].edges]))

    @cached_property
    def live_cost(self) -> OperationCost:
        """The cost of the nodes with a path to an output. Raises NodeShapeError where a user's class fails."""
        return sum((node.cost for node_id, node in self.nodes.items() if node_id in self.live), OperationCost())

    @cached_property
    def cost(self) -> OperationCost:
        """The cost of the model: dead neurons of a dense graph keep their parameters."""
        if not self.takes_columns:
            return replace(self.live_cost, elementwise_flops=0)
        dead = [node.cost.num_parameters for node_id, node in self.nodes.items() if node_id not in self.live]
        return self.live_cost + OperationCost(sum(dead))

    @cached_property
    def key(self) -> Any:
        """Everything that the generated class depends on, without values of biases and weights and derivation_uuid.

        Of a subgraph with these values, as text: its class holds them.
        """
        nodes = tuple(
            (node.node_id, node.node_type.value, node.output_size, node.activation_function, _frozen(node.attributes))
            for node in self.graph.nodes.values()
        )
        edges = tuple(
            (edge.edge_id, edge.source, edge.target, _frozen(edge.attributes))
            for edge in self.graph.edges.values()
            if edge.enabled
        )
        config = bool(self.graph.config.get("multigraph")), _text(self.graph.config.get("subgraphs"))
        key = self.projection, self.memory_format, self.autocast, self.is_padded, *config, nodes, edges
        if not self.name:
            return key
        values = [each.bias for each in self.graph.nodes.values()], [each.weight for each in self.graph.edges.values()]
        sizes = [f"{shape}" for _, _, shape in self.inputs]
        return sha256("\n".join([self.name, repr((key, values)), *sizes]).encode()).hexdigest()

    @cached_property
    def inputs(self) -> tuple[tuple[str, int, Shape], ...]:
        """Port, node id and shape of the INPUT nodes, by ascending id."""
        nodes = self.nodes.items()
        found = [(each.what.port, node_id, each.output) for node_id, each in nodes if isinstance(each.what, Input)]
        return tuple(sorted(found, key=lambda each: each[1]))

    @cached_property
    def arguments(self) -> tuple[tuple[str, Shape], ...]:
        """Name and shape of each argument of forward: a dense graph takes the features of all inputs side by side."""
        if self.takes_columns:
            return (("x", Shape((self.input_size,), Layout.VECTOR)),)
        return tuple((variable(node_id), shape) for _, node_id, shape in self.inputs)

    @cached_property
    def outputs(self) -> tuple[tuple[int, Shape], ...]:
        """Node id and shape of the OUTPUT nodes, by ascending id."""
        nodes = self.nodes.items()
        return tuple(sorted((i, each.output) for i, each in nodes if each.node.node_type is NodeType.OUTPUT))

    @property
    def output(self) -> Shape:
        """The shape of the one OUTPUT node of a subgraph. Raises ShapeError for another number of them."""
        if len(self.outputs) != 1:
            raise ShapeError(f"expected one output node in a subgraph, got {len(self.outputs)}")
        return self.outputs[0][1]

    @property
    def dead_node_ids(self) -> tuple[int, ...]:
        """The nodes without a path to an output: not computed."""
        return tuple(sorted(self.nodes.keys() - self.live))

    @cached_property
    def steps(self) -> tuple[TypedNode, ...]:
        """The nodes with parameters and modules: those that are computed, in a dense graph dead ones too."""
        nodes = self.nodes.items()
        kept = self.nodes.keys() if self.takes_columns else self.live
        return tuple(each for i, each in nodes if i in kept and not isinstance(each.what, Input))

    @cached_property
    def live_steps(self) -> tuple[TypedNode, ...]:
        """The nodes that are computed."""
        return tuple(step for step in self.steps if step.node_id in self.live)

    @cached_property
    def neurons(self) -> tuple[TypedNode, ...]:
        """The neurons, dead ones included."""
        return tuple(step for step in self.steps if step.is_neuron)

    @cached_property
    def live_neurons(self) -> tuple[TypedNode, ...]:
        """The neurons that are computed."""
        return tuple(step for step in self.live_steps if step.is_neuron)

    @cached_property
    def bodies(self) -> tuple[TypedGraph, ...]:
        """The different graphs that its nodes call."""
        return tuple({body.key: body for step in self.steps for body in step.bodies}.values())

    @property
    def is_concatenated(self) -> bool:
        """Whether several outputs are returned side by side, not as a tuple."""
        return len(self.outputs) > 1 and all(shape.layout is Layout.VECTOR for _, shape in self.outputs)

    @cached_property
    def input_size(self) -> int:
        """The number of elements of one example of all inputs."""
        return sum(shape.num_elements for _, _, shape in self.inputs)

    @cached_property
    def output_size(self) -> int:
        """The number of elements of all outputs for one example."""
        return sum(shape.num_elements for _, shape in self.outputs)

    @cached_property
    def scalars(self) -> tuple[ParameterPlan, ...]:
        """The 0-d parameters, whose first values are numbers of the graph or zero."""
        return tuple(each for each in self.parameters if each.shape == ())

    @cached_property
    def parameters(self) -> tuple[ParameterPlan, ...]:
        """Every parameter besides those of modules of operations, in the order in which they are made."""
        return tuple(parameter for step in self.steps for parameter in step.parameters)

    def values_of(self, graph: GraphElements) -> list[float]:
        """Return the first values of `scalars` in a graph with this key."""
        nodes, edges, biases, weights = graph.nodes, graph.edges, Initial.BIAS, Initial.WEIGHT
        return [
            nodes[owner].bias if initial is biases else edges[owner].weight if initial is weights else 0.0
            for initial, owner in ((each.initial, each.owner or 0) for each in self.scalars)
        ]

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The first values of `scalars`, of a subgraph only."""
        return tuple(self.values_of(self.graph)) if self.name else ()

    @cached_property
    def slots(self) -> tuple[StateSlot, ...]:
        """The recurrent state; empty for a feed-forward graph."""
        late = (e for step in self.live_steps for plan in step.inputs.values() if plan.late for e in plan.late_edges)
        sources = dict.fromkeys(edge.source for edge in late)
        outputs = [StateSlot("output", source, self.nodes[source].output.sizes) for source in sources]
        return (*outputs, *(slot for step in self.live_steps for slot in step.slots))

    @cached_property
    def is_run_by_node(self) -> bool:
        """Whether sequences are computed node by node: a cell is faster so, and nothing is read one step late."""
        kinds = (neuron.sizes.activation for neuron in (self.live_neurons if self.takes_columns else ()))
        has_cell = any(issubclass(kind, Cell) and kind.is_run_by_node for kind in kinds)
        return has_cell and not any(slot.kind == "output" for slot in self.slots)


def infer_shapes(graph: GraphElements) -> dict[int, TypedNode]:
    """Return the nodes of a graph whose elements are valid. Raises NodeShapeError for a node without a shape."""
    return _complete(graph, "auto").nodes


def graph_cost(graph: GraphElements, projection: str | None = None) -> OperationCost:
    """Return the cost of the model of a valid graph. Raises NodeShapeError for a node without a shape.

    Dead nodes are left out, but neurons of a dense graph keep their parameters; `projection` overrides the setting of
    the graph.
    """
    return _complete(graph, projection or own_projection(graph)).cost


def _complete(graph: GraphElements, projection: str) -> TypedGraph:
    typed: TypedGraph = graph.body("", (), projection)
    for failure in typed.failures.values():
        raise failure
    return typed


def own_projection(graph: GraphElements) -> str:
    """Return the projection in the translation settings of a graph; auto by default, and for an invalid one."""
    settings = graph.config.get("translation")
    name = settings.get("projection") if isinstance(settings, Mapping) else None
    return name if isinstance(name, str) and name in PROJECTIONS else "auto"


def _frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    if not attributes:
        return ()
    pairs = []
    for key in sorted(attributes):
        value = attributes[key]
        if key != "derivation_uuid":
            pairs.append((key, _text(value) if isinstance(value, Mapping) else value))
    return tuple(pairs)


def _text(data: Any) -> str:
    return json.dumps(data, default=dict, sort_keys=True) if data else ""
