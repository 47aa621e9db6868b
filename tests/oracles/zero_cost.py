"""Zero-cost proxies by definition: loops over pairs of examples, full Jacobians, explicit products of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


def naswot(layers: Sequence[nn.Module], inputs: Tensor) -> float:
    """Return log det(I + K) of a chain of layers, K counted pair by pair."""
    kernel, values = np.eye(len(inputs)), inputs
    for layer in layers:
        if isinstance(layer, nn.ReLU):
            codes = (values > 0).flatten(1).tolist()
            for i, first in enumerate(codes):
                for j, second in enumerate(codes):
                    kernel[i, j] += sum(a == b for a, b in zip(first, second, strict=True))
        values = layer(values)
    return math.log(np.linalg.det(kernel))


def jacov(model: nn.Module, inputs: Tensor) -> float:
    """Return -log(sum of log v + 1 / v) with the Jacobian of each example by itself."""
    rows = [
        torch.autograd.functional.jacobian(lambda x: model(x[None]).sum(), example).flatten().numpy()
        for example in inputs
    ]
    eigenvalues = np.linalg.eigvals(np.corrcoef(np.array(rows, dtype=np.float64))).real
    eigenvalues = np.maximum(eigenvalues, 0) + 1e-5
    return -math.log(np.sum(np.log(eigenvalues) + 1 / eigenvalues))


def synflow(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> float:
    """Return log(1 + sum |w dR/dw|) of linear layers with ReLU between them; dR/dw by differences, R is linear in w."""

    def output(first: int, entry: tuple[int, ...], factor: float) -> float:
        values = np.ones(weights[0].shape[1])
        for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            matrix = weight.detach().double().abs().numpy().copy()
            if place == first:
                matrix[entry] *= factor
            values = matrix @ values + bias.detach().double().abs().numpy()
        return float(values.sum())

    total = 0.0
    for place, weight in enumerate(weights):
        for entry in np.ndindex(*weight.shape):
            total += output(place, entry, 1.0) - output(place, entry, 0.0)
    return math.log1p(total)
