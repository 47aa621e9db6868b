"""Layers of the policy networks, and codes of states with a fixed set of nodes: values by place.

Letters: B states, T tokens of each, D width, H heads, N nodes, F features of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch


class CompilableLayer(nn.Module):
    """A layer with optional torch.compile; its copies are compiled, too (`copy.deepcopy` loses it)."""

    def __init__(self, *, is_compiled: bool) -> None:
        super().__init__()
        self.is_compiled = is_compiled
        self._compile()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of a copy or a pickle."""
        super().__setstate__(state)
        self._compile()

    def _compile(self) -> None:
        if self.is_compiled:
            self.compile(dynamic=True)


class AttentionLayer(CompilableLayer):
    """Pre-norm attention between the tokens of a state, with an optional score bias, and a feed-forward block."""

    def __init__(self, width: int, num_heads: int, *, is_compiled: bool) -> None:
        """Build the layer; `width` is a multiple of `num_heads`."""
        super().__init__(is_compiled=is_compiled)
        self.num_heads = num_heads
        self.norm_attend, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = two_layers(width, 2 * width, width)

    def forward(self, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the embeddings [B, T, D] after this layer; `bias` [B, H, T, T] is added to the attention scores."""
        projected = self.project(self.norm_attend(tokens)).unflatten(2, (3, self.num_heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        attend = _attention_by_products if _prefers_products(query) else nn.functional.scaled_dot_product_attention
        values = attend(query, key, value, attn_mask=bias)
        tokens = tokens + self.merge(values.transpose(1, 2).flatten(2))
        return tokens + self.feed(self.norm_feed(tokens))


def _prefers_products(query: Tensor) -> bool:
    """Return whether two matrix products are faster than torch's fused kernel (dev/experiments.md)."""
    return query.device.type == "cpu" and query.dtype == torch.bfloat16


def _attention_by_products(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None) -> Tensor:
    """Return the same as `scaled_dot_product_attention`."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    return (scores if attn_mask is None else scores + attn_mask).softmax(-1).to(value.dtype) @ value


def two_layers(num_inputs: int, width: int, num_outputs: int) -> nn.Sequential:
    """Return a perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(num_inputs, width), nn.SiLU(), nn.Linear(width, num_outputs))


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
        self.starts: Tensor
        self.register_buffer("starts", starts, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """Return the codes, int64."""
        parts = [batch["node_attr"].flatten(1)] if "node_attr" in batch else []
        if self.has_edges:
            parts.append(batch["edge_type"].flatten(1))
        codes = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return codes.long() + self.starts


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
