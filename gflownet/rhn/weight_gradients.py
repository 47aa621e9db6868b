"""Gradients of stacked weights, gathered over many steps and added up in one product.

The rows of one step are few: a gradient of every step would read and write whole weights for them. N is the number of
layers, R of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.rhn.fold import Fold


@dataclass(frozen=True)
class Slot:
    """Where one step writes what it multiplied by the weights of a fold, and the gradients of what became of it."""

    states: Tensor  # [N, R, H + 1], by squeeze
    x: Tensor  # [N, R, H], by entry
    gated: Tensor  # [N, R, I], by exit
    features: Tensor  # [N, R, J + 1], by both heads
    squeeze: Tensor  # [N, R, J - 1]
    entry: Tensor  # [N, R, 2 I]
    exit: Tensor  # [N, R, H]
    entry_heads: Tensor  # [N, R, 2 *]
    exit_heads: Tensor  # [N, R, * + 2]


# What is multiplied by each weight.
INPUTS = {"squeeze": "states", "entry": "x", "exit": "gated", "entry_heads": "features", "exit_heads": "features"}


class WeightGradients:
    """The gradients of a `Fold`, of one backward pass."""

    def __init__(self, weights: Fold, rows: int) -> None:
        """Start from zero."""
        self._sums = {name: torch.zeros_like(getattr(weights, name)) for name in INPUTS}
        self._gain = weights.gain.new_zeros(len(weights.gain), rows, weights.gain.shape[-1])
        widths = {INPUTS[name]: weight.shape[1] for name, weight in self._sums.items()}
        widths |= {name: weight.shape[2] for name, weight in self._sums.items()}
        # What waits is then as large as the gradients that it goes into: neither memory nor its traffic outgrows that.
        num_weights = sum(weight[0].numel() for weight in self._sums.values())
        num_steps = max(1, num_weights // (rows * sum(widths.values())))
        like = weights.exit
        self._waiting = {name: like.new_zeros(len(like), num_steps, rows, width) for name, width in widths.items()}
        self._count = 0
        self.slots = [
            Slot(**{name: part[:, step] for name, part in self._waiting.items()}) for step in range(num_steps)
        ]

    def next_slot(self) -> int:
        """Return which of the slots one more step may fill."""
        if self._count == len(self.slots):
            self._flush()
        self._count += 1
        return self._count - 1

    def add_gain(self, unit: Tensor, gradient: Tensor) -> None:
        """Take what a step contributes to the gradient of the gain: [N, R, H] both."""
        self._gain.addcmul_(unit, gradient)

    def _flush(self) -> None:
        """Add what waits to the sums."""
        rows = {name: part[:, : self._count].flatten(1, 2) for name, part in self._waiting.items()}
        for name, total in self._sums.items():
            total.baddbmm_(rows[INPUTS[name]].mT, rows[name])
        self._count = 0

    def total(self) -> Fold:
        """Return the gradients; nothing is added after that."""
        self._flush()
        return Fold(gain=self._gain.sum(1), **self._sums)
