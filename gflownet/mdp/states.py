"""A batch of graphs as arrays: the states of every environment, and labels and numbers that describe them.

Letters: B graphs, N maximum number of nodes, A node attributes, E edge attributes, K limits, P parts of a label,
S named places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.action import PAIR_TYPES, GraphActionType

ABSENT = -1  # type of a missing node or edge
UNSET = -1  # value of an attribute that is not set
MAIN_EDGE = 0  # the first edge type: AddNode attaches with it and reachability follows it
MOST_VALUES = 127  # types, attribute values and orders are stored as int8
NO_LIMIT = torch.iinfo(torch.int64).max // 4  # differences to it do not overflow


@dataclass(frozen=True)
class Attribute:
    """An attribute of nodes or edges and its possible values."""

    name: str
    values: tuple[Hashable, ...]
    counted: bool = False  # of nodes: values are set one after another, and undoing one restores the previous


@dataclass(frozen=True)
class GraphVocabulary:
    """Types, attributes and sizes of graphs; they determine the shapes of states and actions."""

    node_types: tuple[str, ...]
    max_nodes: int
    directed: bool
    edge_types: tuple[str, ...] = ("edge",)
    node_attributes: tuple[Attribute, ...] = ()
    edge_attributes: tuple[Attribute, ...] = ()
    ranked: bool = False  # whether some nodes rank their in-edges
    limits: tuple[str, ...] = ()  # K metrics that a trajectory may bound, such as "parameters"; `sizes` measures them
    caps: tuple[int, ...] = ()  # K, the environment's own caps, NO_LIMIT where it has none

    def __post_init__(self) -> None:
        """Check sizes and that all names are distinct; otherwise one object would have several states."""
        attributes = (*self.node_attributes, *self.edge_attributes)
        for choices in (self.node_types, self.edge_types, *(a.values for a in attributes)):
            if len(set(map(str, choices))) < len(choices):
                raise ValueError(f"vocabulary: expected distinct types and values, got {list(choices)}")
        sizes = [len(self.node_types), len(self.edge_types), self.max_nodes, *(len(a.values) for a in attributes)]
        if min(sizes) < 1 or max(sizes) > MOST_VALUES:
            raise ValueError(f"vocabulary: expected 1 to {MOST_VALUES} types, values and nodes, got sizes {sizes}")
        if len(self.caps) != len(self.limits):
            raise ValueError(f"vocabulary: expected a cap for each of {list(self.limits)}, got {list(self.caps)}")

    @cached_property
    def node_columns(self) -> tuple[tuple[int, int], ...]:
        """Return the (attribute, value) positions of the columns of SetNodeAttr."""
        return _value_positions(self.node_attributes)

    @cached_property
    def edge_columns(self) -> tuple[tuple[int, int], ...]:
        """Return the (attribute, value) positions of the columns of SetEdgeAttr."""
        return _value_positions(self.edge_attributes)

    def num_rows(self, kind: GraphActionType) -> int:
        """Return the number of rows of an action type."""
        if kind == GraphActionType.Stop:
            return 1
        return self.max_nodes**2 if kind in PAIR_TYPES else self.max_nodes

    def num_columns(self, kind: GraphActionType) -> int:
        """Return the number of columns of an action type."""
        return {
            GraphActionType.AddNode: len(self.node_types),
            GraphActionType.AddEdge: len(self.edge_types),
            GraphActionType.SetNodeAttr: len(self.node_columns),
            GraphActionType.SetEdgeAttr: len(self.edge_columns),
            GraphActionType.RemoveNodeAttr: len(self.node_attributes),
            GraphActionType.RemoveEdgeAttr: len(self.edge_attributes),
        }.get(kind, 1)


@dataclass(frozen=True)
class GraphStates:
    """B graphs; the nodes of each fill positions 0 .. num_nodes - 1.

    Mutate the arrays only before sharing: `exists` and `has_edge` are computed once.
    """

    num_nodes: Tensor  # [B] int64
    node_type: Tensor  # [B, N] int8, ABSENT beyond num_nodes
    node_attr: Tensor  # [B, N, A] int8, UNSET
    edge_type: Tensor  # [B, N, N] int8, [b, s, t] is the edge s -> t; symmetric when undirected
    edge_attr: Tensor  # [B, N, N, E] int8, UNSET
    edge_order: Tensor  # [B, N, N] int8, rank among the in-edges of a target whose inputs are ordered, else 0
    reach: Tensor  # [B, N, N] bool, t is s or can be reached from s over edges of the first type (directed graphs)
    num_bridges: Tensor  # [B, N, N] int8, bridges that every path from s to t crosses (undirected; directed: [B, 0, 0])
    limit: Tensor  # [B, K] int64, hard caps of each state's trajectory; not part of its identity

    def __len__(self) -> int:
        """Return the number of graphs."""
        return self.num_nodes.shape[0]

    def __getitem__(self, index: Tensor | slice | int) -> GraphStates:
        """Return the graphs at an index, a slice or a boolean mask; an int drops the batch axis."""
        return GraphStates(*(getattr(self, name)[index] for name in _ARRAYS))

    @cached_property
    def largest(self) -> int:
        """The largest number of nodes; waits for a device, unless it was read ahead."""
        return int(self.num_nodes.max())

    @cached_property
    def exists(self) -> Tensor:
        """Return which nodes exist, [B, N] bool."""
        return self.node_type != ABSENT

    @cached_property
    def has_edge(self) -> Tensor:
        """Return which edges exist, [B, N, N] bool."""
        return self.edge_type != ABSENT

    def mapped(self, function: Callable[[Tensor], Tensor]) -> GraphStates:
        """Return the states with a function applied to each array."""
        return GraphStates(*(function(getattr(self, name)) for name in _ARRAYS))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the arrays by name, for a checkpoint; `GraphStates(**arrays)` restores them."""
        return {name: getattr(self, name) for name in _ARRAYS}

    def clone(self) -> GraphStates:
        """Return a copy that shares no memory."""
        return self.mapped(torch.clone)

    def with_limit(self, limit: Tensor) -> GraphStates:
        """Return the same graphs with other caps, [B, K] or [K]; they share the arrays."""
        return replace(self, limit=limit.expand_as(self.limit))

    def truncated(self, num_nodes: int) -> GraphStates:
        """Return the same graphs in arrays for `num_nodes` nodes; none may have more."""
        cut = {name: getattr(self, name)[:, :num_nodes] for name in ("node_type", "node_attr")}
        pairs = ("edge_type", "edge_attr", "edge_order", "reach", "num_bridges")
        return replace(self, **cut, **{name: getattr(self, name)[:, :num_nodes, :num_nodes] for name in pairs})

    def equals(self, other: GraphStates) -> Tensor:
        """Return which states have equal arrays, limits included, [B] bool."""
        same = [(getattr(self, x) == getattr(other, x)).reshape(len(self), -1).all(1) for x in _ARRAYS]
        return torch.stack(same).all(0)

    @staticmethod
    def cat(parts: Sequence[GraphStates]) -> GraphStates:
        """Return the concatenated graphs."""
        return GraphStates(*(torch.cat([getattr(p, name) for p in parts]) for name in _ARRAYS))

    @staticmethod
    def empty(num: int, vocabulary: GraphVocabulary) -> GraphStates:
        """Return `num` graphs without nodes, with the environment's own caps."""
        n, a, e = vocabulary.max_nodes, len(vocabulary.node_attributes), len(vocabulary.edge_attributes)
        undirected = 0 if vocabulary.directed else n
        return GraphStates(
            num_nodes=torch.zeros(num, dtype=torch.int64),
            node_type=torch.full((num, n), ABSENT, dtype=torch.int8),
            node_attr=torch.full((num, n, a), UNSET, dtype=torch.int8),
            edge_type=torch.full((num, n, n), ABSENT, dtype=torch.int8),
            edge_attr=torch.full((num, n, n, e), UNSET, dtype=torch.int8),
            edge_order=torch.zeros((num, n, n), dtype=torch.int8),
            reach=torch.eye(n, dtype=torch.bool).expand(num, n, n).clone(),
            num_bridges=torch.zeros(num, undirected, undirected, dtype=torch.int8),
            limit=torch.cat([torch.full((num, 1), cap) for cap in vocabulary.caps] or [torch.zeros(num, 0).long()], 1),
        )

    @staticmethod
    def with_nodes(num: int, vocabulary: GraphVocabulary, num_nodes: int) -> GraphStates:
        """Return `num` graphs of nodes without edges; the node at a position has the type at that position."""
        states = GraphStates.empty(num, vocabulary)
        states.node_type[:, :num_nodes] = torch.arange(num_nodes, dtype=torch.int8)
        states.num_nodes[:] = num_nodes
        return states


