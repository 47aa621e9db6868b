"""The immutable plan of a model: order of computation and parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gflownet.graphs.vocabulary import Activation, Aggregation, activation, aggregation
from gflownet.translation.activations import Cell
from gflownet.translation.parameters import Initial, ParameterPlan, linear_parameter


@dataclass(frozen=True)
class EdgePlan:
    """One enabled edge into a non-INPUT node."""

    edge_id: int
    source: int
    label: str  # "{source}_{target}", in multigraphs "{edge_id}": the end of the parameter names
    source_size: int
    reads_input: bool  # the source is an INPUT node
    is_recurrent: bool
    is_projected: bool


@dataclass(frozen=True)
class NodePlan:
    """One non-INPUT node: act(post(aggregate(messages)) + bias)."""

    node_id: int
    output_size: int
    activation: str
    aggregation: str
    settings: tuple[tuple[str, Any], ...]  # the aggregation's attributes
    edges: tuple[EdgePlan, ...]
    is_live: bool  # an OUTPUT, or feeds one

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The aggregation's attributes by name."""
        return dict(self.settings)

    @property
    def activation_class(self) -> type[Activation]:
        """The specification of the activation."""
        return activation(self.activation)

    @property
    def aggregation_class(self) -> type[Aggregation]:
        """The specification of the aggregation."""
        return aggregation(self.aggregation)

    @cached_property
    def message_size(self) -> int:
        """d, the width of every message into this node."""
        return self.aggregation_class.message_size(self.attributes, self.output_size)

    @cached_property
    def query_shape(self) -> tuple[int, ...]:
        """The shape of the learned query, empty for none."""
        return self.aggregation_class.query_shape(self.attributes, self.message_size)

    @cached_property
    def aggregated_size(self) -> int:
        """The width after the aggregation, before post."""
        return self.aggregation_class.aggregated_size(self.attributes, self.message_size, len(self.edges))

    @cached_property
    def has_post(self) -> bool:
        """Whether a linear layer follows the aggregation. An unfed concat has nothing to project."""
        size = self.aggregated_size
        return size > 0 and (size != self.output_size or bool(self.attributes.get("post_projection")))

    def parameters(self) -> Iterator[ParameterPlan]:
        """The parameters of the node and of its in-edges, in the order in which they are made."""
        yield ParameterPlan(f"bias_{self.node_id}", (), Initial.BIAS, owner=self.node_id)
        for edge in self.edges:
            yield ParameterPlan(f"weight_{edge.label}", (), Initial.WEIGHT, owner=edge.edge_id)
            if self.aggregation_class.edge_parameter:
                yield ParameterPlan(f"{self.aggregation_class.edge_parameter}_{edge.label}", (), Initial.ZERO)
            if edge.is_projected:
                yield linear_parameter(f"proj_{edge.label}", edge.source_size, self.message_size)
        if self.query_shape:
            yield ParameterPlan(f"q_{self.node_id}", self.query_shape, Initial.QUERY)
        if self.has_post:
            yield linear_parameter(f"post_{self.node_id}", self.aggregated_size, self.output_size)
        if issubclass(self.activation_class, Cell):
            yield from self.activation_class.parameters(f"{self.activation}_{self.node_id}", self.output_size)


@dataclass(frozen=True)
class StateSlot:
    """One tensor [B, size] of the recurrent state."""

    # "output" of a node that a recurrent edge reads; "hidden" of a cell, "cell" of an lstm; "token" of an rhn: 0 before
    # its first step, 1 after it.
    kind: str
    node_id: int
    size: int


@dataclass(frozen=True)
class ModelPlan:
    """A whole model. Two graphs with the same plan share one generated class."""

    inputs: tuple[tuple[int, int], ...]  # (node id, width) in the order of the input's columns
    nodes: tuple[NodePlan, ...]  # non-INPUT nodes, sources before targets
    outputs: tuple[int, ...]  # node ids in the order of the output's columns
    key: tuple[Any, ...]  # the structural key it was built from

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelPlan":
        return self

    @cached_property
    def input_size(self) -> int:
        """The number of columns of the model's input."""
        return sum(size for _, size in self.inputs)

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Output width by node id, INPUT nodes included."""
        return dict(self.inputs) | {node.node_id: node.output_size for node in self.nodes}

    @cached_property
    def output_size(self) -> int:
        """The number of columns of the model's output."""
        return sum(self.sizes[node_id] for node_id in self.outputs)

    @cached_property
    def parameters(self) -> tuple[ParameterPlan, ...]:
        """Every parameter, in the order in which they are made."""
        return tuple(parameter for node in self.nodes for parameter in node.parameters())

    @cached_property
    def scalars(self) -> tuple[ParameterPlan, ...]:
        """The 0-d parameters, whose first values are numbers of the graph or zero."""
        return tuple(parameter for parameter in self.parameters if parameter.shape == ())

    @cached_property
    def live_nodes(self) -> tuple[NodePlan, ...]:
        """The nodes with a path to an output: only these are computed."""
        return tuple(node for node in self.nodes if node.is_live)

    @cached_property
    def slots(self) -> tuple[StateSlot, ...]:
        """The recurrent state; empty for a feed-forward graph."""
        edges = [edge for node in self.live_nodes for edge in node.edges]
        sources = dict.fromkeys(edge.source for edge in edges if edge.is_recurrent)
        slots = [StateSlot("output", source, self.sizes[source]) for source in sources]
        for node in self.live_nodes:
            if issubclass(node.activation_class, Cell):
                sizes = ((kind, 1 if kind == "token" else node.output_size) for kind in node.activation_class.slots)
                slots += [StateSlot(kind, node.node_id, size) for kind, size in sizes]
        return tuple(slots)

    @cached_property
    def is_run_by_node(self) -> bool:
        """Whether sequences are computed node by node: there are rhn nodes, and nothing is read one step late."""
        has_rhn = any(node.activation == "rhn" for node in self.live_nodes)
        return has_rhn and not any(slot.kind == "output" for slot in self.slots)
