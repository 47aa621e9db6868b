"""The wavefront with a backward pass of its own: it keeps the states alone and makes everything else again.

Each diagonal is made once more from the states of the one before and differentiated by itself, last one first, so that
the memory is that of all states, one diagonal's tensors and one group's weights. N is the number of layers of a group,
T of tokens, R of rows, H the hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gflownet.rhn.fold import Fold, fold
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.products import Products
from gflownet.rhn.wavefront import diagonals, inputs_of, layers_per_group, run_in_groups, sizes_of, step


class _Group(torch.autograd.Function):
    """One group of layers."""

    @staticmethod
    def forward(
        ctx: Any, blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        products, sizes = Products(fold(blocks)), sizes_of(blocks[0])
        live = x.new_zeros(len(blocks), *x.shape[1:]) if state is None else state
        outputs, ctx.inputs = [], []
        for diagonal in diagonals(len(blocks), len(x)):
            ctx.inputs.append(inputs_of(diagonal, x, live))
            new = step(ctx.inputs[-1], diagonal, sizes, products, has_state=state is not None)
            live = torch.cat([live[: diagonal.first], new, live[diagonal.last + 1 :]])
            if diagonal.last == len(blocks) - 1:
                outputs.append(new[-1])
        ctx.blocks, ctx.has_state = blocks, state is not None
        ctx.save_for_backward(*parameters)  # so that torch notices when they are changed before the backward pass
        return torch.stack(outputs), live

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_live: Tensor) -> tuple[Tensor | None, ...]:
        parameters, sizes = ctx.saved_tensors, sizes_of(ctx.blocks[0])
        with torch.enable_grad():
            weights = fold(ctx.blocks)
        tensors = [getattr(weights, field.name) for field in fields(Fold)]
        products = Products(Fold(*(tensor.detach() for tensor in tensors)))
        # Gradients of the newest state of each layer; the first layer reads the group's input.
        grad_live, grad_x = grad_live.clone(), torch.empty_like(grad_outputs)
        for diagonal in reversed(list(diagonals(len(ctx.blocks), len(grad_outputs)))):
            if diagonal.last == len(ctx.blocks) - 1:
                grad_live[-1] += grad_outputs[diagonal.s - len(ctx.blocks)]
            inputs = ctx.inputs[diagonal.s - 1].detach().requires_grad_()
            with torch.enable_grad():
                new = step(inputs, diagonal, sizes, products, has_state=ctx.has_state)
            (grad_inputs,) = torch.autograd.grad(new, inputs, grad_live[diagonal.layers])
            grad_live[diagonal.layers] = grad_inputs[1:]
            if diagonal.first == 0:
                grad_x[diagonal.s - 1] = grad_inputs[0]
            else:
                grad_live[diagonal.first - 1] += grad_inputs[0]
        asked = [parameter for parameter in parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(tensors, asked, products.gradients.take()) if asked else ())
        grads = [next(found) if parameter.requires_grad else None for parameter in parameters]
        return None, grad_x, grad_live if ctx.has_state else None, *grads


def _run_group(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    parameters = [parameter for block in blocks for parameter in block.parameters()]
    return _Group.apply(blocks, x, state, *parameters)


@dataclass(frozen=True)
class MemoryLight:
    """Runs layers along the wavefront with little memory for the backward pass; a `Stack`."""

    layers: int | None = None  # per group; None: as many as stay in cache

    def __call__(self, blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the last block makes of x [R, T, H], and the last token's states [depth, R, H]."""
        return run_in_groups(blocks, x, state, layers=self.layers or layers_per_group(blocks), run=_run_group)
