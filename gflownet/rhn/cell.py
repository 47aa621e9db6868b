"""One step of several layers at once, each on a token of its own; no adapted matrix is made.

`diagonal` does the same in buffers, and has the backward pass. What the state before says is apart from what the token
adds, so that it can be made before the token is known.

N is the number of layers, R of rows, H the hidden size, I the intermediate size, r the rank, J = bottleneck + 1; P is 2
for gate and up, which are side by side, and 1 for down.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.fold import BlockSizes, Fold, HeadColumns
from gflownet.rhn.layers import MIN_SQUARED_NORM


@dataclass(frozen=True)
class FoldedAdapter:
    """How rows change projections: y = scale (W x + B A x)."""

    a: Tensor  # [N R P, r, in]
    b: Tensor  # [N R P, r, out]
    scale: Tensor  # [N R P, 1, out], magnitude over norm

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


def normalised(x: Tensor, root: Tensor) -> Tensor:
    """Return x [..., H] over its root mean square times sqrt(H); root is that of `BlockSizes`."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), root)


def _adapter(heads: Tensor, columns: HeadColumns) -> FoldedAdapter:
    """Return the adapter in the columns of heads [N R P, *]."""
    _, a, b, c, magnitude = heads.split(columns.sizes, -1)
    a, b = (part.unflatten(-1, (columns.rank, -1)) for part in (a, b))
    scale = magnitude.unsqueeze(1)
    if columns.norm == "dora":
        cross = torch.baddbmm(c.view_as(b), torch.bmm(a, a.mT), b, beta=2)
        squared = (1 + (b * cross).sum(1, keepdim=True)).clamp(min=MIN_SQUARED_NORM)
        scale = scale * squared.rsqrt()
    return FoldedAdapter(a, b, scale)


def adapters(state: Tensor, has_previous: Tensor | None, sizes: BlockSizes, weights: Fold) -> FoldedAdapters:
    """Return what the states [N, R, H] of the tokens before say of the next ones; `cell` says what is what."""
    unit = F.pad(normalised(state, sizes.root(state)), (0, 1), value=1.0)
    # Adapters are linear in the features: features of 0 are the plain feed-forward network.
    features = F.pad(F.silu(torch.bmm(unit, weights.squeeze)), (1, 0), value=1.0)
    if has_previous is not None:
        features = features * has_previous
    features = F.pad(features, (1, 0), value=1.0)
    entry = torch.bmm(features, weights.entry_heads).view(-1, sum(sizes.entry.sizes))
    exit_, beta, _ = torch.bmm(features, weights.exit_heads).split([sum(sizes.exit.sizes), 1, 1], -1)
    return FoldedAdapters(_adapter(entry, sizes.entry), _adapter(exit_.flatten(0, 1), sizes.exit), beta)


def _adapted(x: Tensor, product: Tensor, adapter: FoldedAdapter) -> Tensor:
    """Return y [N R P, 1, out] of x [N R P, in, 1] and the product [N, R, P out] of x by the weights."""
    low = torch.bmm(adapter.a, x)
    return adapter.scale * torch.baddbmm(product.view(adapter.scale.shape), low.mT, adapter.b)


def feed_forward(x: Tensor, adapted: FoldedAdapters, sizes: BlockSizes, weights: Fold) -> Tensor:
    """Return X_{k:n} from X_{k:n-1}, [N, R, H] both."""
    unit = normalised(x, sizes.root(x)) * weights.gain.unsqueeze(1)
    both = unit.unsqueeze(2).expand(-1, -1, 2, -1).reshape(-1, sizes.hidden, 1)
    entry = _adapted(both, torch.bmm(unit, weights.entry), adapted.entry)
    gate, up = entry.view(*x.shape[:2], 2, -1).unbind(2)
    gated = F.silu(gate + adapted.beta) * up
    return x + _adapted(gated.view(-1, sizes.intermediate, 1), torch.bmm(gated, weights.exit), adapted.exit).view_as(x)


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
