"""Data and a training script of `scripts/bench_real.py`: what users bring of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gflownet.evaluation.data.datasets import load_splits
from gflownet.evaluation.data.examples import Split

# Settings of the training script: the configuration of task=choices.
PLACES = {
    "depth": [1, 2, 3],
    "features": [4, 8, 12, 16],
    "kernel": [3, 5, 7, 9],
    "norm": ["none", "batch"],
    "activation": ["relu", "tanh", "gelu"],
    "optimizer": ["sgd", "adam"],
    "lr": [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1],
    "batch": [25, 50, 100, 200],
    "dropout": [0.0, 0.1, 0.3],
}
# Settings of the module alone.
MODULE_PLACES = {name: PLACES[name] for name in ("depth", "features", "kernel", "norm", "activation", "dropout")}
_NUM_EPOCHS = 3
_SPLIT_SEED = 0
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


def slant() -> tuple[np.ndarray, np.ndarray]:
    """Return handwritten digits [1797, 64] and their slants [1797]: the correlation of x and y, weighted by ink."""
    pixels = np.asarray(load_digits(return_X_y=True)[0])
    y, x = (places.ravel() - 3.5 for places in np.mgrid[:8, :8])
    ink = pixels / pixels.sum(1, keepdims=True)
    dx, dy = x - (ink @ x)[:, None], y - (ink @ y)[:, None]
    return pixels, (ink * dx * dy).sum(1) / np.sqrt((ink * dx**2).sum(1) * (ink * dy**2).sum(1))


def score(choices: Mapping[str, Any], seed: int) -> float:
    """Return the validation accuracy of a training on MNIST-1D."""
    return _accuracy(_trained(choices, seed), _signals()[1])


def test(choices: Mapping[str, Any], seed: int) -> float:
    """Return the test accuracy of a training on MNIST-1D."""
    return _accuracy(_trained(choices, seed), _signals()[2])


def _trained(choices: Mapping[str, Any], seed: int) -> nn.Module:
    torch.manual_seed(seed % 2**63)
    model, (inputs, targets) = module(choices), _signals()[0]
    optimizer: Any = torch.optim.Adam if choices["optimizer"] == "adam" else torch.optim.SGD
    momentum = {} if choices["optimizer"] == "adam" else {"momentum": 0.9}
    steps = optimizer(model.parameters(), lr=choices["lr"], **momentum)
    for _ in range(_NUM_EPOCHS):
        for rows in torch.randperm(len(targets)).split(choices["batch"]):
            steps.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            steps.step()
    return model.eval()


def module(choices: Mapping[str, Any]) -> nn.Module:
    """Return the untrained network of some settings."""
    kernel, layers = choices["kernel"], []
    for sources, targets in pairwise([1, *[choices["features"]] * choices["depth"]]):
        layers.append(nn.Conv1d(sources, targets, kernel, stride=2, padding=kernel // 2))
        layers += [nn.BatchNorm1d(targets)] if choices["norm"] == "batch" else []
        layers.append(_ACTIVATIONS[choices["activation"]]())
    width = choices["features"] * -(-40 // 2 ** choices["depth"])
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(choices["dropout"]), nn.Linear(width, 10))


def _accuracy(model: nn.Module, examples: tuple[Tensor, Tensor]) -> float:
    inputs, targets = examples
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).float().mean())


@cache
def _signals() -> list[tuple[Tensor, Tensor]]:
    """Return inputs [N, 1, 40] and classes [N] of training, validation and test."""
    splits = load_splits("mnist1d", key="task", seed=_SPLIT_SEED)
    return [(part.inputs, part.targets) for part in splits if isinstance(part, Split)]
