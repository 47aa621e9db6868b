"""Modules as users write them: arguments of every kind, lists of tensors, inputs that are changed in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import torch
from torch import Tensor, nn


class Mode(Enum):
    """What `Scaled` does."""

    TWICE = "twice"
    HALF = "half"


class Scaled(nn.Module):
    """An enumeration, keyword-only arguments, and values of forward."""

    def __init__(self, *, mode: Mode = Mode.TWICE) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor, shift: float = 0.0, *, scale: int = 1) -> Tensor:
        assert isinstance(self.mode, Mode)
        return scale * (2 * x if self.mode is Mode.TWICE else x / 2) + shift


@dataclass
class Config:
    """Sizes of `Block`."""

    width: int = 3
    bias: bool = True


class Block(nn.Module):
    """An object, a class, a list and *sizes as arguments."""

    def __init__(
        self, config, in_features, hidden, act: type[nn.Module] = nn.ReLU, norm: Callable[..., nn.Module] | None = None
    ) -> None:
        super().__init__()
        sizes = [in_features] + hidden + [config.width]  # noqa: RUF005 - hidden has to be a list
        pairs = pairwise(sizes)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(*pair, bias=config.bias), act()) for pair in pairs))
        self.norm = nn.Identity() if norm is None else norm(config.width)

    def forward(self, x):
        return self.norm(self.layers(x))


class Stack(nn.Module):
    """*sizes, and any number of tensors."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, *tensors: Tensor) -> Tensor:
        return torch.cat([tensor[:, :size] for tensor, size in zip(tensors, self.sizes, strict=True)], 1)


class InPlace(nn.Module):
    """Changes its second input."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y.mul_(2)


def weighted(weights: list[float], xs: list[Tensor]) -> Tensor:
    """Return a weighted sum."""
    assert isinstance(weights, list)
    return torch.stack([weight * x for weight, x in zip(weights, xs, strict=True)]).sum(0)
