"""Cells of torch over whole sequences, as the generated code for sequences calls them.

B is the batch, T the number of time steps, D the width. Sequences are time by time, [T B, D].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
