"""Training of small classifiers for a fixed number of epochs: many at once, or one by autograd.

N: examples, F: features, K: candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

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


@dataclass(eq=False)
class ClassifierTraining:
    """A classifier and the state of its training, to train on from. P: parameters of the model."""

    model: nn.Module
    generator: torch.Generator  # shuffles the examples of each epoch
    num_epochs: int = 0  # done
    train_loss: float = math.nan  # mean of the last epoch
    moments: tuple[Tensor, Tensor] | None = None  # Adam's averages [P] of gradients and squares; None before a step
    accuracies: list[float] = field(default_factory=list)  # on validation data after each epoch, where measured


def train_classifier(model: nn.Module, data: Split, *, config: EvaluationConfig, generator: torch.Generator) -> float:
    """Train `model` in place for config.num_epochs and return the mean training loss of the last epoch.

    See `continue_training`. Raises as it does.
    """
    training = ClassifierTraining(model, generator)
    continue_training(training, data, config=config, num_epochs=config.num_epochs)
    return training.train_loss


def train_classifiers(
    models: Sequence[TranslatedModel], data: Split, *, config: EvaluationConfig, generators: Sequence[torch.Generator]
) -> list[float | CandidateDivergedError]:
    """Train direct models (`is_direct`) in place for config.num_epochs; return the loss or the error of each.

    See `continue_trainings`.
    """
    trainings = [ClassifierTraining(model, generator) for model, generator in zip(models, generators, strict=True)]
    errors = continue_trainings(trainings, data, config=config, num_epochs=config.num_epochs)
    return [training.train_loss if error is None else error for training, error in zip(trainings, errors, strict=True)]


def continue_training(
    training: ClassifierTraining,
    data: Split,
    *,
    config: EvaluationConfig,
    num_epochs: int,
    validation: Split | None = None,
) -> None:
    """Train with Adam on cross-entropy up to an epoch, in place and by autograd.

    The parameters share one dtype and device. Dropout uses torch's global generator, whose state the caller keeps
    between two parts of a training. The accuracy on `validation` is measured after each epoch.

    Raises:
        CandidateDivergedError: the mean loss of an epoch is not finite or above DIVERGED_LOSS.
    """
    model = training.model
    parameters = _flattened(list(model.parameters()))
    moments = training.moments and tuple(moment.clone() for moment in training.moments)
    optimiser = _adam(parameters, moments, _steps_done(training, data, config), config)
    while training.num_epochs < num_epochs:
        model.train()
        training.train_loss = _train_epoch(
            model, data, optimiser, batch_size=config.batch_size, generator=training.generator
        )
        _check_loss(training.train_loss, epoch=training.num_epochs)
        training.num_epochs += 1
        if validation is not None:
            training.accuracies.append(accuracy(model, validation))
    training.moments = _moments(optimiser, parameters)


def continue_trainings(
    trainings: Sequence[ClassifierTraining],
    data: Split,
    *,
    config: EvaluationConfig,
    num_epochs: int,
    validation: Split | None = None,
) -> list[CandidateDivergedError | None]:
    """Train direct models (`is_direct`) up to an epoch, in place and all at once; return the error of each.

    All have done the same number of epochs. Each result is bit-identical for every set and order of models, and equals
    `continue_training` up to rounding. Memory: K copies of the examples.
    """
    models = [training.model for training in trainings]
    group = DirectTraining(cast("list[TranslatedModel]", models))
    (epoch,) = {training.num_epochs for training in trainings}
    optimiser = _adam(group.parameter, _joined(group, trainings), _steps_done(trainings[0], data, config), config)
    errors: list[CandidateDivergedError | None] = [None] * len(trainings)
    while epoch < num_epochs and None in errors:
        losses = _train_epoch_together(
            group, data, optimiser, config.batch_size, [each.generator for each in trainings]
        )
        for position, training in enumerate(trainings):
            if errors[position] is None:
                training.train_loss = losses[position]
                errors[position] = _error_of(training.train_loss, epoch=epoch)
            if errors[position] is None:
                training.num_epochs = epoch + 1
                if validation is not None:
                    training.accuracies.append(accuracy(training.model, validation))
        epoch += 1
    if (moments := _moments(optimiser, group.parameter)) is not None:
        for training, *parts in zip(trainings, *(group.parts(moment) for moment in moments), strict=True):
            training.moments = parts[0], parts[1]
    return errors


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


def _train_epoch_together(
    group: DirectTraining,
    data: Split,
    optimiser: torch.optim.Optimizer,
    batch_size: int,
    generators: Sequence[torch.Generator],
) -> list[float]:
    """Take one optimiser step per batch and return the mean loss of each model."""
    batches = [_shuffled_batches(data, batch_size=batch_size, generator=each) for each in generators]
    losses = []
    for step in zip(*batches, strict=True):
        losses.append(group.backward(*zip(*step, strict=True)))
        optimiser.step()
    # Summed here, one by one: how a tensor's mean over steps rounds may depend on the number of columns.
    return [sum(history) / len(history) for history in zip(*torch.stack(losses).tolist(), strict=True)]


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


def _error_of(mean_loss: float, *, epoch: int) -> CandidateDivergedError | None:
    """Return the error of a loss, without frames that hold tensors."""
    try:
        _check_loss(mean_loss, epoch=epoch)
    except CandidateDivergedError as error:
        return error
    return None


def _adam(
    parameter: nn.Parameter, moments: tuple[Tensor, ...] | None, num_steps: int, config: EvaluationConfig
) -> torch.optim.Optimizer:
    """Return Adam on a flat parameter after a number of steps."""
    optimiser = Adam([parameter], lr=config.learning_rate, fused=True)
    if moments is not None:
        step = torch.tensor(float(num_steps), dtype=torch.float32, device=parameter.device)
        optimiser.state[parameter] = {"step": step, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
    return optimiser


def _moments(optimiser: torch.optim.Optimizer, parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None:
    state = optimiser.state[parameter]
    return (state["exp_avg"], state["exp_avg_sq"]) if state else None


def _joined(group: DirectTraining, trainings: Sequence[ClassifierTraining]) -> tuple[Tensor, ...] | None:
    """Return Adam's averages of all models in flat tensors, None before the first step."""
    if any(training.moments is None for training in trainings):
        return None
    joined = torch.zeros_like(group.parameter.detach()), torch.zeros_like(group.parameter.detach())
    for number, flat in enumerate(joined):
        for part, training in zip(group.parts(flat), trainings, strict=True):
            assert training.moments is not None
            part.copy_(training.moments[number])
    return joined


def _steps_done(training: ClassifierTraining, data: Split, config: EvaluationConfig) -> int:
    return training.num_epochs * math.ceil(len(data.inputs) / config.batch_size)


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
