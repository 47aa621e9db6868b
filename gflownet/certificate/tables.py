"""A policy with given flows on an enumerated space, to evaluate an objective's loss at its exact optimum.

Letters: S states, M forward actions of all states, B states of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gflownet.certificate.exact import StateGraph, first_positions
from gflownet.mdp.action import ActionMasks, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.layout import Batch
from gflownet.mdp.states import GraphStates

_STATES = "states"  # field of a batch with the states themselves


class StatesLayout(DenseLayout):
    """The dense layout with the states themselves as a further field."""

    def encode(self, states: GraphStates) -> dict[str, Tensor]:
        """Return the dense fields and the states."""
        fields: dict[str, Any] = super().encode(states)
        fields[_STATES] = states
        return fields


@dataclass(frozen=True)
class Tables:
    """Outputs of a policy on an enumerated space; actions between the same two states have equal logits."""

    forward: Tensor  # [M] logit of each forward action
    backward: Tensor  # [M] log P_B of one backward action from the child to the parent of each forward action
    numbers: Tensor  # [S] scalar output


class TabularPolicy:
    """Answers from tables; its context shows the states (`StatesLayout`)."""

    def __init__(self, context: GraphBuildingEnvContext, graph: StateGraph, tables: Tables) -> None:
        self._context, self._graph, self._tables = context, graph, tables
        keys = graph.parent * len(graph) + graph.child
        first, _ = first_positions(keys)
        self._key = keys[first]
        self._forward, self._backward = tables.forward[first], tables.backward[first]

    def __call__(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the forward distributions and the scalars of a batch."""
        states, index = self._located(batch)
        masks = self._context.env.forward_masks(states)
        owner, children = self._after(states, masks, index)
        logits = self._of_pairs(self._forward, index[owner], children)
        types = self._context.action_types
        return self._context.categorical(batch, _spread(batch, types, logits)), self._tables.numbers[index]

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return forward and backward distributions and the scalars of a batch."""
        forward, numbers = self(batch, conditioning)
        states, index = self._located(batch)
        owner, parents = self._after(states, self._context.env.backward_masks(states), index)
        logits = self._of_pairs(self._backward, parents, index[owner])
        spread = _spread(batch, self._context.backward_types, logits)
        return forward, self._context.backward_categorical(batch, spread), numbers

    def _located(self, batch: Batch) -> tuple[GraphStates, Tensor]:
        """Return the states of a batch and their positions in the space."""
        states = cast(GraphStates, batch[_STATES])
        return states, self._graph.locate(self._context.env.identify(states))

    def _after(self, states: GraphStates, masks: ActionMasks, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return owner and resulting state of each legal action, in the order of `ActionMasks.positions`."""
        owner, action = masks.positions()
        result = index[owner].clone()  # Stop stays
        moves = (action.kind != int(GraphActionType.Stop)).nonzero().squeeze(1)
        after = self._context.env.apply(states[owner[moves]], action[moves])
        result[moves] = self._graph.locate(self._context.env.identify(after))
        return owner, result

    def _of_pairs(self, values: Tensor, parent: Tensor, child: Tensor) -> Tensor:
        """Return the value of each pair (parent, child); 0 for pairs without a forward action."""
        key = parent * len(self._graph) + child
        position = torch.searchsorted(self._key, key).clamp(max=len(self._key) - 1)
        return torch.where(self._key[position] == key, values[position], 0.0)


def _spread(batch: Batch, kinds: Sequence[GraphActionType], values: Tensor) -> list[Tensor]:
    """Return values in the order of `ActionMasks.positions` as one tensor [B, R, C] per action type."""
    tensors, start = [], 0
    for kind in kinds:
        mask = batch[f"{kind.field_name}_mask"]
        num = int(mask.sum())
        logits = torch.zeros(mask.shape, dtype=values.dtype)
        tensors.append(logits.index_put(mask.nonzero(as_tuple=True), values[start : start + num]))
        start += num
    return tensors
