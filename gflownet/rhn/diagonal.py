"""One diagonal of the wavefront: a step of several layers at once, each on its own token, in reused buffers.

The tensors of a diagonal are small and diagonals are many, so the overhead of calls is much of the time. Every call
writes into a buffer, the views of the buffers are made once, and products with the same factor are one product: gate
and up are one matrix, and x is a row above A. `RHNBlock.step` defines the result. No adapted matrix is made.

N is the number of layers, R of rows, H the hidden size, I the intermediate size, r the rank, J = bottleneck + 1; P is 2
for gate and up, 1 for down, and M is N R P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.rhn.fold import BlockSizes, Fold, HeadColumns
from gflownet.rhn.layers import MIN_SQUARED_NORM

# Takes half the time of torch.ops.aten.silu.out.
silu = torch._C._nn.silu  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Frame:
    """States of one diagonal, and views of them."""

    states: Tensor  # [N + 1, R, H], the input of the first layer, then the states of the layers
    x: Tensor  # [N, R, H], inputs of the layers on the next diagonal
    new: Tensor  # [N, R, H], states of the layers
    first: Tensor  # [R, H], the input of the first layer
    last: Tensor  # [R, H], of the last layer

    @classmethod
    def of(cls, states: Tensor) -> Frame:
        """Return the frame of states [N + 1, R, H]."""
        return cls(states, states[:-1], states[1:], states[0], states[-1])


class Projection:
    """Apply projections adapted row by row: y = scale (W x + B A x)."""

    def __init__(self, columns: HeadColumns, shape: tuple[int, int, int], *, extra: int, like: Tensor) -> None:
        """Allocate the buffers.

        Args:
            columns: of the heads.
            shape: N, R and P.
            extra: number of additional columns of the heads.
            like: tensor with the dtype and device of the buffers.
        """
        rank, size_in, size_out = columns.rank, columns.size_in, columns.size_out
        num = math.prod(shape)
        self.columns, self.norm, self.shape = columns, columns.norm, shape
        heads = like.new_empty(num, sum(columns.sizes) + extra)
        x, a, b, c, self.magnitude, extra_heads = heads.split([*columns.sizes, extra], -1)
        self.heads, self.extra = heads.view(*shape[:2], -1), extra_heads.view(*shape[:2], -1)
        self.x = x.view(*shape, size_in)  # written after the heads
        self.rows = self.x[:, :, 0]  # [N, R, in], multiplied by W
        self.a, self.b = a.view(num, rank, size_in), b.view(num, rank, size_out)
        height = rank + 1 if self.norm == "dora" else 1
        self.x_and_a = heads[:, : height * size_in].view(num, height, size_in)
        self.low = like.new_empty(num, height, rank)  # A x and G = A A^T
        self.changes = like.new_empty(num, height, size_out)  # B A x and G B
        self.plain = like.new_empty(*shape[:2], shape[2] * size_out)  # W x
        self.product = like.new_empty(num, size_out)  # W x + B A x
        self.scale = self.magnitude
        self._a_transposed, self._change, self._plain = self.a.mT, self.changes[:, 0], self.plain.view(num, size_out)
        if self.norm == "dora":
            self.c, self._cross = c.view(num, rank, size_out), self.changes[:, 1:]
            self._terms = like.new_ones(num, rank + 1, size_out)  # 1 and B (2 C + G B): their sum is the squared norm
            self._norm_terms = self._terms[:, 1:]
            self.squared, self.inverse_norm, self.scale = like.new_empty(3, num, size_out).unbind()

    def adapt(self, features: Tensor, heads: Tensor) -> None:
        """Compute the adapters for features [N, R, J + 1]."""
        torch.bmm(features, heads, out=self.heads)

    def multiply(self, weight: Tensor) -> None:
        """Compute the product of x, and its scale."""
        torch.bmm(self.x_and_a, self._a_transposed, out=self.low)
        torch.bmm(self.low, self.b, out=self.changes)
        if self.norm == "dora":
            torch.add(self._cross, self.c, alpha=2, out=self._norm_terms).mul_(self.b)
            torch.sum(self._terms, 1, out=self.squared)
            torch.clamp_min(self.squared, MIN_SQUARED_NORM, out=self.inverse_norm).rsqrt_()
            torch.mul(self.magnitude, self.inverse_norm, out=self.scale)
        torch.bmm(self.rows, weight, out=self.plain)
        torch.add(self._plain, self._change, out=self.product)


class DiagonalStep:
    """Compute the states of one diagonal from the states of the previous one."""

    def __init__(self, sizes: BlockSizes, weights: Fold, rows: int) -> None:
        """Allocate the buffers.

        Args:
            sizes: of the blocks.
            weights: of the layers of the diagonal.
            rows: R.
        """
        num, width = len(weights.exit), weights.squeeze.shape[-1]
        hidden, intermediate = sizes.hidden, sizes.intermediate
        like = weights.exit
        self.sizes, self.weights = sizes, weights
        self.root = sizes.root(like)
        self.length = like.new_empty(num + 1, rows, 1)  # |x|, with epsilon
        unit = like.new_ones(num + 1, rows, hidden + 1)  # x / |x| and 1
        self.unit, self.states = unit[..., :hidden], unit[1:]
        unit_x = self.unit[:-1, :, None].expand(num, rows, 2, hidden)
        self.unit_x, self.gain = unit_x, weights.gain[:, None, None]
        self.squeezed = like.new_empty(num, rows, width)
        self.features = like.new_ones(num, rows, width + 2)  # 1, then u
        self._bottleneck = self.features[..., 2:]
        self.entry = Projection(sizes.entry, (num, rows, 2), extra=0, like=like)
        self.exit = Projection(sizes.exit, (num, rows, 1), extra=2, like=like)
        self.both = like.new_empty(num, rows, 2, intermediate)  # gate and up
        self.gate, self.up = self.both.unbind(2)
        self._beta, self.gated = self.exit.extra.unsqueeze(-1), self.exit.rows
        self._entry_y, self._entry_scale = (
            part.view(self.both.shape) for part in (self.entry.product, self.entry.scale)
        )
        self._exit_y, self._exit_scale = (part.view(num, rows, hidden) for part in (self.exit.product, self.exit.scale))
        self._first_token: int | None = None

    def forward(self, before: Frame, out: Tensor, first_token: int | None) -> None:
        """Write the states [N, R, H] of the next diagonal to `out`.

        Args:
            before: states of the previous diagonal.
            out: [N, R, H].
            first_token: layer, counted from 0, that reads its first token and is not adapted; None: no such layer.
        """
        entry, exit_, weights = self.entry, self.exit, self.weights
        torch.linalg.vector_norm(before.states, dim=-1, keepdim=True, out=self.length)
        torch.hypot(self.length, self.root, out=self.length)
        torch.div(before.states, self.length, out=self.unit)
        torch.bmm(self.states, weights.squeeze, out=self.squeezed)
        silu(self.squeezed, out=self._bottleneck)
        self._mark(first_token)
        entry.adapt(self.features, weights.entry_heads)
        exit_.adapt(self.features, weights.exit_heads)
        torch.mul(self.unit_x, self.gain, out=entry.x)
        entry.multiply(weights.entry)
        torch.addcmul(self._beta, self._entry_y, self._entry_scale, out=self.both)
        silu(self.gate, out=self.gated).mul_(self.up)
        exit_.multiply(weights.exit)
        torch.addcmul(before.x, self._exit_y, self._exit_scale, out=out)

    def _mark(self, first_token: int | None) -> None:
        """Set the features of a layer to 0, and reset the features of the previous such layer to 1."""
        if self._first_token is not None:
            self.features[self._first_token, :, 1] = 1
        if first_token is not None:
            self.features[first_token, :, 1:] = 0
        self._first_token = first_token
