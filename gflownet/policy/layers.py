"""Layers of the policy networks.

Letters: B states, T tokens of each, D width, H heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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
