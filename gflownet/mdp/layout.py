"""How a batch of states lies in a torch_geometric `Batch`: ragged for message passing, dense for attention.

Letters: B graphs, N the most nodes of the environment, n the most nodes of this batch (at least 1), M rows, C columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.states import GraphStates

if TYPE_CHECKING:
    from gflownet.mdp.context import GraphBuildingEnvContext


Kinds = Sequence[GraphActionType]


class BatchLayout(ABC):
    """The way from states to a batch, and between the actions of an environment and (type, row, column) indices."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        self.context = context

    @abstractmethod
    def encode(self, states: GraphStates) -> Batch:
        """Return the states as a policy reads them."""

    @abstractmethod
    def categorical(self, batch: Batch, logits: Sequence[Tensor], kinds: Kinds) -> GraphActionCategorical:
        """Return the distributions over legal actions that logits of every row mean, one tensor per action type."""

    @abstractmethod
    def to_indices(self, batch: Batch, actions: ActionBatch, graphs: Tensor | None, kinds: Kinds) -> Tensor:
        """Return the (type, row, column) of legal actions for these graphs (None: one for each), [A, 3] int64."""

    @abstractmethod
    def from_indices(self, batch: Batch, indices: Tensor, graphs: Tensor | None) -> ActionBatch:
        """Return the environment's actions behind (type, row, column) indices [A, 3] for these graphs."""

    @abstractmethod
    def merge(self, batches: Sequence[Batch]) -> Batch:
        """Return the graphs of all batches one after another."""

    @abstractmethod
    def split(self, categorical: GraphActionCategorical, batches: Sequence[Batch]) -> list[GraphActionCategorical]:
        """Return each batch's distributions out of those of the merged batch."""


