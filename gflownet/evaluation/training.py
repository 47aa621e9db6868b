"""Training of small classifiers for a fixed number of epochs: many at once, or one by autograd.

N: examples, F: features, K: candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.evaluation.config import EvaluationConfig
from gflownet.optimisers import Adam
from gflownet.translation import DirectTraining, TranslatedModel

# A cross-entropy of 1,000 nats means logits that are off by 1,000: the training does not recover.
DIVERGED_LOSS = 1_000.0


class CandidateDivergedError(RuntimeError):
    """The training loss is too large or not finite."""


@dataclass(frozen=True)
class Split:
    """Labelled examples."""

    inputs: Tensor  # [N, F] float32
    targets: Tensor  # [N] int64, class indices


def train_classifier(model: nn.Module, data: Split, *, config: EvaluationConfig, generator: torch.Generator) -> float:
    """Train `model` in place with Adam on cross-entropy and return the mean training loss of the last epoch.

    The parameters share one dtype and device. `generator` shuffles the examples of each epoch; dropout uses torch's
    global generator.

    Raises:
        CandidateDivergedError: the mean loss of an epoch is not finite or above DIVERGED_LOSS.
    """
    parameters = _flattened(list(model.parameters()))
    optimiser = Adam([parameters], lr=config.learning_rate, fused=True)
    model.train()
    mean_loss = math.nan
    for epoch in range(config.num_epochs):
        mean_loss = _train_epoch(model, data, optimiser, batch_size=config.batch_size, generator=generator)
        _check_loss(mean_loss, epoch=epoch)
    return mean_loss


def train_classifiers(
    models: Sequence[TranslatedModel], data: Split, *, config: EvaluationConfig, generators: Sequence[torch.Generator]
) -> list[float | CandidateDivergedError]:
    """Train direct models (`is_direct`) in place, all at once; return the loss or the error of each.

    Each result is bit-identical for every set and order of models, and equals train_classifier up to rounding.
    Memory: K copies of the examples.
    """
    training = DirectTraining(models)
    optimiser = Adam([training.parameter], lr=config.learning_rate, fused=True)
    batch_size = config.batch_size
    outcomes: list[float | CandidateDivergedError] = [math.nan] * len(models)
    for epoch in range(config.num_epochs):
        batches = [_shuffled_batches(data, batch_size=batch_size, generator=each) for each in generators]
        losses = []
        for step in zip(*batches, strict=True):
            losses.append(training.backward(*zip(*step, strict=True)))
            optimiser.step()
        for position, history in enumerate(zip(*torch.stack(losses).tolist(), strict=True)):
            if not isinstance(outcomes[position], CandidateDivergedError):
                # Summed here, one by one: how a tensor's mean over steps rounds may depend on the number of columns.
                outcomes[position] = _loss_or_error(sum(history) / len(history), epoch=epoch)
        if all(isinstance(outcome, CandidateDivergedError) for outcome in outcomes):
            break
    return outcomes


@torch.no_grad()
def accuracy(model: nn.Module, data: Split) -> float:
    """Return the share of examples whose largest logit is their class."""
    model.eval()
    return float((_logits(model, data.inputs).argmax(dim=1) == data.targets).double().mean())


def _train_epoch(
    model: nn.Module, data: Split, optimiser: torch.optim.Optimizer, *, batch_size: int, generator: torch.Generator
) -> float:
    """Take one optimiser step per batch and return the mean loss."""
    losses = []
    for inputs, targets in _shuffled_batches(data, batch_size=batch_size, generator=generator):
        # Not set to None: the gradients are views of one tensor.
        optimiser.zero_grad(set_to_none=False)
        loss = F.cross_entropy(_logits(model, inputs), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of independent examples."""
    return model(inputs, reset_states=True) if isinstance(model, TranslatedModel) else model(inputs)


def _shuffled_batches(data: Split, *, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Return inputs [B, F] and targets [B] of each batch of one epoch, in a new random order."""
    # One gather per epoch and views of it per batch: a DataLoader takes longer than the steps of a small model.
    order = torch.randperm(len(data.inputs), generator=generator).to(data.inputs.device)
    inputs = data.inputs.index_select(0, order).split(batch_size)
    targets = data.targets.index_select(0, order).split(batch_size)
    return zip(inputs, targets, strict=True)


def _check_loss(mean_loss: float, *, epoch: int) -> None:
    if not mean_loss <= DIVERGED_LOSS:
        raise CandidateDivergedError(
            f"epoch {epoch + 1}: expected a training loss <= {DIVERGED_LOSS:g}, got {mean_loss:g}"
        )


def _loss_or_error(mean_loss: float, *, epoch: int) -> float | CandidateDivergedError:
    """Return the loss, or the error without frames that hold tensors."""
    try:
        _check_loss(mean_loss, epoch=epoch)
    except CandidateDivergedError as error:
        return error
    return mean_loss


def _flattened(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """Return one parameter that holds all others, which become views of it, as do their gradients.

    Updating dozens of small tensors as one saves a sixth of the training time.
    """
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values, gradient in zip(parameters, flat.data.split(sizes), flat.grad.split(sizes), strict=True):
        parameter.data = values.view_as(parameter)
        parameter.grad = gradient.view_as(parameter)
    return flat
