"""Parts of the networks for states with a fixed set of nodes: values by place.

Letters: B states, N nodes, F features of a state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch


class PlaceCodes(nn.Module):
    """One code per place, [B, F]: attribute values of each node and, where edges can be added, their types."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        super().__init__()
        vocabulary = context.env.vocabulary
        self.has_edges = GraphActionType.AddEdge in context.action_types
        sizes = [len(a.values) + 1 for a in vocabulary.node_attributes] * vocabulary.max_nodes
        if self.has_edges:
            sizes += [len(vocabulary.edge_types) + 1] * vocabulary.max_nodes**2
        self.num_places, self.num_codes = len(sizes), sum(sizes)
        # Each place has one extra code for the value -1, "empty".
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0) + 1
        self.register_buffer("starts", starts, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """Return the codes, int64."""
        parts = [batch["node_attr"].flatten(1)] if "node_attr" in batch else []
        if self.has_edges:
            parts.append(batch["edge_type"].flatten(1))
        return torch.cat(parts, 1).long() + self.get_buffer("starts")


def check_fixed_nodes(context: GraphBuildingEnvContext, *, name: str, places_only: bool) -> None:
    """Raise UserError unless all nodes exist from the start and, with `places_only`, no edges can be added.

    Also for extra node features, which PlaceCodes would ignore.
    """
    env = context.env
    if context.num_extra_node_features:
        got = context.num_extra_node_features
        raise UserError(f"model.name={name}: expected a context without extra node features, got {got}")
    is_fixed = int(env.initial_states(1).num_nodes[0]) == env.vocabulary.max_nodes
    kinds = {GraphActionType.AddNode} | ({GraphActionType.AddEdge} if places_only else set())
    if not is_fixed or kinds & set(env.forward_types):
        without = " and no edges" if places_only else ""
        expected = f"an environment with a fixed number of nodes{without}"
        raise UserError(f"model.name={name}: expected {expected}, got {type(env).__name__}")


def rows_and_columns(context: GraphBuildingEnvContext, kinds: Sequence[GraphActionType]) -> list[tuple[int, int]]:
    """Return the number of rows and columns of the logits of each action type."""
    return [(context.env.vocabulary.num_rows(kind), context.num_columns[kind]) for kind in kinds]
