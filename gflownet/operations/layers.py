"""Layers that torch.nn does not have. Each class is stand-alone, so that generated source can contain its text.

Letters: B batch, T positions, D features, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LayerScale(nn.Module):
    """Each channel times a learned number (Touvron et al. 2021, equation 4)."""

    def __init__(self, channels: int, num_axes_after: int, initial: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, *[1] * num_axes_after), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, ..., C] or [B, C, ...] times the weights."""
        return x * self.weight
