"""Projections of several blocks and the heads that adapt them, as they are multiplied by, with their derivative.

What is large is written once, where it belongs: to stack, divide and put together in turn would take several times the
memory and its traffic, which is what folding costs.

N is the number of blocks, P of projections in each, J of features, r the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gflownet.rhn.config import Norm


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

    def parts(self, heads: Tensor) -> tuple[Tensor, ...]:
        """Return the room [N, P, J + 1, in], A, B, C [.., r, *] and the magnitude in heads [N, J + 1, P * + extra]."""
        width = sum(self.sizes)
        num_projections = heads.shape[-1] // width
        by_projection = heads[..., : num_projections * width].unflatten(-1, (num_projections, width)).transpose(1, 2)
        room, a, b, c, magnitude = by_projection.split(self.sizes, -1)
        return room, *(part.unflatten(-1, (self.rank, -1)) for part in (a, b, c)), magnitude


class FoldedProjections(torch.autograd.Function):
    """Projections [N, in, P out], each row divided by its norm, and heads [N, J + 1, P * + extra]."""

    @staticmethod
    def forward(
        ctx: Any, columns: HeadColumns, weight: Tensor, a: Tensor, b: Tensor, delta: Tensor, extra: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Fold.

        Args:
            ctx: of autograd.
            columns: of the heads.
            weight: [N, P, out, in].
            a: [N, P, J, r, in].
            b: [N, P, J, out, r].
            delta: [N, P, J, out].
            extra: [N, J, extra], more columns of the heads.
        """
        num, count, size_out, size_in = weight.shape
        is_dora = columns.norm == "dora"
        scales = torch.linalg.vector_norm(weight, dim=-1) if is_dora else weight.new_ones(weight.shape[:-1])
        folded = weight.new_empty(num, size_in, count, size_out)
        torch.div(weight.permute(0, 3, 1, 2), scales.unsqueeze(1), out=folded)
        heads = a.new_empty(num, a.shape[2] + 1, count * sum(columns.sizes) + extra.shape[-1])
        room, to_a, to_b, to_c, magnitude = columns.parts(heads)
        heads[:, 0] = 0
        room[:, :, 1:] = 0
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
