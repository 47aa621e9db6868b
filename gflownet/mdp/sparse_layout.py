"""Layout for message passing: concatenated nodes and edges, and the rows of legal actions.

Letters: B graphs, N maximum nodes of the environment, M rows, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.layout import Batch, BatchLayout, Kinds, masks_of
from gflownet.mdp.states import GraphStates


class SparseLayout(BatchLayout):
    """Concatenated nodes and edges, and for every action type the rows with a legal column.

    The fields of these rows are `add_node_index` [M] or, on pairs, `add_edge_index` [2, M] (nodes of the batch),
    `add_node_mask` [M, C], and `add_node_row` [M] (the environment's row).
    """

    def encode(self, states: GraphStates) -> Any:
        """Return all states as one torch_geometric `Batch`; an empty graph becomes a single blank node."""
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
        return _make_batch(fields)

    def row_graphs(self, batch: Batch, kinds: Kinds | None = None) -> list[Tensor]:
        """Return the graph of every row, one [M] int64 per (forward) action type, ascending."""
        return [batch["batch"][self._anchor(batch, kind)] for kind in kinds or self.context.action_types]

    def categorical(self, batch: Batch, logits: Sequence[Tensor], kinds: Kinds) -> GraphActionCategorical:
        """Return the distributions for logits [M, C]."""
        return GraphActionCategorical(
            logits,
            masks_of(batch, kinds),
            row_graphs=self.row_graphs(batch, kinds),
            num_graphs=_num_graphs(batch),
            may_be_empty=kinds == self.context.backward_types,
        )

    def to_indices(self, batch: Batch, actions: ActionBatch, graphs: Tensor | None, kinds: Kinds) -> Tensor:
        """Return the (type, row, column) of legal actions on `graphs`, [A, 3] int64; rows count within a graph."""
        max_rows = self.context.env.vocabulary.max_nodes**2
        owner = torch.arange(len(actions)) if graphs is None else graphs
        indices = torch.stack([torch.zeros_like(actions.kind), torch.zeros_like(actions.row), actions.column], 1)
        for position, (kind, rows) in enumerate(zip(kinds, self.row_graphs(batch, kinds), strict=True)):
            selected = (actions.kind == kind).nonzero().squeeze(1)
            # Rows ascend within a graph, so (graph, row) as one number ascends over the batch.
            place = rows * max_rows + batch[f"{kind.field_name}_row"]
            at = torch.searchsorted(place, owner[selected] * max_rows + actions.row[selected])
            indices[selected, 1] = at - torch.searchsorted(rows, owner[selected])
            indices[selected, 0] = position
        return indices

    def from_indices(self, batch: Batch, indices: Tensor, graphs: Tensor | None, kinds: Kinds) -> ActionBatch:
        """Return the environment's actions at (type, row, column) indices [A, 3] of `graphs`.

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        kind, row = torch.zeros_like(indices[:, 0]), torch.zeros_like(indices[:, 0])
        owner = torch.arange(len(indices)) if graphs is None else graphs
        for position, (action_type, rows) in enumerate(zip(kinds, self.row_graphs(batch, kinds), strict=True)):
            selected = (indices[:, 0] == position).nonzero().squeeze(1)
            start = torch.searchsorted(rows, owner[selected])
            num_rows = torch.searchsorted(rows, owner[selected], right=True) - start
            outside = selected[(indices[selected, 1] < 0) | (indices[selected, 1] >= num_rows)]
            if len(outside):
                graph = int(outside[0])
                raise ValueError(f"graph {graph}: expected a row of {action_type.name}, got {int(indices[graph, 1])}")
            row[selected] = batch[f"{action_type.field_name}_row"][start + indices[selected, 1]]
            kind[selected] = int(action_type)
        return ActionBatch(kind, row, indices[:, 2])

    def merge(self, batches: Sequence[Batch]) -> Batch:
        """Return the graphs of all batches as one batch, with shifted indices of nodes and graphs."""
        nodes = _starts([len(batch["x"]) for batch in batches])
        graphs = _starts([_num_graphs(batch) for batch in batches])
        fields: dict[str, Tensor] = {}
        for key in batches[0].keys():  # noqa: SIM118
            parts = [batch[key] for batch in batches]
            if key == "ptr":
                parts = [parts[0], *(part[1:] + start for part, start in zip(parts[1:], nodes[1:], strict=True))]
            elif key == "batch":
                parts = [part + start for part, start in zip(parts, graphs, strict=True)]
            elif key.endswith("_index"):
                parts = [part + start for part, start in zip(parts, nodes, strict=True)]
            fields[key] = torch.cat(parts, -1 if key.endswith("_index") else 0)
        return _make_batch(fields)

    def split(
        self, categorical: GraphActionCategorical, batches: Sequence[Batch], kinds: Kinds
    ) -> list[GraphActionCategorical]:
        """Return each batch's distributions from the merged ones; `kinds` is not needed."""
        starts = _starts([_num_graphs(batch) for batch in batches])
        return [categorical[a : a + _num_graphs(batch)] for a, batch in zip(starts, batches, strict=True)]

    def _anchor(self, batch: Batch, kind: GraphActionType) -> Tensor:
        index = batch[f"{kind.field_name}_index"]
        return index[0] if kind in PAIR_TYPES else index

    def _edges(self, states: GraphStates, node_id: Tensor) -> dict[str, Tensor]:
        """Return every edge in both directions, with two flags for the direction."""
        directed = self.context.env.vocabulary.directed
        upper = states.has_edge if directed else states.has_edge.triu(1)
        graph, source, target = upper.nonzero(as_tuple=True)
        features = self.context.edge_features(states, graph, source, target)
        ends = torch.stack([node_id[graph, source], node_id[graph, target]])
        edge_index = torch.stack([ends, ends.flip(0)], -1).reshape(2, -1)
        along = torch.ones(len(features), 1)
        backwards = 1 - along if directed else along
        forward = torch.cat([features, along, 1 - along], 1)
        reverse = torch.cat([features, backwards, 1 - backwards], 1)
        edge_attr = torch.stack([forward, reverse], 1).reshape(-1, forward.shape[1])
        return {"edge_index": edge_index, "edge_attr": edge_attr}

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


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _num_graphs(batch: Batch) -> int:
    return len(batch["ptr"]) - 1


def _make_batch(fields: dict[str, Tensor]) -> Any:
    """Return a Batch of the fields without calling `Batch`, which inspects signatures: slower than the encoding."""
    batch = type.__call__(_batch_class())
    batch.update(fields)
    return batch


@cache
def _batch_class() -> type:
    from torch_geometric.data import Batch  # takes two CPU seconds, which dense policies do not need

    return type(Batch())
