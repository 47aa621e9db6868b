"""Training of a candidate model by autograd for a number of epochs; it can be saved and continued bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gflownet.evaluation.augmentation import augmented
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.examples import Batch, Examples, Split, num_steps
from gflownet.evaluation.metrics import Loss, Metric, constant_outputs, constant_prediction, mean_value
from gflownet.evaluation.optimisation import Optimisation
from gflownet.evaluation.randomness import global_states, seeded, set_global_states
from gflownet.translation import TranslatedModel

# A cross-entropy of 1,000 nats means logits that are off by 1,000: the training does not recover.
DIVERGED_LOSS = 1_000.0
# Targets of one batch when a constant prediction is measured.
_TARGETS_AT_ONCE = 4096


class CandidateDivergedError(RuntimeError):
    """The training loss is too large or not finite."""


@dataclass(eq=False)
class ModelTraining:
    """A model and the state of its training, to train on from."""

    model: nn.Module
    generator: torch.Generator  # shuffles the examples of each epoch
    num_epochs: int = 0  # done
    train_loss: float = math.nan  # mean of the last epoch
    values: list[float] = field(default_factory=list)  # validation metric after each epoch, where measured
    optimisation: dict[str, Any] | None = None  # state of the optimiser; None before the first step
    # Of the global generators, which dropout and random augmentation use.
    global_states: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain containers from which the training continues."""
        return {
            # Cloned: torch.save writes the whole memory of a view.
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "generator": self.generator.get_state(),
            "num_epochs": self.num_epochs,
            "train_loss": self.train_loss,
            "values": list(self.values),
            "optimisation": _compact(self.optimisation),
            "global_states": self.global_states,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self.model.load_state_dict(state["model"])
        self.generator.set_state(state["generator"])
        self.num_epochs, self.train_loss = state["num_epochs"], state["train_loss"]
        self.values = list(state["values"])
        self.optimisation, self.global_states = state["optimisation"], state["global_states"]


@dataclass(frozen=True)
class Measure:
    """A metric on one split."""

    metric: Metric
    examples: Examples
    constant_mean: float  # mean of the metric's values for the best constant prediction; 0 where it is not used

    def value(self, model: nn.Module) -> float:
        """Return the metric of a model in its unit."""
        model.eval()
        # A Dataset may draw random numbers, as may a user's module: the training draws the same without a measure.
        is_deterministic = (
            isinstance(self.examples, Split) and isinstance(model, TranslatedModel) and model.plan.is_dense
        )
        with nullcontext() if is_deterministic else seeded(0), torch.inference_mode():
            return self.value_of((outputs_of(model, inputs), targets) for inputs, targets in self.examples.in_order())

    def value_of(self, batches: Iterable[Batch]) -> float:
        """Return the metric of batches (outputs, targets) of all examples in its unit."""
        if self.metric.is_whole:
            outputs, targets = zip(*batches, strict=True)
            batches = [(torch.cat(outputs), torch.cat(targets))]
        mean = mean_value(self.metric.values, batches)
        return self.metric.finish(mean, self.constant_mean) if math.isfinite(mean) else mean

    def score(self, value: float) -> float:
        """Return the score in [0, 1] of a value of the metric, 0 if it is not finite."""
        if not math.isfinite(value):
            return 0.0
        return self.metric.score(value, self.metric.finish(self.constant_mean, self.constant_mean))


@dataclass(frozen=True)
class ModelTrainer:
    """The training of models on one task."""

    train: Examples
    loss: Loss
    config: EvaluationConfig
    loss_limit: float = DIVERGED_LOSS  # mean loss of an epoch above which a training ends
    num_outputs: int = 0  # classes, for the augmentation

    def continue_training(
        self,
        training: ModelTraining,
        *,
        num_epochs: int,
        schedule: int,
        validation: Measure | None = None,
        measure_after: int = 0,
    ) -> None:
        """Train a model in place up to an epoch.

        Args:
            training: the model and its state.
            num_epochs: number of epochs after which to stop.
            schedule: epochs of the whole training, for the learning rate.
            validation: measured after each epoch.
            measure_after: epochs after which it is measured first.

        Raises:
            CandidateDivergedError: the mean loss of an epoch is not finite or above `loss_limit`.
        """
        if training.global_states is not None:
            set_global_states(training.global_states)
        model, size = training.model, self.config.batch_size
        total = schedule * num_steps(self.train, size)
        optimisation = Optimisation(model, self.config, num_steps=total, state=training.optimisation)
        while training.num_epochs < num_epochs:
            model.train()
            batches = self._batches(size, training.generator)
            training.train_loss = train_epoch(model, batches, optimisation, loss=self.loss)
            check_loss(training.train_loss, epoch=training.num_epochs, limit=self.loss_limit)
            training.num_epochs += 1
            if validation is not None and training.num_epochs > measure_after:
                with optimisation.averaged_weights():
                    training.values.append(validation.value(model))
        training.optimisation = optimisation.state_dict()
        optimisation.finish()
        training.global_states = global_states()

    def _batches(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Return the batches of one epoch, with the augmentation of the config."""
        batches, names = self.train.shuffled(size, generator), self.config.training.augment
        if not names:
            return batches
        return (augmented(each, names, num_outputs=self.num_outputs, generator=generator) for each in batches)


def _compact(state: Any) -> Any:
    """Return a copy of nested containers whose tensors are no views of larger ones."""
    match state:
        case Tensor():
            return state.clone()
        case dict():
            return {key: _compact(value) for key, value in state.items()}
        case list():
            return [_compact(value) for value in state]
        case _:
            return state


def train_epoch(model: nn.Module, batches: Iterator[Batch], optimisation: Optimisation, *, loss: Loss) -> float:
    """Take one optimiser step per batch and return the mean loss."""
    losses = []
    for inputs, targets in batches:
        optimisation.zero_grad()
        value = loss(outputs_of(model, inputs), targets).mean()  # of a loss with a value per prediction
        if value.requires_grad:  # not without parameters
            value.backward()
            optimisation.step()
        losses.append(value.detach())
    return float(torch.stack(losses).mean())


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of independent examples."""
    return model(inputs, reset_states=True) if isinstance(model, TranslatedModel) else model(inputs)


def check_loss(mean_loss: float, *, epoch: int, limit: float = DIVERGED_LOSS) -> None:
    """Raise CandidateDivergedError for a mean loss that is too large or not finite."""
    if not mean_loss <= limit:
        raise CandidateDivergedError(f"epoch {epoch + 1}: expected a training loss <= {limit:g}, got {mean_loss:g}")


def loss_limit(loss: Loss, targets: Tensor) -> float:
    """Return the loss above which a training ends: for numbers, relative to the best constant prediction."""
    if not targets.is_floating_point():
        return DIVERGED_LOSS
    constant = constant_outputs(constant_prediction(targets, 0), targets)
    return DIVERGED_LOSS * max(1.0, float(loss(constant, targets).mean()))


def build_measure(metric: Metric, examples: Examples, *, train: Examples, num_outputs: int) -> Measure:
    """Return a metric on a split, relative to the best constant prediction of the training examples where needed."""
    if not metric.is_relative:
        return Measure(metric, examples, 0.0)
    constant = constant_prediction(train.targets, num_outputs, quantile=metric.quantile)
    parts = examples.targets.split(_TARGETS_AT_ONCE)
    return Measure(
        metric, examples, mean_value(metric.values, ((constant_outputs(constant, part), part) for part in parts))
    )
