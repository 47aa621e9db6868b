"""Layers that torch.nn does not have. Each class is stand-alone, so that generated source can contain its text.

Letters: B batch, T positions, D features, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bias(nn.Module):
    """Add a learned number to each feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., D] plus the bias."""
        return x + self.bias


class DropPath(nn.Module):
    """Stochastic depth: zero the whole value of an example in training (Huang et al. 2016), and scale the others."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x, [B, ...]."""
        if not self.training:
            return x
        kept = x.new_empty(x.shape[0], *[1] * (x.dim() - 1)).bernoulli_(1 - self.probability)
        return x * kept / (1 - self.probability)


class LayerScale(nn.Module):
    """Each channel times a learned number (Touvron et al. 2021, equation 4)."""

    def __init__(self, channels: int, num_axes_after: int, initial: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, *[1] * num_axes_after), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, ..., C] or [B, C, ...] times the weights."""
        return x * self.weight


class ColumnEmbedding(nn.Module):
    """A learned vector for each value of several columns of categories: one table, column after column."""

    offsets: Tensor

    def __init__(self, num_categories: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sum(num_categories), features)
        ends = torch.tensor(num_categories).cumsum(0)
        self.register_buffer("offsets", ends - torch.tensor(num_categories), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors [B, K, D] of integers x [B, K], each below the number of categories of its column."""
        return self.embedding(x + self.offsets)


class LearnedPositions(nn.Module):
    """Add a learned vector to each position."""

    def __init__(self, num_positions: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(num_positions, features))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, D] plus the first T vectors."""
        return x + self.weight[: x.shape[1]]


class ClassToken(nn.Module):
    """Put a learned vector in front of a sequence (Devlin et al. 2019; Dosovitskiy et al. 2021)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 1 + T, D] for x [B, T, D]."""
        return torch.cat((self.weight.expand(x.shape[0], 1, -1), x), 1)


class RotaryPositions(nn.Module):
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021, equation 34).

    Feature i of the first half of a head is paired with feature i of the second half.
    """

    cos: Tensor  # [positions, head size]
    sin: Tensor

    def __init__(self, num_positions: int, head_size: int, base: float) -> None:
        super().__init__()
        self.sizes = num_positions, head_size, base
        dtype = torch.get_default_dtype()
        cos, sin = self._tables()
        self.register_buffer("cos", cos.to(dtype), persistent=False)
        self.register_buffer("sin", sin.to(dtype), persistent=False)

    def _tables(self) -> tuple[Tensor, Tensor]:
        num_positions, head_size, base = self.sizes
        frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies).repeat(1, 2)
        return angles.cos(), angles.sin()

    def _apply(self, fn, recurse=True):
        """Change device and dtype; the numbers are exact in the new dtype."""
        before = self.cos.dtype
        super()._apply(fn, recurse)
        if self.cos.dtype != before:
            self.cos, self.sin = (table.to(self.cos) for table in self._tables())
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the rotated heads [B, heads, T, head size] of the same shape."""
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself (Vaswani et al. 2017, section 3.2).

    `qkv` holds the projections of queries, keys and values, one under the other. `rotate` is a module that is applied
    to the heads of queries and keys.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
        rotate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv = nn.Linear(features, 3 * features, bias=bias)
        self.output = nn.Linear(features, features, bias=output_bias)
        self.rotate = rotate

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D] for x [B, T, D]."""
        heads = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        if self.rotate is not None:
            query, key = self.rotate(query), self.rotate(key)
        dropout = self.dropout if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        return self.output(y.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Multi-head attention of one sequence to another one (Vaswani et al. 2017, section 3.2)."""

    def __init__(
        self,
        features: int,
        key_features: int,
        value_features: int,
        heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.query = nn.Linear(features, features, bias=bias)
        self.key = nn.Linear(key_features, features, bias=bias)
        self.value = nn.Linear(value_features, features, bias=bias)
        self.output = nn.Linear(features, features, bias=output_bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return [B, T, D] for a query [B, T, D], keys and values [B, S, features of each]."""
        projected = (self.query(query), self.key(key), self.value(value))
        q, k, v = (each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in projected)
        dropout = self.dropout if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return self.output(y.transpose(1, 2).flatten(2))


class GatedLinear(nn.Module):
    """(x W + b) * gate(x V + c) (Dauphin et al. 2017; Shazeer 2020): W and V are one matrix."""

    def __init__(self, size_in: int, features: int, gate: str, *, bias: bool = True) -> None:
        super().__init__()
        self.projection = nn.Linear(size_in, 2 * features, bias=bias)
        self.gate = getattr(nn.functional, gate)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., features] for x [..., D]."""
        value, gate = self.projection(x).chunk(2, -1)
        return value * self.gate(gate)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from the means of all channels (Hu, Shen and Sun 2018)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x, [B, C, L] or [B, C, H, W]."""
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.flatten(2).mean(2)))))
        return x * gate[(..., *[None] * (x.dim() - 2))]


class CarriedLSTM(nn.LSTM):
    """An LSTM over sequences that continues from the state of the call before."""

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs [B, T, D] for x [B, T, F] from a state of two [B, D], and the last state."""
        y, (hidden, cell) = super().forward(x, (hidden[None].contiguous(), cell[None].contiguous()))
        return y, hidden[0], cell[0]


class CarriedGRU(nn.GRU):
    """A GRU over sequences that continues from the state of the call before."""

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [B, T, D] for x [B, T, F] from a state [B, D], and the last state."""
        y, hidden = super().forward(x, hidden[None].contiguous())
        return y, hidden[0]
