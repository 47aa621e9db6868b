"""The module of the operation rhn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.wavefront import along_wavefront


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
