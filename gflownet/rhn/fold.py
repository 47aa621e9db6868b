"""Precomputed weights of several RHN blocks, differentiable with respect to their parameters.

The heads of a BHN are affine in the features u, so A = sum_j u_j A_j, and the product of W and A that the norm of an
adapted row needs is sum_j u_j (W A_j^T). These products are computed once per update, not once per token. Every row of
W and of B is divided by the norm of the row of W, so that the squared norm of an adapted row is

    1 + sum_r B_or (2 C_or + (B G)_or) with C = W A^T and G = A A^T,

and its magnitude a factor. Without a norm W and B stay as they are, and there is no C.

N is the number of blocks, P of projections in each, H the hidden size, I the intermediate size, r the rank,
J = bottleneck + 1 the number of features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gflownet.rhn.config import Norm
from gflownet.rhn.layers import AdapterHeads, RHNBlock


@dataclass(frozen=True)
class HeadColumns:
    """Column layout of the heads of one projection: a copy of x, A [r, in], B [r, out], C [r, out], magnitude [out].

    The columns for x are zero in the weights. x is written into them, so that x and A are multiplied at once.
    """

    rank: int
    size_in: int
    size_out: int
    norm: Norm

    @property
    def sizes(self) -> list[int]:
        """Numbers of columns of x, A, B, C and the magnitude."""
        across = self.rank * self.size_out
        return [self.size_in, self.rank * self.size_in, across, across if self.norm == "dora" else 0, self.size_out]

    def parts(self, heads: Tensor) -> tuple[Tensor, ...]:
        """Return x [N, P, J + 1, in], A, B, C [.., r, *] and the magnitude in heads [N, J + 1, P * + extra]."""
        width = sum(self.sizes)
        num_projections = heads.shape[-1] // width
        by_projection = heads[..., : num_projections * width].unflatten(-1, (num_projections, width)).transpose(1, 2)
        x, a, b, c, magnitude = by_projection.split(self.sizes, -1)
        return x, *(part.unflatten(-1, (self.rank, -1)) for part in (a, b, c)), magnitude


class FoldedProjections(torch.autograd.Function):
    """Compute projections [N, in, P out], each row divided by its norm, and heads [N, J + 1, P * + extra].

    Large tensors are written once, in place: stacking, dividing and concatenating them one after the other would take
    several times the memory traffic, which dominates the time.
    """

    @staticmethod
    def forward(
        ctx: Any, columns: HeadColumns, weight: Tensor, a: Tensor, b: Tensor, delta: Tensor, extra: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Fold weight [N, P, out, in], a [N, P, J, r, in], b [N, P, J, out, r] and delta [N, P, J, out].

        `extra` [N, J, extra] are more columns of the heads.
        """
        num, count, size_out, size_in = weight.shape
        is_dora = columns.norm == "dora"
        scales = torch.linalg.vector_norm(weight, dim=-1) if is_dora else weight.new_ones(weight.shape[:-1])
        folded = weight.new_empty(num, size_in, count, size_out)
        torch.div(weight.permute(0, 3, 1, 2), scales.unsqueeze(1), out=folded)
        heads = a.new_empty(num, a.shape[2] + 1, count * sum(columns.sizes) + extra.shape[-1])
        to_x, to_a, to_b, to_c, magnitude = columns.parts(heads)
        heads[:, 0] = 0
        to_x[:, :, 1:] = 0
        magnitude[:, :, 0] = scales
        to_a[:, :, 1:] = a
        torch.div(b.mT, scales[:, :, None, None], out=to_b[:, :, 1:])
        torch.mul(delta, scales.unsqueeze(2), out=magnitude[:, :, 1:])
        heads[:, 1:, heads.shape[-1] - extra.shape[-1] :] = extra
        for place in range(count if is_dora else 0):
            product = torch.bmm(a[:, place].flatten(1, 2), folded[:, :, place])
            to_c[:, place, 1:] = product.view(num, *a.shape[2:4], size_out)
        folded = folded.flatten(2)
        ctx.columns, ctx.extra = columns, extra.shape[-1]
        ctx.save_for_backward(a, delta, scales, folded, heads)
        return folded, heads

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_folded: Tensor, grad_heads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments."""
        a, delta, scales, folded, heads = ctx.saved_tensors
        shape = scales.shape[1:]
        normed, grad_normed = (part.unflatten(-1, shape).permute(0, 2, 3, 1) for part in (folded, grad_folded))
        parts = ctx.columns.parts(grad_heads)
        _, grad_a, grad_b, grad_c, grad_magnitude = (part[:, :, 1:] for part in parts)
        grad_extra = grad_heads[:, 1:, grad_heads.shape[-1] - ctx.extra :]
        if ctx.columns.norm == "none":
            return None, grad_normed, grad_a, grad_b.mT, grad_magnitude, grad_extra
        grad_products = grad_c.flatten(2, 3)
        grad_a = grad_a + (grad_products @ normed).view_as(a)
        grad_normed = grad_normed + grad_products.mT @ a.flatten(2, 3)
        b = ctx.columns.parts(heads)[2][:, :, 1:]
        through_b, along = (grad_b * b).sum((2, 3)), (grad_normed * normed).sum(-1)
        grad_scales = parts[4][:, :, 0] + (grad_magnitude * delta).sum(2) - (through_b + along) / scales
        grad_weight = grad_normed / scales.unsqueeze(-1) + normed * grad_scales.unsqueeze(-1)
        grad_b = (grad_b / scales[:, :, None, None]).mT
        return None, grad_weight, grad_a, grad_b, grad_magnitude * scales.unsqueeze(2), grad_extra


@dataclass(frozen=True)
class Fold:
    """Weights of blocks, in the order in which rows are multiplied by them.

    Inputs are divided by their root mean square times sqrt(H); that factor and the gain of a BHN's norm are in the
    weights. `HeadColumns` describes the columns of heads; gate and up are concatenated.
    """

    squeeze: Tensor  # [N, H + 1, J - 1], normed state and 1 -> bottleneck
    gain: Tensor  # [N, H], of normed x
    entry: Tensor  # [N, H, 2 I], x -> gate and up
    exit: Tensor  # [N, I, H], gated x -> down
    entry_heads: Tensor  # [N, J + 1, 2 *], 1 and features -> heads of gate and up
    exit_heads: Tensor  # [N, J + 1, * + 2], 1 and features -> heads of down, beta for gate, and 0 for up

    def of(self, layers: slice) -> Fold:
        """Return the weights of some blocks."""
        if layers == slice(0, len(self.exit)):
            return self
        return Fold(*(tensor[layers] for tensor in self.tensors))

    def detach(self) -> Fold:
        """Return the weights outside the autograd graph."""
        return Fold(*(tensor.detach() for tensor in self.tensors))

    @property
    def tensors(self) -> list[Tensor]:
        """Fields in their order."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of a block that the shapes of a `Fold` do not determine."""

    hidden: int
    intermediate: int
    rank: int
    norm: Norm
    epsilon: float

    @property
    def entry(self) -> HeadColumns:
        """Columns of the heads of gate and of up."""
        return HeadColumns(self.rank, self.hidden, self.intermediate, self.norm)

    @property
    def exit(self) -> HeadColumns:
        """Columns of the heads of down."""
        return HeadColumns(self.rank, self.intermediate, self.hidden, self.norm)

    def root(self, like: Tensor) -> Tensor:
        """Return sqrt(H epsilon), []: a root mean square with epsilon, times sqrt(H), is hypot(|x|, root)."""
        return like.new_full((), math.sqrt(self.hidden * self.epsilon))


