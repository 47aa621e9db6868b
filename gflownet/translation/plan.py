"""The immutable plan of a model: order of computation, names of modules, parameters and state. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from gflownet.graphs.operation_shapes import NodeShapes
from gflownet.operations.neuron import NeuronPlan
from gflownet.operations.neuron_code import identifier
from gflownet.operations.operation import INPUT_PORT
from gflownet.operations.parameters import Initial, ParameterPlan
from gflownet.operations.tensor_shape import Layout, Shape


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
class StepPlan:
    """One node that is not an INPUT: activation(operation(merge(aligned inputs)))."""

    shapes: NodeShapes
    label: str  # name of its module: "conv2d_3", or of its subgraph: "block_3"
    edge_labels: Mapping[int, str]  # by edge id: the end of the names of adapters and edge weights
    is_live: bool = True  # an OUTPUT, or feeds one
    tied_to: str = ""  # name of the module whose weight the port `weight` reads
    bodies: tuple[ModelPlan, ...] = ()  # of a subgraph or composite: one per repetition
    is_shared: bool = False  # one module for all repetitions, and for all nodes that share the subgraph
    is_first: bool = True  # False: an earlier step makes the module
    neuron: NeuronPlan | None = None  # of a node without operation

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

    @cached_property
    def parameters(self) -> tuple[ParameterPlan, ...]:
        """The parameters of a neuron, or the scalar weights and the bias around an operation."""
        if self.neuron is not None:
            return tuple(self.neuron.parameters())
        if not self.shapes.has_edge_weights:
            return ()
        edges = [
            edge for port, plan in self.shapes.inputs.items() if self.shapes.is_weighted(port) for edge in plan.edges
        ]
        weights = [
            ParameterPlan(f"weight_{self.edge_labels[edge.edge_id]}", (), Initial.WEIGHT, owner=edge.edge_id)
            for edge in edges
        ]
        return (*weights, ParameterPlan(identifier(f"bias_{self.node_id}"), (), Initial.BIAS, owner=self.node_id))

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
        """The state of the node itself; the outputs that recurrent edges read are slots of the model."""
        if self.neuron is not None:
            return tuple(StateSlot(kind, self.node_id, (size,)) for kind, size in self.neuron.state())
        if self.bodies:
            return tuple(slot for slots in self.body_slots for slot in slots)
        assert self.shapes.operation is not None
        state = self.shapes.operation.state(self.input_shapes)
        return tuple(StateSlot(kind, self.node_id, shape) for kind, shape in state.items())


@dataclass(frozen=True)
class ModelPlan:
    """A whole model, or a subgraph for certain input shapes. Two graphs with the same key share one class."""

    name: str  # "" of the model, the name of a subgraph or composite
    inputs: tuple[tuple[str, int, Shape], ...]  # port, node id and shape, by ascending id: the arguments of forward
    steps: tuple[StepPlan, ...]  # sources before targets
    outputs: tuple[tuple[int, Shape], ...]
    dead_node_ids: tuple[int, ...]  # nodes without a path to an output: not computed
    # Of neurons between inputs that declare widths: forward takes all features side by side, [B, F], and dead nodes
    # keep their parameters.
    is_dense: bool
    channels_last: bool
    autocast: str | None  # name of a dtype
    values: tuple[float, ...]  # first values of `scalars`, of a subgraph only
    key: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelPlan:
        return self

    @cached_property
    def bodies(self) -> tuple[ModelPlan, ...]:
        """The different plans that its steps call."""
        return tuple({body.key: body for step in self.steps for body in step.bodies}.values())

    @cached_property
    def live_steps(self) -> tuple[StepPlan, ...]:
        """The steps that are computed."""
        return tuple(step for step in self.steps if step.is_live)

    @cached_property
    def nodes(self) -> tuple[NeuronPlan, ...]:
        """The neurons, dead ones included."""
        return tuple(step.neuron for step in self.steps if step.neuron is not None)

    @cached_property
    def live_nodes(self) -> tuple[NeuronPlan, ...]:
        """The neurons that are computed."""
        return tuple(step.neuron for step in self.live_steps if step.neuron is not None)

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
    def shapes(self) -> dict[int, Shape]:
        """Output shape by node id, INPUT nodes included."""
        return {node: shape for _, node, shape in self.inputs} | {s.node_id: s.shapes.output for s in self.steps}

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Features or channels by node id."""
        return {node_id: shape.channels for node_id, shape in self.shapes.items()}

    @cached_property
    def parameters(self) -> tuple[ParameterPlan, ...]:
        """Every parameter besides those of modules of operations, in the order in which they are made."""
        return tuple(parameter for step in self.steps for parameter in step.parameters)

    @cached_property
    def scalars(self) -> tuple[ParameterPlan, ...]:
        """The 0-d parameters, whose first values are numbers of the graph or zero."""
        return tuple(parameter for parameter in self.parameters if parameter.shape == ())

    @cached_property
    def slots(self) -> tuple[StateSlot, ...]:
        """The recurrent state; empty for a feed-forward graph."""
        late = (edge for step in self.live_steps for plan in step.shapes.inputs.values() for edge in plan.late_edges)
        sources = dict.fromkeys(edge.source for edge in late)
        outputs = [StateSlot("output", source, self.shapes[source].sizes) for source in sources]
        return (*outputs, *(slot for step in self.live_steps for slot in step.slots))

    @cached_property
    def is_run_by_node(self) -> bool:
        """Whether sequences are computed node by node: there are rhn nodes, and nothing is read one step late."""
        has_rhn = self.is_dense and any(neuron.activation == "rhn" for neuron in self.live_nodes)
        return has_rhn and not any(slot.kind == "output" for slot in self.slots)
