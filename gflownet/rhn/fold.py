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
from gflownet.rhn.projections import FoldedProjections, HeadColumns


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
    exit_heads: Tensor  # [N, J + 1, * + 2], 1 and features -> heads of down, beta for gate, and 0 for up

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

    def root(self, like: Tensor) -> Tensor:
        """Return sqrt(H epsilon), []: a root mean square with epsilon, times sqrt(H), is hypot(|x|, root)."""
        return like.new_full((), math.sqrt(self.hidden * self.epsilon))


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
    heads = (width + 2) * (2 * sum(sizes.entry.sizes) + sum(sizes.exit.sizes) + 2)
    weight = block.norm.weight
    return (through + heads) * torch.promote_types(weight.dtype, torch.float32).itemsize


def _stacked(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return [len, ...], at least in float32: bfloat16 loses a norm that B A nearly cancels."""
    return torch.stack([*tensors]).to(torch.promote_types(dtype, torch.float32))


def _projections(blocks: Sequence[RHNBlock], extra: Tensor, *names: str) -> tuple[Tensor, Tensor]:
    """Return projections [N, in, P out] and their heads [N, J + 1, P * + extra], P of them in every block."""
    weights = [getattr(block.ffn.plain, f"{name}_proj").weight for block in blocks for name in names]
    heads: list[AdapterHeads] = [getattr(block.bhn, name) for block in blocks for name in names]
    parts = (weights, [head.a for head in heads], [head.b for head in heads], [head.delta for head in heads])
    stacked = (_stacked(part, weights[0].dtype).unflatten(0, (len(blocks), -1)) for part in parts)
    sizes = sizes_of(blocks[0])
    columns = sizes.exit if names == ("down",) else sizes.entry
    return FoldedProjections.apply(columns, *stacked, extra)


def fold(blocks: Sequence[RHNBlock]) -> Fold:
    """Return the weights of blocks of equal sizes, at least in float32; differentiable by their parameters."""
    dtype, root = blocks[0].norm.weight.dtype, math.sqrt(sizes_of(blocks[0]).hidden)
    beta = F.pad(_stacked([block.bhn.beta for block in blocks], dtype).unsqueeze(-1), (0, 1))
    entry, entry_heads = _projections(blocks, beta[..., :0], "gate", "up")
    exit_, exit_heads = _projections(blocks, beta, "down")
    squeezes = [block.bhn.squeeze for block in blocks]
    gains = _stacked([block.bhn.norm.weight for block in blocks], dtype) * root
    squeeze = _stacked([squeeze.weight for squeeze in squeezes], dtype).mT * gains.unsqueeze(-1)
    bias = _stacked([squeeze.bias for squeeze in squeezes], dtype).unsqueeze(1)
    gain = _stacked([block.norm.weight for block in blocks], dtype) * root
    return Fold(torch.cat([squeeze, bias], 1), gain, entry, exit_, entry_heads, exit_heads)