def normalised(x: Tensor, root: Tensor) -> Tensor:
    """Return x [..., H] over its root mean square times sqrt(H); see `BlockSizes.root`."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), root)


def sizes_of(block: RHNBlock) -> BlockSizes:
    """Return the sizes of a block."""
    down, rank = block.ffn.plain.down_proj, block.bhn.gate.a.shape[1]
    return BlockSizes(down.out_features, down.in_features, rank, block.ffn.norm, block.norm.epsilon)


def folded_bytes(block: RHNBlock) -> int:
    """Return the size of the folded weights of a block."""
    sizes, width = sizes_of(block), block.bhn.squeeze.out_features
    through = 3 * sizes.hidden * sizes.intermediate + sizes.hidden + (sizes.hidden + 1) * width
    heads = (width + 2) * (2 * sum(sizes.entry.sizes) + sum(sizes.exit.sizes) + 2)
    weight = block.norm.weight
    return (through + heads) * torch.promote_types(weight.dtype, torch.float32).itemsize


def fold(blocks: Sequence[RHNBlock]) -> Fold:
    """Return the weights of blocks of equal sizes, at least in float32; differentiable by their parameters."""
    root, heads = math.sqrt(sizes_of(blocks[0]).hidden), [block.bhn for block in blocks]
    # At least float32: bfloat16 loses a norm that B A nearly cancels.
    dtype = torch.promote_types(blocks[0].norm.weight.dtype, torch.float32)
    beta = F.pad(_stacked([head.beta for head in heads], dtype).unsqueeze(-1), (0, 1))
    entry, entry_heads = _projections(blocks, beta[..., :0], "gate", "up")
    exit_, exit_heads = _projections(blocks, beta, "down")
    state_gain = _stacked([head.norm.weight for head in heads], dtype) * root
    squeeze = _stacked([head.squeeze.weight for head in heads], dtype).mT * state_gain.unsqueeze(-1)
    bias = _stacked([head.squeeze.bias for head in heads], dtype).unsqueeze(1)
    gain = _stacked([block.norm.weight for block in blocks], dtype) * root
    return Fold(torch.cat([squeeze, bias], 1), gain, entry, exit_, entry_heads, exit_heads)


def _projections(blocks: Sequence[RHNBlock], extra: Tensor, *names: str) -> tuple[Tensor, Tensor]:
    """Return projections [N, in, P out] and their heads [N, J + 1, P * + extra], P of them in every block."""
    weights = [getattr(block.ffn.plain, f"{name}_proj").weight for block in blocks for name in names]
    heads: list[AdapterHeads] = [getattr(block.bhn, name) for block in blocks for name in names]
    parts = (weights, [head.a for head in heads], [head.b for head in heads], [head.delta for head in heads])
    stacked = (_stacked(part, extra.dtype).unflatten(0, (len(blocks), -1)) for part in parts)
    sizes = sizes_of(blocks[0])
    columns = sizes.exit if names == ("down",) else sizes.entry
    return FoldedProjections.apply(columns, *stacked, extra)


def _stacked(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack([*tensors]).to(dtype)
