"""The plain ways to run an RHN that the wavefront is compared with: stacks as `RHN.forward` takes them, by name.

R is the number of rows, T of tokens, H the hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gflownet.rhn.layers import Adapter, RHNBlock
from gflownet.rhn.network import Stack, layer_by_layer
from gflownet.rhn.wavefront import Wavefront


def checkpointed(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run layer by layer, and each layer again in the backward pass: torch's way to train with less memory."""
    last_states = []
    for n, block in enumerate(blocks):
        x, last = cast(Any, checkpoint(block, x, None if state is None else state[n], use_reentrant=False))
        last_states.append(last)
    return x, torch.stack(last_states)


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
    "naive": layer_by_layer,
    "checkpointed": checkpointed,
    "materialised": materialised,
}