_ARRAYS = tuple(field.name for field in fields(GraphStates))


def _value_positions(attributes: Sequence[Attribute]) -> tuple[tuple[int, int], ...]:
    return tuple((a, v) for a, attribute in enumerate(attributes) for v in range(len(attribute.values)))


def transitive_closure(adjacency: Tensor) -> Tensor:
    """Return which nodes reach which (each reaches itself) for adjacency [B, N, N] bool, by repeated squaring."""
    n = adjacency.shape[-1]
    reach = (adjacency | torch.eye(n, dtype=torch.bool, device=adjacency.device)).float()
    for _ in range(max(1, math.ceil(math.log2(max(n, 2))))):
        reach = ((reach @ reach) > 0).float()
    return reach > 0


def bridges(adjacency: Tensor) -> Tensor:
    """Return which edges of undirected graphs [B, N, N] are bridges, [B, N, N] bool.

    An edge is a bridge iff its effective resistance is 1 (Klein and Randic 1993); an edge on a cycle of length L has at
    most 1 - 1/L, no_path from 1 in float64 for any graph that fits here.
    """
    n = adjacency.shape[-1]
    weights = adjacency.double()
    laplacian = torch.diag_embed(weights.sum(-1)) - weights
    # Adding J/n of each component makes the Laplacian invertible and leaves the resistances exact.
    component = transitive_closure(adjacency).double()
    inverse = torch.linalg.inv(laplacian + component / component.sum(-1, keepdim=True))
    diagonal = inverse.diagonal(dim1=-2, dim2=-1)
    resistance = diagonal[..., :, None] + diagonal[..., None, :] - 2 * inverse
    return adjacency & (resistance > 1 - 0.5 / n)


