"""Nodes and edges of a computation graph: immutable, checked for type (not for meaning) when they are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, TypeGuard

DEFAULT_AGGREGATION = "sum"
# Not smaller: behind five edges of weight 0.1 the logits of a chain deviate by 1e-7, and training stands still.
DEFAULT_WEIGHT = 1.0


class NodeType(StrEnum):
    """The role of a node: fixed source, freely placed, fixed sink."""

    INPUT = "input"
    HIDDEN = "hidden"
    OUTPUT = "output"


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
            object.__setattr__(self, "node_type", checked_node_type(self.node_type, name))
        if self.output_size is not None:
            object.__setattr__(self, "output_size", checked_int(self.output_size, name, "output_size"))
        if not isinstance(self.activation_function, str):
            raise ValueError(f"{name}: expected a str activation_function, got {self.activation_function!r}")
        object.__setattr__(self, "bias", checked_float(self.bias, name, "bias"))
        object.__setattr__(self, "attributes", frozen_attributes(self.attributes, name))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.node_id, self.node_type, self.output_size, self.activation_function, self.bias)
        return Node, (*fields, thawed(self.attributes))

    @property
    def aggregation(self) -> Any:
        """The aggregation's name (any JSON value until validate() has passed)."""
        return self.attributes.get("aggregation", DEFAULT_AGGREGATION)


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
            raise ValueError(f"{name}: expected a bool enabled, got {self.enabled!r}")
        object.__setattr__(self, "attributes", frozen_attributes(self.attributes, name))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.edge_id, self.source, self.target, self.weight, self.enabled)
        return Edge, (*fields, thawed(self.attributes))

    @property
    def is_recurrent(self) -> bool:
        """Whether the edge is marked to read the source's output of the previous time step."""
        return self.attributes.get("is_recurrent", False) is True

    @property
    def order(self) -> float:
        """The edge's place among its target's in-edges; its id where attributes["order"] is no finite number."""
        order = self.attributes.get("order", self.edge_id)
        return order if is_finite(order) else self.edge_id


def checked_int(value: Any, owner: str, name: str) -> int:
    """`value` as an int. Raises ValueError naming the owner and the field for anything else, bool included."""
    if type(value) is int:
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise ValueError(f"{owner}: expected an int {name}, got {value!r}")


def checked_float(value: Any, owner: str, name: str) -> float:
    """`value` as a float (NaN and infinity pass: validate() reports them). Raises ValueError for anything else."""
    if type(value) is float:
        return value
    if is_number(value):
        try:
            return float(value)
        except OverflowError:
            pass
    raise ValueError(f"{owner}: expected a float {name}, got {value!r}")


def checked_node_type(value: Any, owner: str) -> NodeType:
    """`value` as a NodeType. Raises ValueError listing the known types."""
    try:
        return NodeType(value)
    except ValueError:
        known = ", ".join(NodeType)
        raise ValueError(f"{owner}: expected a node_type out of {known}, got {value!r}") from None


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is a real number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether `value` is a real number other than NaN and infinity; integers may exceed every float."""
    return is_number(value) and (isinstance(value, Integral) or isfinite(value))


def frozen_attributes(attributes: Mapping[str, Any], owner: str) -> Mapping[str, Any]:
    """A read-only deep copy of JSON attributes. Raises ValueError naming the owner and the key."""
    if not isinstance(attributes, Mapping):
        raise ValueError(f"{owner}: expected a mapping attributes, got {attributes!r}")
    return MappingProxyType({key: _frozen(value, owner, key) for key, value in attributes.items()})


def _frozen(value: Any, owner: str, key: Any) -> Any:
    if not isinstance(key, str):
        raise ValueError(f"{owner}: expected str attribute names, got {key!r}")
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, owner, key) for item in value)
    if isinstance(value, Mapping):
        return frozen_attributes(value, owner)
    raise ValueError(f"{owner}: expected a JSON value for attribute {key}, got {value!r}")


def thawed(value: Any) -> Any:
    """The plain JSON form (dicts and lists) of a frozen attribute value."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return value
