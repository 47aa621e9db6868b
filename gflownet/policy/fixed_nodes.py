"""What the networks share that read states with a fixed set of nodes: values by place instead of nodes of a graph.

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
    """What lies where as one code per place, [B, F]: attribute values of every node, and the types of edges if any."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        super().__init__()
        vocabulary = context.env.vocabulary
        self.has_edges = GraphActionType.AddEdge in context.action_types
        sizes = [len(a.values) + 1 for a in vocabulary.node_attributes] * vocabulary.max_nodes
        if self.has_edges:
            sizes += [len(vocabulary.edge_types) + 1] * vocabulary.max_nodes**2
        self.num_places, self.num_codes = len(sizes), sum(sizes)
        # Every place begins behind its one code for "nothing there", which is the value -1.
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0) + 1
        self.register_buffer("starts", starts, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """Return the codes, int64."""
        parts = [batch["node_attr"].flatten(1)] if "node_attr" in batch else []
        if self.has_edges:
            parts.append(batch["edge_type"].flatten(1))
        return torch.cat(parts, 1).long() + self.get_buffer("starts")


def check_fixed_nodes(context: GraphBuildingEnvContext, *, name: str, places_only: bool) -> None:
    """Raise UserError unless every state has all the nodes there are and, with `places_only`, no edges.

    Extra node features are refused as well: PlaceCodes would leave them out.
    """
    env = context.env
    if context.num_extra_node_features:
        got = context.num_extra_node_features
        raise UserError(f"model.name={name}: expected a context without extra node features, got {got}")
    every = int(env.initial_states(1).num_nodes[0]) == env.vocabulary.max_nodes
    kinds = {GraphActionType.AddNode} | ({GraphActionType.AddEdge} if places_only else set())
    if not every or kinds & set(env.forward_types):
        without = " and no edges" if places_only else ""
        expected = f"an environment with a fixed number of nodes{without}"
        raise UserError(f"model.name={name}: expected {expected}, got {type(env).__name__}")


def rows_and_columns(context: GraphBuildingEnvContext, kinds: Sequence[GraphActionType]) -> list[tuple[int, int]]:
    """Return how many rows and columns the logits of each action type have."""
    return [(context.env.vocabulary.num_rows(kind), context.num_columns[kind]) for kind in kinds]