def count_bridges(adjacency: Tensor) -> Tensor:
    """Return the number of bridges on every path between two nodes, [B, N, N] int8, 0 without a path.

    Computed as shortest paths (Floyd 1962) with length 1 for bridges and 0 for other edges.
    """
    n = adjacency.shape[-1]
    no_path = 2 * n
    itself = torch.eye(n, dtype=torch.bool)
    length = torch.where(bridges(adjacency), 1, torch.where(adjacency | itself, 0, no_path)).to(torch.int16)
    for k in range(n):
        length = torch.minimum(length, length[:, :, k, None] + length[:, None, k, :])
    return torch.where(length < no_path, length, 0).to(torch.int8)


NO_EDGE = 0  # code of a missing edge
# Odd factor by which type, attributes and rank of an edge are combined to one code; products wrap around.
_FACTOR = 0x9E3779B1


@dataclass(frozen=True)
class LabelledGraphs:
    """B directed graphs with labelled nodes and edges.

    The order of the nodes has no meaning; a place is identified by its position.
    """

    labels: Tensor  # [B, N, P] int64, part 0 is the type of the node; UNSET: no node, or no value
    edges: Tensor  # [B, N, N] int64, code of the edge s -> t; NO_EDGE: none
    places: Tensor  # [B, S] int64, values of named places that the graph does not show; UNSET: empty

    def __len__(self) -> int:
        """Return the number of graphs."""
        return self.labels.shape[0]

    @property
    def exists(self) -> Tensor:
        """Return which nodes exist, [B, N] bool."""
        return self.labels[:, :, 0] != UNSET


def labelled_graphs(states: GraphStates) -> LabelledGraphs:
    """Return states with types and attributes as labels; edge codes include attributes and ranks."""
    labels = torch.cat([states.node_type[:, :, None], states.node_attr], 2).long()
    code = states.edge_type.long() + 1
    for part in (*states.edge_attr.unbind(-1), states.edge_order):
        code = code * _FACTOR + part.long() + 1
    edges = code.masked_fill(~states.has_edge, NO_EDGE)
    return LabelledGraphs(labels, edges, torch.empty(len(states), 0, dtype=torch.int64))


class Group(IntEnum):
    """Numbers with one distance in a kernel."""

    SIZES = 0
    PATHS = 1
    SETTINGS = 2
    COUNTS = 3
    SHAPES = 4
    PLACES = 5
    ENDS = 6


Numbers = list[tuple[str, Group, Tensor]]  # name, group and values [B] of each number; NaN: unknown


def setting_numbers(vocabulary: GraphVocabulary, states: GraphStates) -> Numbers:
    """Return mean, extremes and sum over the nodes of attributes that are numbers, counts of the values of others."""
    columns, ends = Numbers(), nodes_at_ends(states.exists, states.has_edge)
    for position, attribute in enumerate(vocabulary.node_attributes):
        index = states.node_attr[:, :, position].long()
        is_set = index != UNSET
        numbers = ordered(attribute.values)
        if numbers is None:
            columns += [
                (f"nodes with {attribute.name}={value}", Group.COUNTS, (index == number).sum(1))
                for number, value in enumerate(attribute.values)
            ]
            continue
        value = numbers[index].masked_fill(~is_set, 0.0)
        columns += [
            (f"{kind} of {attribute.name}{place}", Group.SETTINGS, number)
            for place, at in ends.items()
            for kind, number in summaries(value, is_set & at).items()
        ]
        filled = value.masked_fill(~is_set, 1.0)
        products = torch.einsum("bs,bst,bt->b", filled, states.has_edge.double(), filled)
        columns.append((f"products of {attribute.name} along edges", Group.SIZES, products.abs().log1p()))
    return columns


def nodes_at_ends(exists: Tensor, edge: Tensor) -> dict[str, Tensor]:
    """Return all nodes [B, N], those that read a source, and those that a sink reads, for edges [B, N, N]."""
    first, last = (edge & ~edge.any(1)[:, :, None]).any(1), (edge & ~edge.any(2)[:, None, :]).any(2)
    return {"": exists, " at a source": first, " at a sink": last}


def summaries(values: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return sum, mean, largest and least value [B] of values [B, N] under a mask; NaN but the sum for an empty one."""
    is_any, total = mask.any(1), (values * mask).sum(1)
    columns = {
        "mean": total / mask.sum(1),
        "largest": values.masked_fill(~mask, -torch.inf).amax(1),
        "least": values.masked_fill(~mask, torch.inf).amin(1),
    }
    return {"sum": total, **{name: x.masked_fill(~is_any, torch.nan) for name, x in columns.items()}}


def ordered(values: Sequence[Any]) -> Tensor | None:
    """Return values that are all numbers, at least two, as float64; None for others."""
    if len(values) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    return torch.tensor(values, dtype=torch.float64)
