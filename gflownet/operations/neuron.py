"""A neuron: act(post(aggregate(messages)) + bias), with a projection and a scalar weight per in-edge. No torch.

It is the operation of a node that names none. Letters: B batch, J in-edges, d message width, D output width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from gflownet.operations.activations import Cell
from gflownet.operations.parameters import Initial, ParameterPlan, linear_parameter
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError, join
from gflownet.operations.vocabulary import Activation, Aggregation, activation, aggregation

USUAL_BATCH = 64


@dataclass(frozen=True)
class EdgePlan:
    """One enabled edge into a neuron."""

    edge_id: int
    source: int
    label: str  # "{source}_{target}", in multigraphs "{edge_id}": the end of the parameter names
    source_size: int
    reads_input: bool = False  # the source is an INPUT node
    is_recurrent: bool = False
    is_projected: bool = False


@dataclass(frozen=True)
class NeuronPlan:
    """One neuron."""

    node_id: int
    output_size: int
    activation: str
    aggregation: str
    settings: tuple[tuple[str, Any], ...]  # the aggregation's attributes
    edges: tuple[EdgePlan, ...]
    label: str = ""  # the end of the parameter names

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

    def scales_matrix(self, edge: EdgePlan) -> bool:
        """Return whether the weight of a projected edge multiplies its matrix, not its source.

        The cheaper factor at a usual batch. From an input it is always the matrix, because dL/dw would otherwise cost
        the input's gradient.
        """
        return edge.reads_input or self.message_size <= USUAL_BATCH

    def state(self) -> Iterator[tuple[str, int]]:
        """Yield kind and width of the tensors that its activation carries from step to step."""
        if issubclass(self.activation_class, Cell):
            for kind in self.activation_class.slots:
                yield kind, 1 if kind == "token" else self.output_size

    def parameters(self) -> Iterator[ParameterPlan]:
        """The parameters of the node and of its in-edges, in the order in which they are made."""
        yield ParameterPlan(f"bias_{self.label}", (), Initial.BIAS, owner=self.node_id)
        for edge in self.edges:
            yield ParameterPlan(f"weight_{edge.label}", (), Initial.WEIGHT, owner=edge.edge_id)
            if self.aggregation_class.edge_parameter:
                yield ParameterPlan(f"{self.aggregation_class.edge_parameter}_{edge.label}", (), Initial.ZERO)
            if edge.is_projected:
                yield linear_parameter(f"proj_{edge.label}", edge.source_size, self.message_size)
        if self.query_shape:
            yield ParameterPlan(f"q_{self.label}", self.query_shape, Initial.QUERY)
        if self.has_post:
            yield linear_parameter(f"post_{self.label}", self.aggregated_size, self.output_size)
        if issubclass(self.activation_class, Cell):
            yield from self.activation_class.parameters(f"{self.activation}_{self.label}", self.output_size)

    def num_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return sum(prod(parameter.shape) for parameter in self.parameters())

    def multiply_adds(self) -> int:
        """Return the multiply-adds of matrix products for one row of the batch."""
        width, count, size = self.message_size, len(self.edges), self.output_size
        total = sum(edge.source_size * width for edge in self.edges if edge.is_projected)
        total += self.aggregation_class.multiply_adds(self.attributes, width, count)
        if self.has_post and self.edges:
            total += self.aggregated_size * size
        return total + self.activation_class.multiply_adds(size)

    def elementwise_flops(self) -> int:
        """Return the operations besides matrix products for one row: 1 per element, activations included."""
        width, count, size = self.message_size, len(self.edges), self.output_size
        flops = count * width + size  # weights of the edges, bias
        flops += self.aggregation_class.elementwise_flops(self.attributes, width, count)
        return flops + self.activation_class.elementwise_flops(size)


def neuron_shape(inputs: Sequence[Shape], features: int, activation_name: str) -> Shape:
    """Return the output of a neuron, of a sequence position by position.

    Raises:
        ShapeError: inputs with channels before positions, or a state on a sequence.
    """
    target = join(inputs)
    if target.layout not in (Layout.VECTOR, Layout.SEQUENCE):
        raise ShapeError(f"expected an operation or a subgraph for a {target.layout}, got none")
    if target.layout is Layout.SEQUENCE and activation(activation_name).max_parameters(1):
        message = f"expected an activation without state of a node that maps tensors, got {activation_name}"
        raise ShapeError(message)
    return target.with_channels(features)
