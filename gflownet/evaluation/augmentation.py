"""Random changes of training batches by name. B: batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.examples import Batch, Examples, is_classification

AUGMENTATIONS = ("crop", "flip", "noise", "mixup")
_MARGIN = 1 / 8  # crop: share of a side that is added at both ends
_NOISE = 0.1  # noise: deviations of the batch


def check_augmentation(names: Sequence[str], train: Examples, *, loss: str) -> None:
    """Raise UserError for an unknown name, or one that the examples do not allow."""
    allowed = AUGMENTATIONS if train.example.ndim > 1 else ("noise", "mixup")
    allowed = allowed if ":" not in loss else tuple(name for name in allowed if name != "mixup")
    for name in names:
        if name not in allowed or not train.example.is_floating_point():
            words = f"some of {', '.join(allowed)}" if train.example.is_floating_point() else "none for tokens"
            raise UserError(f"evaluation.training.augment: expected {words}, got {name!r}")


def augmented(batch: Batch, names: Sequence[str], *, num_outputs: int, generator: torch.Generator) -> Batch:
    """Return a batch changed at random by the generator; targets are probabilities after mixup (Zhang et al. 2018)."""
    inputs, targets = batch
    if "crop" in names:
        for axis in range(2, inputs.ndim):
            inputs = _cropped(inputs, axis, generator)
    if "flip" in names:
        is_flipped = torch.rand(len(inputs), generator=generator) < 0.5
        inputs = torch.where(is_flipped.reshape(-1, *[1] * (inputs.ndim - 1)), inputs.flip(-1), inputs)
    if "noise" in names:
        inputs = inputs + _NOISE * inputs.std() * torch.randn(inputs.shape, generator=generator)
    if "mixup" in names:
        order, share = torch.randperm(len(inputs), generator=generator), torch.rand(1, generator=generator)
        targets = F.one_hot(targets, num_outputs).to(inputs) if is_classification(targets) else targets
        inputs, targets = (share * each + (1 - share) * each[order] for each in (inputs, targets))
    return inputs, targets


def _cropped(inputs: Tensor, axis: int, generator: torch.Generator) -> Tensor:
    """Return inputs shifted at random along an axis, each by its own number of places, with zeros at the end."""
    size = inputs.shape[axis]
    margin = max(1, round(size * _MARGIN))
    places = torch.randint(2 * margin + 1, (len(inputs), 1), generator=generator) + torch.arange(size)
    shape = [len(inputs) if each == 0 else size if each == axis else 1 for each in range(inputs.ndim)]
    padded = F.pad(inputs, [0, 0] * (inputs.ndim - 1 - axis) + [margin, margin])
    return padded.gather(axis, places.reshape(shape).expand(inputs.shape))
