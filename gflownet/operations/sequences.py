"""Recurrent cells over whole sequences, and the module of the operation rhn.

B is the batch, T the number of time steps, D the width. A sequence [T B, D] is ordered by time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gflownet.rhn.config import RHNConfig
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


class RHNLayer(nn.Module):
    """A layer of a Recurrent Hyper Network over sequences [B, T, D] that start without a state."""

    def __init__(self, config: RHNConfig) -> None:
        super().__init__()
        self.block = RHNBlock(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states of all tokens [B, T, D]."""
        # Programs and tensors without data take the definition, token by token.
        if x.is_meta or torch.compiler.is_compiling():
            return self.block(x)[0]
        return along_wavefront([self.block], x, None)[0]


class CarriedRHNLayer(RHNLayer):
    """An RHN layer that continues from the state of the call before."""

    def forward(self, x: Tensor, hidden: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states of all tokens [B, T, D], the last of them, and ones [B, 1]: the next call has a state.

        `hidden` [B, D] is the state of the token before x [B, T, D], where `token` is 1.
        """
        rows = x.transpose(0, 1).flatten(0, 1)
        if x.is_meta or torch.compiler.is_compiling():
            states = [self.block.step(x[:, 0], hidden, token)]
            for moment in x.unbind(1)[1:]:
                states.append(self.block.step(moment, states[-1]))
            y = torch.stack(states, 1)
        else:
            y = rhn_sequence(self.block, rows, hidden, token).unflatten(0, (-1, len(x))).transpose(0, 1)
        return y, y[:, -1], torch.ones_like(token)
