"""Gradients of stacked weights, gathered over many steps and added up in one product.

The rows of one step are few: a gradient of every step would read and write whole weights for them. N is the number of
layers, R of rows.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from gflownet.rhn.diagonal_gradient import StepGradient
from gflownet.rhn.fold import Fold


class _Waiting:
    """Rows of the last steps that are not yet in the gradient of one weight [N, ..., in, out]."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        *layers, size_in, size_out = weight.shape
        # What waits is then as large as the gradient that it goes into: neither memory nor its traffic outgrows that.
        num_steps = max(1, (size_in * size_out) // (rows * (size_in + size_out)))
        self.sum = torch.zeros_like(weight)
        self._count = 0
        self._inputs = weight.new_zeros(num_steps, *layers, rows, size_in)
        self._gradients = weight.new_zeros(num_steps, *layers, rows, size_out)
        self._slots = list(zip(self._inputs.unbind(0), self._gradients.unbind(0), strict=True))

    def next_slot(self) -> tuple[Tensor, Tensor]:
        """Return where inputs [N, ..., R, in] and gradients [N, ..., R, out] of one more step belong."""
        if self._count == len(self._slots):
            self.flush()
        self._count += 1
        return self._slots[self._count - 1]

    def flush(self) -> None:
        """Add what waits to the sum."""
        rows = [part[: self._count].movedim(0, -3).flatten(-3, -2) for part in (self._inputs, self._gradients)]
        x, gradients = (part.flatten(0, -3) for part in rows)
        self.sum.flatten(0, -3).baddbmm_(x.mT, gradients)
        self._count = 0


class WeightGradients:
    """The gradients of a `Fold`, of one backward pass."""

    def __init__(self, weights: Fold, rows: int) -> None:
        """Start from zero."""
        names = [field.name for field in fields(Fold) if field.name != "gain"]
        self._waiting = {name: _Waiting(getattr(weights, name), rows) for name in names}
        self._gain = weights.gain.new_zeros(len(weights.gain), rows, weights.gain.shape[-1])

    def add(self, layers: slice, step: StepGradient) -> None:
        """Take what a step of some of the layers contributes."""
        targets, sources = [], []
        for name, pair in step.pairs.items():
            slot = self._waiting[name].next_slot()
            if len(pair[0]) < len(self._gain):
                slot[1].zero_()  # a layer that the step does not have: its old inputs are multiplied by nothing
                slot = slot[0][layers], slot[1][layers]
            targets += slot
            sources += pair
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
        self._gain[layers].addcmul_(*step.gain_pair)

    def total(self) -> Fold:
        """Return the gradients; nothing is added after that."""
        for waiting in self._waiting.values():
            waiting.flush()
        return Fold(gain=self._gain.sum(1), **{name: waiting.sum for name, waiting in self._waiting.items()})
