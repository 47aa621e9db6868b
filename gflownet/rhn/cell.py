"""One step of several layers at once, each on a token of its own; no adapted matrix is made.

`diagonal` does the same in buffers, and has the backward pass. What the state before says is apart from what the token
adds, so that it can be made before the token is known.

N is the number of layers, R of rows, H the hidden size, I the intermediate size, r the rank, J = bottleneck + 1; P is 2
for gate and up, which are one after the other, and 1 for down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.fold import BlockSizes, Fold, HeadColumns
from gflownet.rhn.layers import MIN_SQUARED_NORM


@dataclass(frozen=True)
class FoldedAdapter:
    """How rows change projections: y = scale (W x + B A x)."""

    a: Tensor  # [N P R, r, in]
    b: Tensor  # [N P R, r, out]
    scale: Tensor  # [N P R, 1, out], magnitude over norm

    def by_layer(self, num_layers: int) -> list[FoldedAdapter]:
        """Return those of each layer, N = 1."""
        parts = (part.chunk(num_layers) for part in (self.a, self.b, self.scale))
        return [FoldedAdapter(*layer) for layer in zip(*parts, strict=True)]


@dataclass(frozen=True)
class FoldedAdapters:
    """How rows change feed-forward networks."""

    entry: FoldedAdapter  # gate and up
    exit: FoldedAdapter  # down
    beta: Tensor  # [N, R, 1], added to the gate before its activation

    def by_layer(self, num_layers: int) -> list[FoldedAdapters]:
        """Return those of each layer, N = 1."""
        parts = self.entry.by_layer(num_layers), self.exit.by_layer(num_layers), self.beta.chunk(num_layers)
        return [FoldedAdapters(*layer) for layer in zip(*parts, strict=True)]


def normalised(x: Tensor, epsilon: float) -> Tensor:
    """Return x [..., H] over its root mean square times sqrt(H)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.hypot(length, length.new_full((), math.sqrt(x.shape[-1] * epsilon)))


def _adapter(heads: Tensor, columns: HeadColumns) -> FoldedAdapter:
    """Return the adapter in the columns of heads [N P, R, *]."""
    a, b, c, magnitude = heads.split(columns.sizes, -1)
    a, b = (part.unflatten(-1, (columns.rank, -1)).flatten(0, 1) for part in (a, b))
    scale = magnitude.reshape(-1, 1, columns.size_out)
    if columns.norm == "dora":
        cross = torch.baddbmm(c.reshape(b.shape), torch.bmm(a, a.mT), b, beta=2)
        squared = (1 + (b * cross).sum(1, keepdim=True)).clamp(min=MIN_SQUARED_NORM)
        scale = scale * squared.rsqrt()
    return FoldedAdapter(a, b, scale)


def adapters(state: Tensor, has_previous: Tensor | None, sizes: BlockSizes, weights: Fold) -> FoldedAdapters:
    """Return what the states [N, R, H] of the tokens before say of the next ones; `cell` says what is what."""
    unit = F.pad(normalised(state, sizes.epsilon), (0, 1), value=1.0)
    # Adapters are linear in the features: features of 0 are the plain feed-forward network.
    features = F.pad(F.silu(torch.bmm(unit, weights.squeeze)), (1, 0), value=1.0)
    if has_previous is not None:
        features = features * has_previous
    features = F.pad(features, (1, 0), value=1.0)
    both = features.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1)
    entry = torch.bmm(both, weights.entry_heads.flatten(0, 1))
    exit_, beta = torch.bmm(features, weights.exit_heads).split([sum(sizes.exit.sizes), 1], -1)
    return FoldedAdapters(_adapter(entry, sizes.entry), _adapter(exit_, sizes.exit), beta)


def _adapted(x: Tensor, weight: Tensor, adapter: FoldedAdapter) -> Tensor:
    """Return y [N P, R, out] of x [N P, R, in] by weights [N P, in, out]."""
    product = torch.bmm(x, weight)
    low = torch.bmm(adapter.a, x.reshape(-1, x.shape[-1], 1))
    return (adapter.scale * torch.baddbmm(product.view(adapter.scale.shape), low.mT, adapter.b)).view(product.shape)


def feed_forward(x: Tensor, adapted: FoldedAdapters, sizes: BlockSizes, weights: Fold) -> Tensor:
    """Return X_{k:n} from X_{k:n-1}, [N, R, H] both."""
    unit = normalised(x, sizes.epsilon) * weights.gain.unsqueeze(1)
    both = unit.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1)
    gate, up = _adapted(both, weights.entry.flatten(0, 1), adapted.entry).unflatten(0, (-1, 2)).unbind(1)
    return x + _adapted(F.silu(gate + adapted.beta) * up, weights.exit, adapted.exit)


def cell(x: Tensor, state: Tensor, has_previous: Tensor | None, sizes: BlockSizes, weights: Fold) -> Tensor:
    """Return X_{k:n} for every layer n and its token k.

    Args:
        x: [N, R, H], X_{k:n-1}.
        state: [N, R, H], X_{k-1:n}; anything finite where there is none.
        has_previous: [N, R or 1, 1], 0 where the token is the first one, else 1; None where there is no first one.
        sizes: of the blocks.
        weights: of the blocks.
    """
    return feed_forward(x, adapters(state, has_previous, sizes, weights), sizes, weights)
