"""States for attention: arrays as wide as the largest graph of the batch, masks over all rows.

Letters: B graphs, N the most nodes of the environment, n the most nodes of this batch (at least 1), C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.layout import Batch, BatchLayout, Kinds, masks_of
from gflownet.mdp.states import ABSENT, UNSET, GraphStates

if TYPE_CHECKING:
    from gflownet.mdp.context import GraphBuildingEnvContext


class DenseLayout(BatchLayout):
    """The arrays of the states, cut to the n nodes that the largest graph has, and masks over all rows.

    Fields: those of `GraphStates`, [B], [B, n, ...] or [B, n, n, ...]; `extra` [B, n, F], a context's own node
    features; `add_node_mask` [B, n, C], on pairs `add_edge_mask` [B, n * n, C], and `stop_mask` [B, 1, 1].
    """

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        super().__init__(context)
        self._known_tables: dict[tuple[int, tuple[GraphActionType, ...]], tuple[Tensor, Tensor]] = {}

    def encode(self, states: GraphStates) -> dict[str, Tensor]:
        """Return the arrays that a dense policy embeds; small graphs take little room."""
        context, masks = self.context, self.context.shown_masks(states)
        vocabulary = context.env.vocabulary
        most, n = vocabulary.max_nodes, max(1, int(states.num_nodes.max()))
        shown = states.truncated(n) if n < most else states
        fields: dict[str, Tensor] = {
            "num_nodes_of": shown.num_nodes,
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
        return fields

    def categorical(self, batch: Batch, logits: Sequence[Tensor], kinds: Kinds) -> GraphActionCategorical:
        """Return the distributions that logits [B, R, C] mean."""
        masks = masks_of(batch, kinds)
        return GraphActionCategorical.dense(logits, masks, may_be_empty=kinds == self.context.backward_types)

    def to_indices(self, batch: Batch, actions: ActionBatch, graphs: Tensor | None, kinds: Kinds) -> Tensor:
        """Return the (type, row, column) of legal actions, [A, 3] int64; whose they are does not matter here."""
        position = torch.zeros(max(GraphActionType) + 1, dtype=torch.int64)
        position[[int(kind) for kind in kinds]] = torch.arange(len(kinds))
        most, n = self.context.env.vocabulary.max_nodes, batch["node_type"].shape[1]
        row = _renumbered(actions.kind, actions.row, most, n)
        return torch.stack([position[actions.kind], row, actions.column], 1)

    def from_indices(self, batch: Batch, indices: Tensor, graphs: Tensor | None, kinds: Kinds) -> ActionBatch:
        """Return the environment's actions behind (type, row, column) indices [A, 3]; whose they are matters not.

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        most, n = self.context.env.vocabulary.max_nodes, batch["node_type"].shape[1]
        position, row, column = indices.unbind(1)
        known, num_rows = self._tables(n, tuple(kinds))
        outside = (row < 0) | (row >= num_rows[position])
        if bool(outside.any()):
            graph = int(outside.nonzero()[0])
            name = kinds[int(position[graph])].name
            raise ValueError(f"graph {graph}: expected a row of {name}, got {int(row[graph])}")
        kind = known[position]
        return ActionBatch(kind, _renumbered(kind, row, n, most), column)

    def part(self, batch: Batch, start: int, stop: int) -> dict[str, Tensor]:
        """Return consecutive graphs, with room for the largest of all."""
        return {key: batch[key][start:stop] for key in batch.keys()}  # noqa: SIM118

    def merge(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return the graphs of all batches one after another, with room for the largest."""
        n = max(batch["node_type"].shape[1] for batch in batches)
        keys = batches[0].keys()
        return {key: torch.cat([self._widened(batch, key, n) for batch in batches]) for key in keys}

    def split(
        self, categorical: GraphActionCategorical, batches: Sequence[Batch], kinds: Kinds
    ) -> list[GraphActionCategorical]:
        """Return each batch's distributions, with its own number of rows, out of those of the merged batch."""
        n, logits = max(batch["node_type"].shape[1] for batch in batches), categorical.logits
        parts, start = [], 0
        for batch in batches:
            stop, had = start + len(batch["node_type"]), batch["node_type"].shape[1]
            own = [self._cut(kind, x[start:stop], n, had) for kind, x in zip(kinds, logits, strict=True)]
            parts.append(self.categorical(batch, own, kinds))
            start = stop
        return parts

    def _cut(self, kind: GraphActionType, values: Tensor, before: int, after: int) -> Tensor:
        """Return [B, R, C] of graphs with `before` nodes as they are with `after` nodes."""
        if before == after or kind == GraphActionType.Stop:
            return values
        if kind in PAIR_TYPES:
            return values.unflatten(1, (before, before))[:, :after, :after].flatten(1, 2)
        return values[:, :after]

    def _tables(self, n: int, kinds: tuple[GraphActionType, ...]) -> tuple[Tensor, Tensor]:
        """Return the kind and the number of rows of these action types in batches whose largest graph has n nodes."""
        if (n, kinds) not in self._known_tables:
            limits = {GraphActionType.Stop: 1, **dict.fromkeys(PAIR_TYPES, n * n)}
            with torch.inference_mode(False):
                known, num_rows = torch.tensor([[int(kind), limits.get(kind, n)] for kind in kinds]).unbind(1)
            self._known_tables[n, kinds] = known, num_rows
        return self._known_tables[n, kinds]

    def _widened(self, batch: Batch, key: str, n: int) -> Tensor:
        """Return a field as it would be in a batch whose largest graph has n nodes."""
        value, had = batch[key], batch["node_type"].shape[1]
        if had == n or key in ("num_nodes_of", "stop_mask"):
            return value
        blank = _BLANK.get(key, 0)
        if key in _PAIR_MASKS:
            value = value.unflatten(1, (had, had))
        num_axes = 2 if key in _PAIR_MASKS or key in _PAIR_FIELDS else 1
        shape = [len(value), *[n] * num_axes, *value.shape[1 + num_axes :]]
        wide = value.new_full(shape, blank)
        wide[(slice(None), *[slice(had)] * num_axes)] = value
        if key == "reach":
            wide.diagonal(dim1=1, dim2=2).fill_(True)
        return wide.flatten(1, 2) if key in _PAIR_MASKS else wide


_IS_PAIR = torch.tensor([int(kind in PAIR_TYPES) for kind in GraphActionType])


def _renumbered(kind: Tensor, row: Tensor, before: int, after: int) -> Tensor:
    """Return rows with pairs, source * before + target, rewritten as source * after + target."""
    if before == after:
        return row
    return row + _IS_PAIR[kind] * (row.div(before, rounding_mode="floor") * (after - before))


_PAIR_FIELDS = ("edge_type", "edge_attr", "edge_order", "reach")
_PAIR_MASKS = frozenset(f"{kind.field_name}_mask" for kind in PAIR_TYPES)
_BLANK = {"node_type": ABSENT, "node_attr": UNSET, "edge_type": ABSENT, "edge_attr": UNSET}