class SparseLayout(BatchLayout):
    """Nodes and edges one after another, and for every action type the rows on which some column is legal.

    Those rows are `add_node_index` [M] or, on pairs, `add_edge_index` [2, M] (nodes of the batch), `add_node_mask`
    [M, C], and `add_node_row` [M] (the environment's row).
    """

    def encode(self, states: GraphStates) -> Batch:
        """Return all states as one batch; an empty graph is shown as a single blank node."""
        context = self.context
        blank = (states.num_nodes == 0)[:, None] & (torch.arange(context.env.vocabulary.max_nodes) == 0)
        graph, node = (states.exists | blank).nonzero(as_tuple=True)
        node_id = torch.full(states.node_type.shape, -1, dtype=torch.int64)
        node_id[graph, node] = torch.arange(len(graph))
        counts = states.num_nodes.clamp(min=1)
        fields = {
            "x": context.node_features(states)[graph, node],
            "batch": graph,
            "ptr": torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            "graph_attr": context.graph_features(states),
            **self._edges(states, node_id),
            **self._actions(states, node_id),
        }
        return _batch(fields)

    def row_graphs(self, batch: Batch, kinds: Kinds | None = None) -> list[Tensor]:
        """Return the graph of every row, one [M] int64 per (forward) action type, ascending."""
        return [batch["batch"][self._anchor(batch, kind)] for kind in kinds or self.context.action_types]

    def categorical(self, batch: Batch, logits: Sequence[Tensor], kinds: Kinds) -> GraphActionCategorical:
        """Return the distributions that logits [M, C] mean."""
        masks, rows = [batch[f"{kind.field_name}_mask"] for kind in kinds], self.row_graphs(batch, kinds)
        partial = kinds == self.context.backward_types
        return GraphActionCategorical(logits, masks, row_graphs=rows, num_graphs=batch.num_graphs, may_be_empty=partial)

    def to_indices(self, batch: Batch, actions: ActionBatch, graphs: Tensor | None, kinds: Kinds) -> Tensor:
        """Return the (type, row, column) of legal actions for these graphs, [A, 3] int64; rows count within a graph."""
        most = self.context.env.vocabulary.max_nodes**2
        owner = torch.arange(len(actions)) if graphs is None else graphs
        indices = torch.stack([torch.zeros_like(actions.kind), torch.zeros_like(actions.row), actions.column], 1)
        for position, (kind, rows) in enumerate(zip(kinds, self.row_graphs(batch, kinds), strict=True)):
            chosen = (actions.kind == kind).nonzero().squeeze(1)
            # Rows ascend within a graph, so (graph, row) as one number ascends over the batch.
            place = rows * most + batch[f"{kind.field_name}_row"]
            at = torch.searchsorted(place, owner[chosen] * most + actions.row[chosen])
            indices[chosen, 1] = at - torch.searchsorted(rows, owner[chosen])
            indices[chosen, 0] = position
        return indices

    def from_indices(self, batch: Batch, indices: Tensor, graphs: Tensor | None) -> ActionBatch:
        """Return the environment's actions behind (type, row, column) indices [A, 3] for these graphs.

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        kind, row = torch.zeros_like(indices[:, 0]), torch.zeros_like(indices[:, 0])
        owner = torch.arange(len(indices)) if graphs is None else graphs
        for position, (action_type, rows) in enumerate(
            zip(self.context.action_types, self.row_graphs(batch), strict=True)
        ):
            chosen = (indices[:, 0] == position).nonzero().squeeze(1)
            start = torch.searchsorted(rows, owner[chosen])
            num_rows = torch.searchsorted(rows, owner[chosen], right=True) - start
            outside = chosen[(indices[chosen, 1] < 0) | (indices[chosen, 1] >= num_rows)]
            if len(outside):
                graph = int(outside[0])
                raise ValueError(f"graph {graph}: expected a row of {action_type.name}, got {int(indices[graph, 1])}")
            row[chosen] = batch[f"{action_type.field_name}_row"][start + indices[chosen, 1]]
            kind[chosen] = int(action_type)
        return ActionBatch(kind, row, indices[:, 2])

    def merge(self, batches: Sequence[Batch]) -> Batch:
        """Return the graphs of all batches one after another; indices of nodes and graphs move up."""
        nodes = _starts([len(batch["x"]) for batch in batches])
        graphs = _starts([batch.num_graphs for batch in batches])
        fields: dict[str, Tensor] = {}
        for key in _keys(batches[0]):
            parts = [batch[key] for batch in batches]
            if key == "ptr":
                parts = [parts[0], *(part[1:] + start for part, start in zip(parts[1:], nodes[1:], strict=True))]
            elif key == "batch":
                parts = [part + start for part, start in zip(parts, graphs, strict=True)]
            elif key.endswith("_index"):
                parts = [part + start for part, start in zip(parts, nodes, strict=True)]
            fields[key] = torch.cat(parts, -1 if key.endswith("_index") else 0)
        return _batch(fields)

    def split(self, categorical: GraphActionCategorical, batches: Sequence[Batch]) -> list[GraphActionCategorical]:
        """Return each batch's distributions out of those of the merged batch."""
        starts = _starts([batch.num_graphs for batch in batches])
        return [categorical[a : a + batch.num_graphs] for a, batch in zip(starts, batches, strict=True)]

    def _anchor(self, batch: Batch, kind: GraphActionType) -> Tensor:
        index = batch[f"{kind.field_name}_index"]
        return index[0] if kind in PAIR_TYPES else index

    def _edges(self, states: GraphStates, node_id: Tensor) -> dict[str, Tensor]:
        """Return every edge in both directions, one after the other, with a flag for the direction."""
        directed = self.context.env.vocabulary.directed
        upper = states.has_edge if directed else states.has_edge.triu(1)
        graph, source, target = upper.nonzero(as_tuple=True)
        features = self.context.edge_features(states, graph, source, target)
        ends = torch.stack([node_id[graph, source], node_id[graph, target]])
        edge_index = torch.stack([ends, ends.flip(0)], -1).reshape(2, -1)
        along = torch.ones(len(features), 1)
        backwards = 1 - along if directed else along
        there = torch.cat([features, along, 1 - along], 1)
        back = torch.cat([features, backwards, 1 - backwards], 1)
        return {"edge_index": edge_index, "edge_attr": torch.stack([there, back], 1).reshape(-1, there.shape[1])}

    def _actions(self, states: GraphStates, node_id: Tensor) -> dict[str, Tensor]:
        context, fields = self.context, {}
        n = context.env.vocabulary.max_nodes
        for kind, mask in context.shown_masks(states).items():
            graph, row = mask.any(-1).nonzero(as_tuple=True)
            name = kind.field_name
            fields[f"{name}_mask"], fields[f"{name}_row"] = mask[graph, row], row
            if kind in PAIR_TYPES:
                fields[f"{name}_index"] = torch.stack([node_id[graph, row // n], node_id[graph, row % n]])
            else:
                fields[f"{name}_index"] = node_id[graph, row]
            if kind in PAIR_TYPES - {GraphActionType.AddEdge}:
                fields[f"{name}_attr"] = context.edge_features(states, graph, row // n, row % n)
            elif kind == GraphActionType.AddEdge:
                fields[f"{name}_attr"] = context.pair_features(states)[graph, row // n, row % n]
        return fields


class DenseLayout(BatchLayout):
    """The arrays of the states, cut to the n nodes that the largest graph has, and masks over all rows.

    Fields: those of `GraphStates`, [B], [B, n, ...] or [B, n, n, ...]; `extra` [B, n, F], a context's own node
    features; `add_node_mask` [B, n, C], on pairs `add_edge_mask` [B, n * n, C], and `stop_mask` [B, 1, 1].
    """

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        super().__init__(context)
        self._known_tables: dict[int, tuple[Tensor, Tensor]] = {}

    def encode(self, states: GraphStates) -> Batch:
        """Return the arrays that a dense policy embeds; small graphs take little room."""
        context, masks = self.context, self.context.shown_masks(states)
        vocabulary = context.env.vocabulary
        most, n = vocabulary.max_nodes, max(1, int(states.num_nodes.max()))
        shown = states.truncated(n) if n < most else states
        fields: dict[str, Tensor] = {
            "num_nodes_of": shown.num_nodes,  # a Batch counts `num_nodes` itself
            "node_type": shown.node_type,
            "edge_type": shown.edge_type,
            "reach": shown.reach,
        }
        if vocabulary.node_attributes:
            fields["node_attr"] = shown.node_attr
        if vocabulary.edge_attributes:
            fields["edge_attr"] = shown.edge_attr
        if vocabulary.ranked:
            fields["edge_order"] = shown.edge_order
        if context.num_extra_node_features:
            fields["extra"] = context.extra_node_features(states)[:, :n]
        for kind, mask in masks.items():
            fields[f"{kind.field_name}_mask"] = self._cut(kind, mask, most, n)
        return _batch(fields)

    def categorical(self, batch: Batch, logits: Sequence[Tensor], kinds: Kinds) -> GraphActionCategorical:
        """Return the distributions that logits [B, R, C] mean."""
        masks = [batch[f"{kind.field_name}_mask"] for kind in kinds]
        return GraphActionCategorical.dense(logits, masks, may_be_empty=kinds == self.context.backward_types)

    def to_indices(self, batch: Batch, actions: ActionBatch, graphs: Tensor | None, kinds: Kinds) -> Tensor:
        """Return the (type, row, column) of legal actions, [A, 3] int64; whose they are does not matter here."""
        position = torch.zeros(max(GraphActionType) + 1, dtype=torch.int64)
        position[[int(kind) for kind in kinds]] = torch.arange(len(kinds))
        most, n = self.context.env.vocabulary.max_nodes, batch["node_type"].shape[1]
        row = _renumbered(actions.kind, actions.row, most, n)
        return torch.stack([position[actions.kind], row, actions.column], 1)

    def from_indices(self, batch: Batch, indices: Tensor, graphs: Tensor | None) -> ActionBatch:
        """Return the environment's actions behind (type, row, column) indices [A, 3]; whose they are matters not.

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        most, n = self.context.env.vocabulary.max_nodes, batch["node_type"].shape[1]
        position, row, column = indices.unbind(1)
        kinds, num_rows = self._tables(n)
        outside = (row < 0) | (row >= num_rows[position])
        if bool(outside.any()):
            graph = int(outside.nonzero()[0])
            name = self.context.action_types[int(position[graph])].name
            raise ValueError(f"graph {graph}: expected a row of {name}, got {int(row[graph])}")
        kind = kinds[position]
        return ActionBatch(kind, _renumbered(kind, row, n, most), column)

    def merge(self, batches: Sequence[Batch]) -> Batch:
        """Return the graphs of all batches one after another, with room for the largest."""
        n = max(batch["node_type"].shape[1] for batch in batches)
        keys = _keys(batches[0])
        return _batch({key: torch.cat([self._widened(b, key, n) for b in batches]) for key in keys})

    def split(self, categorical: GraphActionCategorical, batches: Sequence[Batch]) -> list[GraphActionCategorical]:
        """Return each batch's distributions, with its own number of rows, out of those of the merged batch."""
        n, logits = max(batch["node_type"].shape[1] for batch in batches), categorical.logits
        parts, start = [], 0
        for batch in batches:
            stop, had = start + len(batch["node_type"]), batch["node_type"].shape[1]
            rows = zip(self.context.action_types, logits, strict=True)
            own = [self._cut(kind, x[start:stop], n, had) for kind, x in rows]
            parts.append(GraphActionCategorical.dense(own, self.context.masks(batch)))
            start = stop
        return parts

    def _cut(self, kind: GraphActionType, values: Tensor, before: int, after: int) -> Tensor:
        """Return [B, R, C] of graphs with `before` nodes as they are with `after` nodes."""
        if before == after or kind == GraphActionType.Stop:
            return values
        if kind in PAIR_TYPES:
            return values.unflatten(1, (before, before))[:, :after, :after].flatten(1, 2)
        return values[:, :after]

    def _tables(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the kind and the number of rows of every action type in batches whose largest graph has n nodes."""
        if n not in self._known_tables:
            types, limits = self.context.action_types, {GraphActionType.Stop: 1, **dict.fromkeys(PAIR_TYPES, n * n)}
            tables = [[int(kind), limits.get(kind, n)] for kind in types]
            with torch.inference_mode(False):
                kinds, num_rows = torch.tensor(tables).unbind(1)
            self._known_tables[n] = kinds, num_rows
        return self._known_tables[n]

    def _widened(self, batch: Batch, key: str, n: int) -> Tensor:
        """Return a field as it would be in a batch whose largest graph has n nodes."""
        value, had = batch[key], batch["node_type"].shape[1]
        if had == n or key in ("num_nodes_of", "stop_mask"):
            return value
        blank = _BLANK.get(key, 0)
        pairs = {f"{kind.field_name}_mask" for kind in PAIR_TYPES}
        if key in pairs:
            value = value.unflatten(1, (had, had))
        num_axes = 2 if key in pairs or key in _PAIR_FIELDS else 1
        shape = [len(value), *[n] * num_axes, *value.shape[1 + num_axes :]]
        wide = value.new_full(shape, blank)
        wide[(slice(None), *[slice(had)] * num_axes)] = value
        if key == "reach":
            wide.diagonal(dim1=1, dim2=2).fill_(True)
        return wide.flatten(1, 2) if key in pairs else wide


_IS_PAIR = torch.tensor([int(kind in PAIR_TYPES) for kind in GraphActionType])


def _renumbered(kind: Tensor, row: Tensor, before: int, after: int) -> Tensor:
    """Return rows with pairs, source * before + target, rewritten as source * after + target."""
    if before == after:
        return row
    return row + _IS_PAIR[kind] * (row.div(before, rounding_mode="floor") * (after - before))


_PAIR_FIELDS = ("edge_type", "edge_attr", "edge_order", "reach")
_BLANK = {"node_type": -1, "node_attr": -1, "edge_type": -1, "edge_attr": -1}  # ABSENT and UNSET


_BATCH = type(Batch())


def _keys(batch: Any) -> list[str]:
    return batch.keys()  # of the class that Batch() makes, which type checkers do not know


def _batch(fields: dict[str, Tensor]) -> Batch:
    """Return a Batch of the fields; calling `Batch` itself inspects signatures, which takes longer than encoding."""
    batch = type.__call__(_BATCH)
    batch.update(fields)
    return batch


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]
