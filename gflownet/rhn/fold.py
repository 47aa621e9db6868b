"""The weights of several blocks as the wavefront multiplies by them: stacked, their own products made once.

A BHN's heads are affine in the features u, so A = sum_j u_j A_j, and what the norm of an adapted row needs of W and A
together is sum_j u_j (W A_j^T): those products are made once per update, not once per token. Every row of W is divided
by its norm and so is the same row of B, so that the squared norm of an adapted row is

    1 + sum_r B_or (2 C_or + (B G)_or) with C = W A^T and G = A A^T,

and its magnitude a factor. Without a norm W and B stay as they are, and there is no C.

N is the number of blocks, H the hidden size, I the intermediate size, r the rank, J = bottleneck + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.config import Norm
from gflownet.rhn.layers import AdapterHeads, RHNBlock


@dataclass(frozen=True)
class Fold:
    """What rows are multiplied by on their way through a block.

    Inputs are divided by their root mean square times sqrt(H); that factor and the gain of a BHN's norm are in the
    weights. The columns of heads are those of `HeadColumns`, for gate and up one after the other.
    """

    squeeze: Tensor  # [N, H + 1, J - 1], normed state and 1 -> bottleneck
    gain: Tensor  # [N, H], of normed x
    entry: Tensor  # [N, H, 2 I], x -> gate and up
    exit: Tensor  # [N, I, H], gated x -> down
    entry_heads: Tensor  # [N, J + 1, 2 *], 1 and features -> heads of gate and up
    exit_heads: Tensor  # [N, J + 1, * + 1], 1 and features -> heads of down, and beta

    def of(self, layers: slice) -> Fold:
        """Return the weights of some blocks."""
        if layers == slice(0, len(self.exit)):
            return self  # a slice of everything would cost torch.autograd as much as a part
        return Fold(*(tensor[layers] for tensor in self.tensors))

    def detach(self) -> Fold:
        """Return the weights without what made them."""
        return Fold(*(tensor.detach() for tensor in self.tensors))

    @property
    def tensors(self) -> list[Tensor]:
        """The fields in their order."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class HeadColumns:
    """The columns of the heads of one projection.

    Room for what is projected, of zeros in the weights, beside A so that both are multiplied at once; then A [r, in],
    B [r, out], C [r, out] and the magnitude [out].
    """

    rank: int
    size_in: int
    size_out: int
    norm: Norm

    @property
    def sizes(self) -> list[int]:
        """How many columns the input, A, B, C and the magnitude have."""
        across = self.rank * self.size_out
        return [self.size_in, self.rank * self.size_in, across, across if self.norm == "dora" else 0, self.size_out]


@dataclass(frozen=True)
class BlockSizes:
    """What the shapes of a `Fold` do not say by themselves."""

    entry: HeadColumns  # of gate and of up
    exit: HeadColumns  # of down
    epsilon: float

    @property
    def hidden(self) -> int:
        """H."""
        return self.exit.size_out

    @property
    def intermediate(self) -> int:
        """I."""
        return self.exit.size_in

    @property
    def rank(self) -> int:
        """r."""
        return self.exit.rank

    @property
    def norm(self) -> Norm:
        """How adapted rows are scaled."""
        return self.exit.norm


def sizes_of(block: RHNBlock) -> BlockSizes:
    """Return the sizes of a block."""
    down, rank, norm = block.ffn.plain.down_proj, block.bhn.gate.a.shape[1], block.ffn.norm
    hidden, intermediate = down.out_features, down.in_features
    return BlockSizes(
        entry=HeadColumns(rank, hidden, intermediate, norm),
        exit=HeadColumns(rank, intermediate, hidden, norm),
        epsilon=block.norm.epsilon,
    )


def folded_bytes(block: RHNBlock) -> int:
    """Return the size of the weights of a block, folded."""
    sizes, width = sizes_of(block), block.bhn.squeeze.out_features
    through = 3 * sizes.hidden * sizes.intermediate + sizes.hidden + (sizes.hidden + 1) * width
    heads = (width + 2) * (2 * sum(sizes.entry.sizes) + sum(sizes.exit.sizes) + 1)
    weight = block.norm.weight
    return (through + heads) * torch.promote_types(weight.dtype, torch.float32).itemsize


def _stacked(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return [len, ...], at least in float32: bfloat16 loses a norm that B A nearly cancels."""
    return torch.stack([*tensors]).to(torch.promote_types(dtype, torch.float32))


def _projections(blocks: Sequence[RHNBlock], *names: str) -> tuple[Tensor, Tensor]:
    """Return projections [N, in, P out] and their heads [N, J + 1, P *], P of them in every block."""
    weights = [getattr(block.ffn.plain, f"{name}_proj").weight for block in blocks for name in names]
    heads: list[AdapterHeads] = [getattr(block.bhn, name) for block in blocks for name in names]
    dtype, shape = weights[0].dtype, (len(blocks), len(names))
    weight, a = _stacked(weights, dtype), _stacked([head.a for head in heads], dtype)
    b, delta = _stacked([head.b for head in heads], dtype).mT, _stacked([head.delta for head in heads], dtype)
    columns = [a.new_zeros(*a.shape[:2], a.shape[-1]), a, b]
    scales = torch.ones_like(delta[:, 0])
    if blocks[0].ffn.norm == "dora":
        scales = torch.linalg.vector_norm(weight, dim=-1)
        weight = weight / scales.unsqueeze(-1)
        b, delta = b / scales[:, None, None], delta * scales.unsqueeze(1)
        columns[2:] = [b, torch.bmm(a.flatten(1, 2), weight.mT).view_as(b)]
    by_feature = torch.cat([*(part.flatten(2) for part in columns), delta], -1)
    constant = F.pad(scales, (by_feature.shape[-1] - scales.shape[-1], 0))
    made = torch.cat([constant.unsqueeze(1), by_feature], 1)
    side_by_side = (part.unflatten(0, shape).transpose(1, 2).flatten(2) for part in (weight.mT, made))
    weight, made = side_by_side
    return weight.contiguous(), made


def fold(blocks: Sequence[RHNBlock]) -> Fold:
    """Return the weights of blocks of equal sizes, at least in float32; differentiable by their parameters."""
    entry, entry_heads = _projections(blocks, "gate", "up")
    exit_, exit_heads = _projections(blocks, "down")
    dtype, root = blocks[0].norm.weight.dtype, math.sqrt(exit_.shape[-1])
    beta = F.pad(_stacked([block.bhn.beta for block in blocks], dtype), (1, 0)).unsqueeze(-1)
    squeezes = [block.bhn.squeeze for block in blocks]
    gains = _stacked([block.bhn.norm.weight for block in blocks], dtype) * root
    squeeze = _stacked([squeeze.weight for squeeze in squeezes], dtype).mT * gains.unsqueeze(-1)
    bias = _stacked([squeeze.bias for squeeze in squeezes], dtype).unsqueeze(1)
    return Fold(
        squeeze=torch.cat([squeeze, bias], 1),
        gain=_stacked([block.norm.weight for block in blocks], dtype) * root,
        entry=entry,
        exit=exit_,
        entry_heads=entry_heads,
        exit_heads=torch.cat([exit_heads, beta], -1),
    )
