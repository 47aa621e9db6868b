"""The plain ways to run an RHN that the wavefront is measured beside: stacks as `RHN.forward` takes them, by name.

R is the number of rows, T of tokens, H the hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gflownet.rhn.cell import cell
from gflownet.rhn.fold import fold, sizes_of
from gflownet.rhn.layers import Adapter, RHNBlock
from gflownet.rhn.network import Stack
from gflownet.rhn.wavefront import Wavefront, diagonals


def naive(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the folded cell layer after layer, token after token, under torch.autograd."""
    last_states = []
    for n, block in enumerate(blocks):
        x = _naive_layer(block, x, None if state is None else state[n : n + 1])
        last_states.append(x[:, -1])
    return x, torch.stack(last_states)


def checkpointed(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run as `naive` does, and each layer again in the backward pass: torch's way to train with less memory."""
    last_states = []
    for n, block in enumerate(blocks):
        previous = None if state is None else state[n : n + 1]
        x = cast(Tensor, checkpoint(_naive_layer, block, x, previous, use_reentrant=False))
        last_states.append(x[:, -1])
    return x, torch.stack(last_states)


def _naive_layer(block: RHNBlock, x: Tensor, previous: Tensor | None) -> Tensor:
    """Return the outputs [R, T, H] of one layer; `previous` is its state [1, R, H]."""
    weights, sizes, outputs = fold([block]), sizes_of(block), []
    for token in x.unbind(1):
        mask = x.new_zeros(1, 1, 1) if previous is None else None
        before = torch.zeros_like(token).unsqueeze(0) if previous is None else previous
        previous = cell(token.unsqueeze(0), before, mask, sizes, weights)
        outputs.append(previous[0])
    return torch.stack(outputs, 1)


def autograd_wavefront(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the folded cell along the wavefront, all layers in one group, under torch.autograd."""
    weights, sizes = fold(blocks), sizes_of(blocks[0])
    live = x.new_zeros(len(blocks), len(x), x.shape[-1]) if state is None else state
    outputs = []
    for diagonal in diagonals(len(blocks), x.shape[1]):
        first, last = diagonal.first, diagonal.last
        head = x[:, diagonal.s - 1].unsqueeze(0) if first == 0 else live[first - 1 : first]
        mask = None
        if diagonal.starts and state is None:
            mask = x.new_ones(last + 1 - first, 1, 1)
            mask[-1] = 0
        inputs = torch.cat([head, live[first:last]])
        new = cell(inputs, live[diagonal.layers], mask, sizes, weights.of(diagonal.layers))
        live = torch.cat([live[:first], new, live[last + 1 :]])
        if last == len(blocks) - 1:
            outputs.append(new[-1])
    return torch.stack(outputs, 1), live


def materialised(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the seed as it is written: W + B A [R, out, in] is made for every token, under torch.autograd."""
    last_states = []
    for n, block in enumerate(blocks):
        previous = None if state is None else state[n]
        made = []
        for token in x.unbind(1):
            previous = _materialised_step(block, token, previous)
            made.append(previous)
        x = torch.stack(made, 1)
        last_states.append(made[-1])
    return x, torch.stack(last_states)


def _materialised_step(block: RHNBlock, x: Tensor, previous: Tensor | None) -> Tensor:
    normed, plain = block.norm(x), block.ffn.plain
    if previous is None:
        return x + plain(normed)
    adapters = block.bhn(previous)
    gate = F.silu(_materialised_projection(normed, plain.gate_proj.weight, adapters.gate) + adapters.beta)
    up = _materialised_projection(normed, plain.up_proj.weight, adapters.up)
    return x + _materialised_projection(gate * up, plain.down_proj.weight, adapters.down)


def _materialised_projection(x: Tensor, weight: Tensor, adapter: Adapter) -> Tensor:
    """Return x [R, in] through m (W + B A) / ||W + B A||."""
    matrix = weight + adapter.b @ adapter.a
    magnitude = torch.linalg.vector_norm(weight, dim=-1) * (1 + adapter.delta)
    scale = magnitude / torch.linalg.vector_norm(matrix, dim=-1)
    return ((scale.unsqueeze(-1) * matrix) @ x.unsqueeze(-1)).squeeze(-1)


STACKS: dict[str, Stack] = {
    "wavefront": Wavefront(),
    "one group": Wavefront(layers=1000),
    "layer by layer": Wavefront(layers=1),
    "naive": naive,
    "checkpointed": checkpointed,
    "autograd wavefront": autograd_wavefront,
    "materialised": materialised,
}
