"""Nodes and edges of a computation graph: immutable, with fields of checked types (validate() checks the values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, Protocol

from gflownet.operations.operation import INPUT_PORT
from gflownet.operations.values import checked_float, checked_int, frozen_attributes, is_finite, shown, thawed

DEFAULT_AGGREGATION = "sum"
# Not smaller: after five edges of weight 0.1 the logits of a chain differ by 1e-7, and training makes no progress.
DEFAULT_WEIGHT = 1.0


class NodeType(StrEnum):
    """The role of a node: source, operation in between, sink."""

    INPUT = "input"
    HIDDEN = "hidden"
    OUTPUT = "output"


_NODE_TYPES = frozenset(NodeType)


@dataclass(frozen=True)
class Node:
    """One operation: aggregate the in-edges, add the bias, apply the activation."""

    node_id: int
    node_type: NodeType
    output_size: int | None  # None is reported by validate()
    activation_function: str = "linear"
    bias: float = 0.0
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)  # read-only JSON values

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_id", checked_int(self.node_id, "a node", "id"))
        name = f"node {self.node_id}"
        if not isinstance(self.node_type, NodeType):
            if not isinstance(self.node_type, str) or self.node_type not in _NODE_TYPES:
                types = ", ".join(NodeType)
                raise ValueError(f"{name}: expected a node_type out of {types}, got {shown(self.node_type)}")
            object.__setattr__(self, "node_type", NodeType(self.node_type))
        if self.output_size is not None:
            object.__setattr__(self, "output_size", checked_int(self.output_size, name, "output_size"))
        if not isinstance(self.activation_function, str):
            raise ValueError(f"{name}: expected a str activation_function, got {shown(self.activation_function)}")
        object.__setattr__(self, "bias", checked_float(self.bias, name, "bias"))
        object.__setattr__(self, "attributes", frozen_attributes(self.attributes, name))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.node_id, self.node_type, self.output_size, self.activation_function, self.bias)
        return Node, (*fields, thawed(self.attributes))

    @property
    def aggregation(self) -> Any:
        """Name of the aggregation (any JSON value until validate() has passed)."""
        return self.attributes.get("aggregation", DEFAULT_AGGREGATION)

    @property
    def port(self) -> Any:
        """The port of an INPUT node of a subgraph (any JSON value until validate() has passed)."""
        return self.attributes.get("port", INPUT_PORT)

    @property
    def repeat(self) -> Any:
        """How often a subgraph is applied (any JSON value until validate() has passed)."""
        return self.attributes.get("repeat", 1)

    @property
    def derivation(self) -> Any:
        """Nodes with one derivation share their bias and post layer; None: none."""
        return self.attributes.get("derivation_uuid")


@dataclass(frozen=True)
class Edge:
    """One message from `source` to `target`; parallel edges differ by `edge_id`."""

    edge_id: int
    source: int
    target: int
    weight: float = DEFAULT_WEIGHT
    enabled: bool = True
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)  # read-only JSON values

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_id", checked_int(self.edge_id, "an edge", "edge_id"))
        name = f"edge {self.edge_id}"
        object.__setattr__(self, "source", checked_int(self.source, name, "source"))
        object.__setattr__(self, "target", checked_int(self.target, name, "target"))
        object.__setattr__(self, "weight", checked_float(self.weight, name, "weight"))
        if not isinstance(self.enabled, bool):
            raise ValueError(f"{name}: expected a bool enabled, got {shown(self.enabled)}")
        object.__setattr__(self, "attributes", frozen_attributes(self.attributes, name))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.edge_id, self.source, self.target, self.weight, self.enabled)
        return Edge, (*fields, thawed(self.attributes))

    @property
    def port(self) -> Any:
        """The input of the target that the edge feeds (any JSON value until validate() has passed)."""
        return self.attributes.get("port", INPUT_PORT)

    @property
    def is_recurrent(self) -> bool:
        """Whether the edge reads the source's output of the previous time step."""
        return self.attributes.get("is_recurrent", False) is True

    @property
    def order(self) -> float:
        """Sort key among the target's in-edges: attributes["order"], or the edge id if that is not a finite number."""
        if not self.attributes:
            return self.edge_id
        order = self.attributes.get("order", self.edge_id)
        return order if is_finite(order) else self.edge_id


class GraphElements(Protocol):
    """The read-only contents of a computation graph: input of ordering, validation and size limits."""

    config: Mapping[str, Any]
    nodes: Mapping[int, Node]  # by id
    edges: Mapping[int, Edge]

    def subgraph(self, name: str) -> GraphElements:
        """Return the graph that nodes apply by this name. Raises ValueError for an unknown name."""
        ...

    def detect_cycles(self) -> tuple[int, ...]:
        """Return ids of enabled non-recurrent edges that close a cycle."""
        ...

    def typed(self, projection: str | None = None) -> Any:
        """Return the TypedGraph; `projection` overrides the setting of the graph."""
        ...

    def body(self, name: str, shapes: Sequence[Any], projection: str) -> Any:
        """Return the TypedGraph of a subgraph for the shapes of its INPUT nodes, by ascending id."""
        ...


# A node with one of these maps tensors; one without is a neuron, or an input of a width.
TENSOR_ATTRIBUTES = ("operation", "subgraph", "shape")
_TENSOR_ATTRIBUTES = frozenset(TENSOR_ATTRIBUTES)


def is_dense(graph: GraphElements) -> bool:
    """Return whether a graph has neurons only, between inputs that declare a width: its tensors are vectors.

    Such a graph is written with every field, its model takes all features side by side, and an unmarked cycle is read
    one time step late.
    """
    attributes = map(attrgetter("attributes"), graph.nodes.values())
    return all(map(_TENSOR_ATTRIBUTES.isdisjoint, attributes))
