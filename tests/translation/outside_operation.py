"""Operations and an activation of a user, loaded by module:Class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gflownet.operations.operation import Operation, single_input
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.vocabulary import Activation


class Doubled(nn.Module):
    """A linear layer whose output is doubled."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)


class DoubledLinear(Operation):
    """An operation that only defines a shape and a module."""

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return single_input(inputs)

    @classmethod
    def build(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> nn.Module:
        return Doubled(single_input(inputs).channels)


class Cubed(Activation):
    """z cubed."""

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return torch.pow(z, 3)
