"""One diagonal of the wavefront: several layers at once, each on a token of its own, in buffers that are used again.

The tensors of a diagonal are small, and there are many diagonals: what a call costs beside its arithmetic is much of
the time. So every call writes into a buffer, the views of the buffers are made once, and gate and up are one product.
`cell` says the same plainly; no adapted matrix is made.

N is the number of layers of the diagonal, R of rows, H the hidden size, I the intermediate size, r the rank,
J = bottleneck + 1; M is the number of projections times R.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gflownet.rhn.fold import BlockSizes, Fold, HeadColumns
from gflownet.rhn.layers import MIN_SQUARED_NORM

_silu = torch.ops.aten.silu.out


class Projection:
    """Projections that rows go through, each adapted row by row: y = m (W x + B A x) / ||W + B A||."""

    def __init__(self, columns: HeadColumns, num_projections: int, rows: int, *, extra: int, like: Tensor) -> None:
        """Make the buffers.

        Args:
            columns: of the heads.
            num_projections: P.
            rows: R.
            extra: columns of the heads beyond those of the projection.
            like: has the type of the buffers.
        """
        rank, size_out = columns.rank, columns.size_out
        num, flat = num_projections * rows, (num_projections, rows, size_out)
        self.columns, self.norm = columns, columns.norm
        self.heads = like.new_empty(num_projections, rows, sum(columns.sizes) + extra)
        a, b, c, self.magnitude, self.rest = self.heads.split([*columns.sizes, extra], -1)
        self.a, self.b = (part.unflatten(-1, (rank, -1)).flatten(0, 1) for part in (a, b))  # [M, r, *]
        self.low = like.new_empty(num, rank, 1)  # A x
        self.product = like.new_empty(flat)  # W x + B A x
        self.scale = self.magnitude
        if self.norm == "dora":
            self.c = c.unflatten(-1, (rank, size_out)).flatten(0, 1)
            self.gram = like.new_empty(num, rank, rank)
            self.cross = like.new_empty(num, rank, size_out)  # 2 C + G B
            self.squared = like.new_empty(flat)
            self.inverse_norm = like.new_empty(flat)
            self.scale = like.new_empty(flat)
            self._ranks = list(zip(self.b.unbind(1), self.cross.unbind(1), strict=True))
            self._one, self._squared = like.new_ones(()), self.squared.view(num, size_out)
        self._product = self.product.view(num, 1, size_out)

    def adapt(self, features: Tensor, heads: Tensor) -> None:
        """Make the adapters that features [P, R, J + 1] write, and what the outputs are multiplied by."""
        torch.bmm(features, heads, out=self.heads)
        if self.norm == "dora":
            torch.bmm(self.a, self.a.mT, out=self.gram)
            torch.baddbmm(self.c, self.gram, self.b, beta=2, out=self.cross)
            total = self._one
            for b, cross in self._ranks:
                total = torch.addcmul(total, b, cross, out=self._squared)
            torch.clamp(self.squared, min=MIN_SQUARED_NORM, out=self.inverse_norm).rsqrt_()
            torch.mul(self.magnitude, self.inverse_norm, out=self.scale)

    def multiply(self, x: Tensor, weight: Tensor) -> None:
        """Make W x + B A x of x [P, R, in]."""
        torch.bmm(x, weight, out=self.product)
        torch.bmm(self.a, x.view(-1, x.shape[-1], 1), out=self.low)
        self._product.baddbmm_(self.low.mT, self.b)


class DiagonalStep:
    """The states of one diagonal from those of the one before."""

    def __init__(self, sizes: BlockSizes, weights: Fold, rows: int, *, starts: bool) -> None:
        """Make the buffers.

        Args:
            sizes: of the blocks.
            weights: of the layers of the diagonal.
            rows: R.
            starts: whether the last layer meets a first token, which nothing adapts.
        """
        num, width = len(weights.exit), weights.squeeze.shape[-1]
        hidden, intermediate = sizes.hidden, sizes.intermediate
        like = weights.exit
        self.sizes, self.weights, self.starts = sizes, weights, starts
        self.root = like.new_full((), math.sqrt(hidden * sizes.epsilon))
        self.length = like.new_empty(num + 1, rows, 1)  # |x|, with epsilon
        self.unit = like.new_ones(num + 1, rows, hidden + 1)  # x / |x| and 1
        self.x = like.new_empty(num, 2, rows, hidden)  # for gate and for up
        self.squeezed = like.new_empty(num, rows, width)
        self.features = like.new_ones(num, 2, rows, width + 2)  # 1, then u
        if starts:
            self.features[-1, ..., 1:] = 0
        self.entry = Projection(sizes.entry, 2 * num, rows, extra=0, like=like)
        self.exit = Projection(sizes.exit, num, rows, extra=1, like=like)
        self.both = like.new_empty(num, 2, rows, intermediate)  # gate and up
        self.gated = like.new_empty(num, rows, intermediate)
        self._make_views(num, rows)

    def _make_views(self, num: int, rows: int) -> None:
        weights, width, hidden = self.weights, self.squeezed.shape[-1], self.sizes.hidden
        self.states = self.unit[1:]
        self.entry_features, self.exit_features = self.features.flatten(0, 1), self.features[:, 0]
        self.gate, self.up = self.both[:, 0], self.both[:, 1]
        self._unit = self.unit[..., :hidden]
        self.unit_x = self.unit[:-1, :, :hidden].unsqueeze(1).expand(num, 2, rows, hidden)
        self.gain = weights.gain[:, None, None]
        self._repeated = self.squeezed.unsqueeze(1).expand(num, 2, rows, width)
        self._bottleneck = self.features[..., 2:]
        self.entry_x, self._entry_y = self.x.flatten(0, 1), self.both.flatten(0, 1)
        self.entry_weight, self.entry_heads = weights.entry.flatten(0, 1), weights.entry_heads.flatten(0, 1)

    def forward(self, inputs: Tensor, out: Tensor) -> None:
        """Write the states [N, R, H] from those [N + 1, R, H] of the diagonal before; layer 1 reads the first two."""
        entry, exit_, weights = self.entry, self.exit, self.weights
        torch.linalg.vector_norm(inputs, dim=-1, keepdim=True, out=self.length)
        torch.hypot(self.length, self.root, out=self.length)
        torch.div(inputs, self.length, out=self._unit)
        torch.mul(self.unit_x, self.gain, out=self.x)
        torch.bmm(self.states, weights.squeeze, out=self.squeezed)
        _silu(self._repeated, out=self._bottleneck)
        if self.starts:
            self._bottleneck[-1].zero_()
        entry.adapt(self.entry_features, self.entry_heads)
        exit_.adapt(self.exit_features, weights.exit_heads)
        entry.multiply(self.entry_x, self.entry_weight)
        torch.mul(entry.product, entry.scale, out=self._entry_y)
        self.gate.add_(exit_.rest)
        _silu(self.gate, out=self.gated).mul_(self.up)
        exit_.multiply(self.gated, weights.exit)
        torch.addcmul(inputs[:-1], exit_.product, exit_.scale, out=out)
