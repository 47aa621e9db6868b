"""Values of K copies of one model as one tensor: the channels of each copy next to those of the one before.

B: batch, C: channels of one copy. In channels_last the rearrangements below are views.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def join_copies(values: Sequence[Tensor]) -> Tensor:
    """Return one value [B, K C, ...] of K values [B, C, ...]."""
    return torch.stack([each.movedim(1, -1) for each in values], -2).flatten(-2).movedim(-1, 1)


def pad_copies(num_copies: int, value: Tensor, missing: int) -> Tensor:
    """Return a value [B, K C, ...] with zeros for the missing channels of each copy."""
    return F.pad(_by_copy(num_copies, value), (0, missing)).flatten(-2).movedim(-1, 1)


def concat_copies(num_copies: int, *values: Tensor) -> Tensor:
    """Return the channels of several values [B, K C, ...], those of each copy next to each other."""
    return torch.cat([_by_copy(num_copies, each) for each in values], -1).flatten(-2).movedim(-1, 1)


def _by_copy(num_copies: int, value: Tensor) -> Tensor:
    """Return a value as [B, ..., K, C]."""
    return value.movedim(1, -1).unflatten(-1, (num_copies, -1))


class LinearOfCopies(nn.Module):
    """K linear layers: vectors [B, K C] to [B, K O]."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.num_copies = len(layers)
        self.weight = joined([each.weight for each in layers])  # [K O, C]
        self.bias = None if layers[0].bias is None else joined([each.bias for each in layers])

    def forward(self, input: Tensor) -> Tensor:
        """Return the product of each copy's vectors with its matrix."""
        vectors = input.unflatten(1, (self.num_copies, -1)).transpose(0, 1)
        matrices = self.weight.unflatten(0, (self.num_copies, -1)).mT
        if self.bias is None:
            products = torch.bmm(vectors, matrices)
        else:
            products = torch.baddbmm(self.bias.view(self.num_copies, 1, -1), vectors, matrices)
        return products.transpose(0, 1).flatten(1)


def joined(parameters: Sequence[Tensor]) -> nn.Parameter:
    """Return the parameters of K copies as one, along the first axis."""
    return nn.Parameter(torch.cat([each.detach() for each in parameters]))
