"""Layout for attention: arrays as wide as the largest graph of the batch, masks over all rows.

Letters: B graphs, N maximum nodes of the environment, n maximum nodes in this batch (at least 1), C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gflownet.mdp.action import INVALID, PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.layout import Batch, BatchLayout, Kinds, StateFeatures, masks_of
from gflownet.mdp.states import ABSENT, UNSET, GraphStates


class DenseLayout(BatchLayout):
    """The arrays of the states, cut to the n nodes of the largest graph, and masks over all rows.

    Fields: the arrays of `GraphStates`, [B], [B, n, ...] or [B, n, n, ...]; `extra` [B, n, F], the extra node features;
    `add_node_mask` [B, n, C], on pairs `add_edge_mask` [B, n * n, C], and `stop_mask` [B, 1, 1].
    """

    runs_on_device = True

    def __init__(self, context: StateFeatures) -> None:
        super().__init__(context)
        self._row_tables: dict[tuple[int, tuple[GraphActionType, ...], torch.device], tuple[Tensor, Tensor]] = {}

    def encode(self, states: GraphStates) -> dict[str, Tensor]:
        """Return the arrays that a dense policy embeds."""
        context, masks = self.context, self.context.shown_masks(states)
        vocabulary = context.env.vocabulary
        max_nodes, n = vocabulary.max_nodes, max(1, states.largest)
        cut = states.truncated(n) if n < max_nodes else states
        fields: dict[str, Tensor] = {
            "num_nodes_of": cut.num_nodes,
            "node_type": cut.node_type,
            "edge_type": cut.edge_type,
            "reach": cut.reach,
        }
        if vocabulary.node_attributes:
            fields["node_attr"] = cut.node_attr
        if vocabulary.edge_attributes:
            fields["edge_attr"] = cut.edge_attr
        if vocabulary.ranked:
            fields["edge_order"] = cut.edge_order
        if context.num_extra_node_features:
            fields["extra"] = context.extra_node_features(states)[:, :n]
        for kind, mask in masks.items():
            fields[f"{kind.field_name}_mask"] = self._cut(kind, mask, max_nodes, n)
        return fields

    def categorical(self, batch: Batch, logits: Sequence[Tensor], kinds: Kinds) -> GraphActionCategorical:
        """Return the distributions for logits [B, R, C]."""
        masks = masks_of(batch, kinds)
        return GraphActionCategorical.dense(logits, masks, may_be_empty=kinds == self.context.backward_types)

    def to_indices(self, batch: Batch, actions: ActionBatch, graphs: Tensor | None, kinds: Kinds) -> Tensor:
        """Return the (type, row, column) of legal actions, [A, 3] int64; `graphs` is not needed."""
        position = _positions(tuple(kinds), actions.kind.device)
        max_nodes, n = self.context.env.vocabulary.max_nodes, batch["node_type"].shape[1]
        row = _renumbered(actions.kind, actions.row, max_nodes, n)
        return torch.stack([position[actions.kind], row, actions.column], 1)

    def from_indices(self, batch: Batch, indices: Tensor, graphs: Tensor | None, kinds: Kinds) -> ActionBatch:
        """Return the environment's actions at (type, row, column) indices [A, 3]; `graphs` is not needed.

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        max_nodes, n = self.context.env.vocabulary.max_nodes, batch["node_type"].shape[1]
        position, row, column = indices.unbind(1)
        kind_at, num_rows = self._tables(n, tuple(kinds), indices.device)
        if indices.device.type == "cpu":  # those on a device were sampled there
            outside = (row < 0) | (row >= num_rows[position])
            if bool(outside.any()):
                graph = int(outside.nonzero()[0])
                name = kinds[int(position[graph])].name
                raise ValueError(f"graph {graph}: expected a row of {name}, got {int(row[graph])}")
        kind = kind_at[position]
        return ActionBatch(kind, _renumbered(kind, row, n, max_nodes), column)

    def merge(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return the graphs of all batches as one batch, as wide as the largest."""
        n = max(batch["node_type"].shape[1] for batch in batches)
        keys = batches[0].keys()
        return {key: torch.cat([self._padded(batch, key, n) for batch in batches]) for key in keys}

    def split(
        self, categorical: GraphActionCategorical, batches: Sequence[Batch], kinds: Kinds
    ) -> list[GraphActionCategorical]:
        """Return each batch's distributions, with its original number of rows, from the merged ones."""
        n, logits = max(batch["node_type"].shape[1] for batch in batches), categorical.logits
        parts, start = [], 0
        for batch in batches:
            stop, width = start + len(batch["node_type"]), batch["node_type"].shape[1]
            cut = [self._cut(kind, x[start:stop], n, width) for kind, x in zip(kinds, logits, strict=True)]
            parts.append(self.categorical(batch, cut, kinds))
            start = stop
        return parts

    def _cut(self, kind: GraphActionType, values: Tensor, before: int, after: int) -> Tensor:
        """Return values [B, R, C] for `before` nodes cut to the rows for `after` nodes."""
        if before == after or kind == GraphActionType.Stop:
            return values
        if kind in PAIR_TYPES:
            return values.unflatten(1, (before, before))[:, :after, :after].flatten(1, 2)
        return values[:, :after]

    def _tables(self, n: int, kinds: tuple[GraphActionType, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the kind and the number of rows of these action types in batches of width n, then of INVALID."""
        if (n, kinds, device) not in self._row_tables:
            limits = {GraphActionType.Stop: 1, **dict.fromkeys(PAIR_TYPES, n * n)}
            rows = [[int(kind), limits.get(kind, n)] for kind in kinds]
            with torch.inference_mode(False):
                kind_at, num_rows = torch.tensor([*rows, [INVALID, 0]], device=device).unbind(1)
            self._row_tables[n, kinds, device] = kind_at, num_rows
        return self._row_tables[n, kinds, device]

    def _padded(self, batch: Batch, key: str, n: int) -> Tensor:
        """Return a field padded to a batch of width n."""
        value, width = batch[key], batch["node_type"].shape[1]
        if width == n or key in ("num_nodes_of", "stop_mask"):
            return value
        blank = _BLANK.get(key, 0)
        if key in _PAIR_MASKS:
            value = value.unflatten(1, (width, width))
        num_axes = 2 if key in _PAIR_MASKS or key in _PAIR_FIELDS else 1
        shape = [len(value), *[n] * num_axes, *value.shape[1 + num_axes :]]
        padded = value.new_full(shape, blank)
        padded[(slice(None), *[slice(width)] * num_axes)] = value
        if key == "reach":
            padded.diagonal(dim1=1, dim2=2).fill_(True)
        return padded.flatten(1, 2) if key in _PAIR_MASKS else padded


@lru_cache(maxsize=64)
def _positions(kinds: tuple[GraphActionType, ...], device: torch.device) -> Tensor:
    """Return the position of each type among these types, int64."""
    positions = [kinds.index(kind) if kind in kinds else 0 for kind in GraphActionType]
    with torch.inference_mode(False):
        return torch.tensor(positions, device=device)


@lru_cache
def _is_pair(device: torch.device) -> Tensor:
    """Return which kinds act on pairs, int64."""
    with torch.inference_mode(False):
        return torch.tensor([int(kind in PAIR_TYPES) for kind in GraphActionType], device=device)


def _renumbered(kind: Tensor, row: Tensor, before: int, after: int) -> Tensor:
    """Return the rows of pairs, source * before + target, rewritten as source * after + target."""
    if before == after:
        return row
    return row + _is_pair(kind.device)[kind] * (row.div(before, rounding_mode="floor") * (after - before))


_PAIR_FIELDS = ("edge_type", "edge_attr", "edge_order", "reach")
_PAIR_MASKS = frozenset(f"{kind.field_name}_mask" for kind in PAIR_TYPES)
_BLANK = {"node_type": ABSENT, "node_attr": UNSET, "edge_type": ABSENT, "edge_attr": UNSET}
