"""Nodes and edges of a computation graph: immutable, with fields of checked types (validate() checks the values).

Their properties are the only readers of attributes, besides the checks of element_problems.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

from gflownet.graphs.operation import OPERATIONS, AppliedOperation, read_operation
from gflownet.operations.operation import INPUT_PORT
from gflownet.operations.tensor_shape import AXES, Layout, Shape, ShapeError
from gflownet.operations.values import checked_float, checked_int, frozen_attributes, is_finite, shown, texts_in, thawed
from gflownet.plugins import is_module_class

DEFAULT_AGGREGATION = "sum"
# Not smaller: after five edges of weight 0.1 the logits of a chain differ by 1e-7, and training makes no progress.
DEFAULT_WEIGHT = 1.0
_BUILT_IN = frozenset(OPERATIONS.homes.values())


class NodeType(StrEnum):
    """The role of a node: source, operation in between, sink."""

    INPUT = "input"
    HIDDEN = "hidden"
    OUTPUT = "output"


_NODE_TYPES = frozenset(NodeType)


class NodeKind(StrEnum):
    """What a node is, by its type and attributes."""

    INPUT = "an input"
    NEURON = "a neuron"
    OPERATION = "an operation"
    SUBGRAPH = "a subgraph"


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
    def kind(self) -> NodeKind:
        """Input, subgraph, operation or, with none of these attributes, neuron."""
        if self.node_type is NodeType.INPUT:
            return NodeKind.INPUT
        if "subgraph" in self.attributes:
            return NodeKind.SUBGRAPH
        return NodeKind.OPERATION if "operation" in self.attributes else NodeKind.NEURON

    @property
    def operation(self) -> Any:
        """Name and settings (any JSON value until validate() has passed)."""
        return self.attributes.get("operation")

    @property
    def operation_name(self) -> Any:
        """Name of the operation; None without one."""
        return self.operation.get("name") if isinstance(self.operation, Mapping) else None

    @cached_property
    def applied(self) -> AppliedOperation:
        """The operation with complete settings. Raises ValueError for an invalid one."""
        return read_operation(self.operation)

    @property
    def subgraph(self) -> Any:
        """Name of the subgraph."""
        return self.attributes.get("subgraph")

    @property
    def share(self) -> Any:
        """Whether nodes with this subgraph share its weights; of an operation the name of its weights."""
        return self.attributes.get("share", False)

    @property
    def shared_weights(self) -> tuple[str, str] | None:
        """Kind and name of the weights of all nodes that share them."""
        if not self.share:
            return None
        return ("operation", self.share) if self.subgraph is None else ("subgraph", self.subgraph)

    @property
    def align(self) -> Any:
        """How inputs of unequal shapes are aligned; None: they broadcast."""
        return self.attributes.get("align")

    @property
    def axis(self) -> Any:
        """The axis of concat."""
        return self.attributes.get("axis", AXES[0])

    @property
    def positions(self) -> Any:
        """The sizes of positions to which inputs are aligned; None: those of the inputs."""
        return self.attributes.get("positions")

    @property
    def has_edge_weights(self) -> bool:
        """Whether each in-edge has a learned number, and the node a learned bias."""
        return self.attributes.get("edge_weight") is True

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
    def operation(self) -> Any:
        """The operation of an edge, before `edge_operations_to_nodes`; None without one."""
        return self.attributes.get("operation")

    @property
    def rank(self) -> Any:
        """The place among the target's in-edges as written, 0 by default."""
        return self.attributes.get("order", 0)

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


def maps_tensors(graph: GraphElements) -> bool:
    """Return whether a graph has an operation, a subgraph or an input with a shape, not only neurons between vectors.

    A graph without is written with every field, its model takes all features side by side, and an unmarked cycle is
    read one time step late.
    """
    return not all(map(frozenset(TENSOR_ATTRIBUTES).isdisjoint, map(attrgetter("attributes"), graph.nodes.values())))


def input_shape(node: Node) -> Shape:
    """Return the declared shape of an INPUT node. Raises ShapeError for an invalid or missing one."""
    sizes = node.attributes.get("shape", node.output_size)
    layout = node.attributes.get("layout")
    dtype = node.attributes.get("dtype", "token" if layout == Layout.TOKENS else "float")
    if layout is not None and (dtype == "token") != (layout == Layout.TOKENS):
        raise ShapeError(f"expected dtype token exactly with layout tokens, got {shown(dtype)} and {shown(layout)}")
    if dtype == "token":
        layout = Layout.TOKENS
    entries = sizes if isinstance(sizes, tuple) else (sizes,)
    if not {*map(type, entries)} <= {int}:
        raise ShapeError(f"expected a shape of integers, got {shown(thawed(sizes))}")
    return Shape.of(entries, layout)


def inner_ports(inner: GraphElements) -> dict[str, int]:
    """Return the INPUT node of a subgraph for each port (its attribute `port`, else input), by ascending id."""
    inputs = [node for _, node in sorted(inner.nodes.items()) if node.node_type is NodeType.INPUT]
    return {node.port: node.node_id for node in inputs}


def nested_graphs(graph: GraphElements) -> Iterator[GraphElements]:
    """Yield a graph and every subgraph that its nodes apply, each once; unknown names are left out."""
    pending, visited = [graph], set()
    while pending:
        each = pending.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        yield each
        for node in each.nodes.values():
            if (inner := applied_subgraph(each, node)) is not None:
                pending.append(inner)


def applied_subgraph(graph: GraphElements, node: Node) -> GraphElements | None:
    """Return the subgraph that a node applies; None for none or an invalid one."""
    if "subgraph" not in node.attributes:
        return None
    try:
        return graph.subgraph(node.subgraph)
    except ValueError:
        return None


def names_classes(graph: GraphElements, is_known: Callable[[object], bool]) -> bool:
    """Return whether a graph or one of its subgraphs names a class that is not known: built in or imported."""
    nodes = (node for each in nested_graphs(graph) for node in each.nodes.values())
    return not all(is_known(name) for node in nodes for name in _class_names(node))


def _class_names(node: Node) -> Iterator[object]:
    yield from (node.activation_function, node.aggregation)
    if isinstance(node.operation, Mapping):
        yield node.operation_name
        yield from filter(is_module_class, texts_in(node.operation))  # classes and functions among the settings


def is_imported(name: object) -> bool:
    """Return whether a name is built in, or the module of a module:Class or entry point is imported."""
    return is_built_in(name) or _home(name).partition(":")[0] in sys.modules


def is_built_in(name: object) -> bool:
    """Return whether a name is built in or of torch: its class may be imported."""
    home = _home(name)
    return not is_module_class(home) or home in _BUILT_IN or home.startswith(("torch.", "torch:"))


def _home(name: object) -> str:
    """Return module:Class of an operation; any other name as it is."""
    return OPERATIONS.home(name) if isinstance(name, str) else str(name)
