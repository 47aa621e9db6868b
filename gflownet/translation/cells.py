"""Recurrent cells over whole sequences, as generated code calls them.

B is the batch, T the number of time steps, D the width. A sequence [T B, D] is ordered by time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.wavefront import along_wavefront


def gru_sequence(layer: nn.GRUCell, x: Tensor, hidden: Tensor) -> Tensor:
    """Return the outputs [T B, D] on x [T B, D] from a state [B, D]."""
    outputs = []
    for moment in x.view(-1, *hidden.shape).unbind(0):
        hidden = layer(moment, hidden)
        outputs.append(hidden)
    return torch.cat(outputs)


def lstm_sequence(layer: nn.LSTMCell, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [T B, D] on x [T B, D] from a state of two [B, D], and the last memory cell [B, D]."""
    outputs = []
    for moment in x.view(-1, *hidden.shape).unbind(0):
        hidden, cell = layer(moment, (hidden, cell))
        outputs.append(hidden)
    return torch.cat(outputs), cell


def rhn_sequence(block: RHNBlock, x: Tensor, hidden: Tensor, token: Tensor) -> Tensor:
    """Return the outputs [T B, D] on x [T B, D] from a state [B, D], which rows with token [B, 1] = 0 do not have."""
    moments = x.view(-1, *hidden.shape)
    first = block.step(moments[0], hidden, token)
    if len(moments) == 1:
        return first
    later, _ = along_wavefront([block], moments[1:].transpose(0, 1), first.unsqueeze(0))
    return torch.cat([first, later.transpose(0, 1).flatten(0, 1)])
