"""The weights of several blocks as the wavefront multiplies by them: stacked, their own products made once.

A BHN's heads are affine in the features u, so A = sum_j u_j A_j, and what the norm of an adapted row needs of W and A
together is sum_j u_j (W A_j^T): those products are made once per update, not once per token. Every row of W is divided
by its norm and so is the same row of B, so that the squared norm of an adapted row is 1 + sum_r B_or (C_or + (B G)_or)
with C = 2 W A^T and G = A A^T, and its magnitude a factor.

N is the number of blocks, H the hidden size, I the intermediate size, r the rank, J = bottleneck + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.layers import AdapterHeads, RHNBlock


@dataclass(frozen=True)
class Fold:
    """What rows are multiplied by on their way through a block; the gains of the norms are multiplied in."""

    squeeze: Tensor  # [N, H + 1, J - 1], normed state and 1 -> bottleneck
    entry: Tensor  # [N, H, 2 I + 2 J r], normed x -> gate and up through W, then through every A_j
    exit: Tensor  # [N, I, H + J r], gated x -> down through W, then through every A_j
    entry_b: Tensor  # [N, J, 2 r I], features -> B of gate and up
    entry_c: Tensor  # [N, J, 2 r I], features -> C of gate and up
    exit_b: Tensor  # [N, J, r H]
    exit_c: Tensor  # [N, J, r H]
    gram: Tensor  # [N, J J, 3 r r], products of features -> G of gate, up and down
    scales: Tensor  # [N, J + 1, 2 I + H + 1], 1 and features -> magnitudes of gate, up and down; beta


@dataclass(frozen=True)
class _Projection:
    """The parts of one projection and its heads."""

    through: Tensor  # [in, out + J r]
    b: Tensor  # [J, r, out]
    c: Tensor  # [J, r, out]
    gram: Tensor  # [J J, r r]
    magnitude: Tensor  # [J + 1, out]


def _projection(weight: Tensor, heads: AdapterHeads, gain: Tensor | None) -> _Projection:
    """Return the parts of a projection [out, in] of what is multiplied by a gain [in]."""
    dtype = torch.promote_types(weight.dtype, torch.float32)  # bfloat16 loses the norm of a row that B A nearly cancels
    weight, a, b, delta = (tensor.to(dtype) for tensor in (weight, heads.a, heads.b, heads.delta))
    norms = torch.linalg.vector_norm(weight, dim=1)
    unit = weight / norms.unsqueeze(-1)
    stacked = a.flatten(0, 1)
    through = torch.cat([unit, stacked])
    width, rank = a.shape[:2]
    gram = (stacked @ stacked.mT).view(width, rank, width, rank).transpose(1, 2)
    return _Projection(
        through=(through if gain is None else through * gain).mT,
        b=(b / norms.unsqueeze(-1)).mT,
        c=2 * (stacked @ unit.mT).view(width, rank, -1),
        gram=gram.reshape(width * width, rank * rank),
        magnitude=torch.cat([torch.ones_like(delta[:1]), delta]) * norms,
    )


def _of_block(block: RHNBlock) -> tuple[Tensor, ...]:
    """Return the fields of a `Fold` for one block, without the first dimension."""
    plain, bhn = block.ffn.plain, block.bhn
    gate = _projection(plain.gate_proj.weight, bhn.gate, block.norm.weight)
    up = _projection(plain.up_proj.weight, bhn.up, block.norm.weight)
    down = _projection(plain.down_proj.weight, bhn.down, None)
    intermediate = plain.gate_proj.out_features
    entry = [
        part[:, s] for s in (slice(intermediate), slice(intermediate, None)) for part in (gate.through, up.through)
    ]
    beta = F.pad(bhn.beta, (1, 0)).unsqueeze(-1).to(gate.b.dtype)
    squeeze = torch.cat([(bhn.squeeze.weight * bhn.norm.weight).mT, bhn.squeeze.bias.unsqueeze(0)])
    return (
        squeeze.to(gate.b.dtype),
        torch.cat(entry, 1),
        down.through,
        torch.stack([gate.b, up.b], 1).flatten(1),
        torch.stack([gate.c, up.c], 1).flatten(1),
        down.b.flatten(1),
        down.c.flatten(1),
        torch.cat([gate.gram, up.gram, down.gram], 1),
        torch.cat([gate.magnitude, up.magnitude, down.magnitude, beta], 1),
    )


def fold(blocks: Sequence[RHNBlock]) -> Fold:
    """Return the weights of blocks of equal sizes, at least in float32; differentiable by their parameters."""
    return Fold(*(torch.stack(parts) for parts in zip(*map(_of_block, blocks), strict=True)))
