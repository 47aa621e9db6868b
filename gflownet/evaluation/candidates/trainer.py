"""Training of candidate models by autograd or many at once, continued bit for bit from a saved state.

K: candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor, nn

from gflownet.evaluation.candidates.metrics import Loss, Metric, constant_outputs, constant_prediction
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.data.examples import Batch, Examples, augmented, num_steps
from gflownet.evaluation.data.examples import Split as Split
from gflownet.training.optimisers import OptimiserOptions, Schedule, build_optimisers
from gflownet.training.precision import computed_in
from gflownet.training.random_states import get_random_state, seeded, set_random_state
from gflownet.training.steps import DIVERGED_LOSS, DivergedError, EntryDecay, Steps, flat_steps, map_tensors
from gflownet.translation import DirectTraining, StackedModel, TranslatedModel, join_copies

_WARMUP = 0.2  # share of the steps in which the learning rate of cosine and one_cycle rises
_PLAIN = torch.contiguous_format  # of saved weights
# Targets of one batch when a constant prediction is measured.
_TARGETS_AT_ONCE = 4096


class CandidateDivergedError(DivergedError):
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
    inherited: float = 0.0  # share of the weights with which it began that are of another network
    length: Length | None = None  # of an inherited training; None: as asked

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain containers from which the training continues."""
        return {
            # Cloned: torch.save writes the whole memory of a view.
            "model": {name: value.clone(memory_format=_PLAIN) for name, value in self.model.state_dict().items()},
            "generator": self.generator.get_state(),
            "num_epochs": self.num_epochs,
            "train_loss": self.train_loss,
            "values": list(self.values),
            "optimisation": map_tensors(Tensor.clone, self.optimisation),
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
class Length:
    """Epochs of a training."""

    num_epochs: int  # after which to stop
    schedule: int  # of the whole training, for the learning rate
    measure_after: int = 0  # after which the validation metric is measured first


@dataclass(frozen=True)
class Measure:
    """A metric on one split."""

    metric: Metric
    examples: Examples
    # Means of the metric's values for the best constant prediction, of each number; empty where they are not used.
    constant_means: Sequence[float] = ()

    def value(self, model: nn.Module) -> float:
        """Return the metric of a model in its unit."""
        return fmean(self.of_model(model))

    def of_model(self, model: nn.Module) -> list[float]:
        """Return the metric of each number that a model predicts, or one value, see `of_targets`."""
        model.eval()
        # A Dataset may draw random numbers, as may a user's module: the training draws the same without a measure.
        is_deterministic = (
            isinstance(self.examples, Split) and isinstance(model, TranslatedModel) and model.plan.takes_columns
        )
        with nullcontext() if is_deterministic else seeded(0), torch.inference_mode():
            return self.of_targets((outputs_of(model, x), *others) for x, *others in self.examples.in_order())

    def values(self, stack: StackedModel, positions: Iterable[int]) -> list[float]:
        """Return the metrics of some copies in their unit."""
        stack.eval()
        num, batches = stack.num_copies, list[Batch]()
        with seeded(0), torch.inference_mode():
            for inputs, *others in self.examples.in_order():
                size = -(-len(inputs) // num)  # activations of a larger batch leave the cache of a core
                outputs = [stack(join_copies([part] * num)) for part in inputs.split(size)]
                batches.append((torch.cat(outputs), *others))
            return [self.value_of((outputs[:, k], *others) for outputs, *others in batches) for k in positions]

    def value_of(self, batches: Iterable[Batch]) -> float:
        """Return the metric of batches (outputs, targets, weights if any) of all examples in its unit."""
        return fmean(self.of_targets(batches))

    def of_targets(self, batches: Iterable[Batch]) -> list[float]:
        """Return the metric of each number [B, O], or one value."""
        means = self.metric.means(batches)
        pairs = zip(means, self.constant_means or [0.0] * len(means), strict=True)
        return [self.metric.finish(*pair) if math.isfinite(pair[0]) else pair[0] for pair in pairs]

    def score(self, value: float) -> float:
        """Return the score in [0, 1] of a value of the metric, 0 if it is not finite."""
        if not math.isfinite(value):
            return 0.0
        return self.metric.score(value, self._constant)

    def metric_of(self, score: float) -> float:
        """Return the value with a score of a metric of which less is better; NaN for the score 0."""
        return self.metric.value_of(score, self._constant)

    @property
    def _constant(self) -> float:
        return fmean(self.metric.finish(mean, mean) for mean in self.constant_means or [0.0])


@dataclass(frozen=True)
class ModelTrainer:
    """The training of models on one task."""

    train: Examples
    loss: Loss
    config: EvaluationConfig
    loss_limit: float = DIVERGED_LOSS  # mean loss of an epoch above which a training ends
    num_outputs: int = 0  # classes, for the augmentation

    def continue_training(self, training: ModelTraining, length: Length, *, validation: Measure | None = None) -> None:
        """Train a model in place up to an epoch; `validation` is measured after each one.

        Raises:
            CandidateDivergedError: the mean loss of an epoch is not finite or above `loss_limit`.
        """
        models = _ByAutograd(self, training, length.schedule * num_steps(self.train, self.config.batch_size))
        (error,) = _continue(models, [training], length, limit=self.loss_limit, validation=validation)
        if error is not None:
            raise error

    def continue_side_by_side(
        self, trainings: Sequence[ModelTraining], length: Length, *, validation: Measure | None = None
    ) -> list[CandidateDivergedError | None]:
        """Train new models of one structure (`can_stack`) in place as one model; return the error of each.

        Each result equals that of `continue_training` up to rounding.
        """
        models = _SideBySide(self, trainings, length.schedule * num_steps(self.train, self.config.batch_size))
        return _continue(models, trainings, length, limit=self.loss_limit, validation=validation)

    def batches(self, generator: torch.Generator) -> Iterator[Batch]:
        """Return the batches of one epoch, with the augmentation of the config."""
        batches, names = self.train.shuffled(self.config.batch_size, generator), self.config.training.augment
        if not names:
            return batches
        return (augmented(each, names, num_outputs=self.num_outputs, generator=generator) for each in batches)


def trains_together(config: EvaluationConfig, examples: Examples) -> bool:
    """Return whether groups of models can be trained with these options.

    The loss is cross-entropy, and a step treats each entry of a parameter by itself.
    """
    options = config.training
    return (
        isinstance(examples, Split)
        and examples.targets.ndim == 1
        and not examples.targets.is_floating_point()
        and options.loss in ("auto", "cross_entropy")
        and options.optimizer != "muon"
        and config.precision == "float32"
        and options.class_weights == "none"
        and examples.weights is None
        and not options.augment
    )


def continue_trainings(
    trainings: Sequence[ModelTraining],
    data: Split,
    length: Length,
    *,
    config: EvaluationConfig,
    validation: Measure | None = None,
) -> list[CandidateDivergedError | None]:
    """Train direct models (`is_direct`) up to an epoch, in place and all at once; return the error of each.

    All have done the same number of epochs. Each result is bit-identical for every set and order of models, and equals
    `ModelTrainer.continue_training` up to rounding. Memory: K copies of the examples.
    """
    models = _AtOnce(trainings, data, config, length.schedule * num_steps(data, config.batch_size))
    return _continue(models, trainings, length, limit=DIVERGED_LOSS, validation=validation)


def _continue(
    models: _ByAutograd | _AtOnce | _SideBySide,
    trainings: Sequence[ModelTraining],
    length: Length,
    *,
    limit: float,
    validation: Measure | None,
) -> list[CandidateDivergedError | None]:
    """Train models up to an epoch, or until all have diverged; return the error of each."""
    errors: list[CandidateDivergedError | None] = [None] * len(trainings)
    (epoch,) = {training.num_epochs for training in trainings}
    while epoch < length.num_epochs and None in errors:
        losses, epoch = models.train_epoch(), epoch + 1
        for position, training in enumerate(trainings):
            if errors[position] is None:
                training.train_loss = losses[position]
                errors[position] = _error_of(training.train_loss, epoch=epoch, limit=limit)
            if errors[position] is None:
                training.num_epochs = epoch
        trained = [position for position, error in enumerate(errors) if error is None]
        if validation is not None and epoch > length.measure_after and trained:
            for position, value in zip(trained, models.values(validation, trained), strict=True):
                trainings[position].values.append(value)
    models.save()
    return errors


def _error_of(mean_loss: float, *, epoch: int, limit: float) -> CandidateDivergedError | None:
    """Return the error of a loss, without frames that hold tensors."""
    try:
        CandidateDivergedError.check(mean_loss, f"epoch {epoch}", limit=limit, name="training loss")
    except CandidateDivergedError as error:
        return error
    return None


def _optimiser_options(config: EvaluationConfig) -> OptimiserOptions:
    options = config.training
    return OptimiserOptions(options.optimizer, config.learning_rate, weight_decay=options.weight_decay, nesterov=True)


def _schedule(config: EvaluationConfig) -> Schedule:
    options = config.training
    return Schedule.named(options.schedule, warmup=0.0 if options.schedule == "constant" else _WARMUP)


def candidate_steps(model: nn.Module, config: EvaluationConfig, *, num_steps: int, num_copies: int = 1) -> Steps:
    """Return the optimiser steps of a candidate, or of copies of one, `num_steps` in its whole training."""
    return flat_steps(
        model,
        _optimiser_options(config),
        schedule=_schedule(config),
        num_steps=num_steps,
        memory_format=config.memory_format,
        num_copies=num_copies,
    )


class _ByAutograd:
    """One model, by autograd."""

    def __init__(self, trainer: ModelTrainer, training: ModelTraining, num_steps: int) -> None:
        if training.global_states is not None:
            set_random_state(training.global_states)
        self._trainer, self._training = trainer, training
        self._steps = candidate_steps(training.model, trainer.config, num_steps=num_steps)
        if training.optimisation is not None:
            self._steps.load_state_dict(training.optimisation)

    def train_epoch(self) -> list[float]:
        """Take one optimiser step per batch and return the mean loss of each model."""
        self._training.model.train()
        losses = [self.take_step(*batch) for batch in self._trainer.batches(self._training.generator)]
        return [float(torch.stack(losses).mean())]

    def take_step(self, inputs: Tensor, *targets: Tensor) -> Tensor:
        """Take an optimiser step on a batch and return the mean loss."""
        forward = partial(outputs_of, self._training.model)
        outputs = computed_in(self._trainer.config.precision, forward, inputs)
        loss = self._trainer.loss(outputs, *targets).mean()  # of one value per prediction
        if loss.requires_grad:  # not without parameters
            self._steps.take(loss.backward)
        return loss.detach()

    def values(self, validation: Measure, positions: Sequence[int]) -> list[float]:
        """Return the validation metric of the model."""
        return [validation.value(self._training.model)]

    def save(self) -> None:
        """Give the training the state from which it continues."""
        self._training.optimisation = self._steps.state_dict()
        self._training.global_states = get_random_state()


class _SideBySide:
    """K new models of one structure as one, by autograd."""

    def __init__(self, trainer: ModelTrainer, trainings: Sequence[ModelTraining], num_steps: int) -> None:
        self._trainer, self._trainings = trainer, trainings
        self._stack = StackedModel([cast(TranslatedModel, training.model) for training in trainings])
        self._steps = candidate_steps(self._stack, trainer.config, num_steps=num_steps, num_copies=len(trainings))

    def train_epoch(self) -> list[float]:
        """Take one optimiser step per batch and return the mean loss of each model."""
        self._stack.train()
        batches = [self._trainer.batches(training.generator) for training in self._trainings]
        return torch.stack([self._take_step(step) for step in zip(*batches, strict=True)]).mean(0).tolist()

    def _take_step(self, batches: Sequence[Batch]) -> Tensor:
        outputs = computed_in(self._trainer.config.precision, self._stack, join_copies([x for x, *_ in batches]))
        pairs = zip(outputs.unbind(1), batches, strict=True)
        losses = torch.stack([self._trainer.loss(each, *targets).mean() for each, (_, *targets) in pairs])
        self._steps.take(losses.sum().backward)
        return losses.detach()

    def values(self, validation: Measure, positions: Sequence[int]) -> list[float]:
        """Return the validation metrics of some models."""
        return validation.values(self._stack, positions)

    def save(self) -> None:
        """Give each training the state from which it continues; the models draw no random numbers."""
        for training, state in zip(self._trainings, self._steps.states_of_copies(), strict=True):
            training.optimisation = state
        self._stack.copy_to([training.model for training in self._trainings])


class _AtOnce:
    """K direct models, without autograd and with one optimiser for all."""

    def __init__(
        self, trainings: Sequence[ModelTraining], data: Split, config: EvaluationConfig, num_steps_of_all: int
    ) -> None:
        self._trainings, self._data, self._size = trainings, data, config.batch_size
        options, models = config.training, [cast(TranslatedModel, training.model) for training in trainings]
        self._group = DirectTraining(models, label_smoothing=options.label_smoothing)
        flat = self._group.parameter
        # Of each model, the entries with weight decay and the others, as in `flat_steps`.
        matrices = [
            torch.cat([p.new_full((p.numel(),), p.ndim > 1, dtype=torch.bool) for p in m.parameters()]) for m in models
        ]
        self._entries = [(mask, ~mask) if options.weight_decay else (mask | True,) for mask in matrices]
        rates = torch.zeros_like(flat.detach())
        for part, mask in zip(self._group.parts(rates), matrices, strict=True):
            part.masked_fill_(mask, options.weight_decay)
        self._steps = Steps(
            build_optimisers((), [{"params": [flat], "weight_decay": 0.0}], _optimiser_options(config)),
            (),  # the group sets the gradients
            schedule=_schedule(config),
            num_steps=num_steps_of_all,
            has_fixed_gradients=True,
            decay=EntryDecay(flat, rates, options.optimizer == "adamw") if options.weight_decay else None,
        )
        if trainings[0].optimisation is not None:
            self._restore([each.optimisation for each in trainings if each.optimisation is not None])

    def train_epoch(self) -> list[float]:
        """Take one optimiser step per batch and return the mean loss of each model."""
        batches = [self._data.shuffled(self._size, each.generator) for each in self._trainings]
        losses = []
        for step in zip(*batches, strict=True):
            losses.append(self._steps.take(partial(self._group.backward, *zip(*step, strict=True))))
        # Summed here, one by one: how a tensor's mean over steps rounds may depend on the number of columns.
        return [sum(history) / len(history) for history in zip(*torch.stack(losses).tolist(), strict=True)]

    def values(self, validation: Measure, positions: Sequence[int]) -> list[float]:
        """Return the validation metrics of some models."""
        return [validation.value(self._trainings[position].model) for position in positions]

    def save(self) -> None:
        """Give each training its part of the optimiser's state, as `Steps.state_dict` writes it."""
        state = self._steps.state_dict()
        for position, training in enumerate(self._trainings):
            split = partial(self._split, position)
            entries = {name: split(value) for name, value in state["optimisers"][0]["state"].get(0, {}).items()}
            flats = [{name: each[i] for name, each in entries.items()} for i in range(len(self._entries[position]))]
            training.optimisation = {
                "step": state["step"],
                "optimisers": [{"state": dict(enumerate(flats)) if entries else {}}],
            }

    def _split(self, position: int, value: Tensor) -> list[Tensor]:
        """Return the entries of a model in a flat tensor, those with weight decay first; a count is shared."""
        part = self._group.parts(value)[position] if value.ndim else value
        return [part[mask] if value.ndim else part.clone() for mask in self._entries[position]]

    def _restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        each = [state["optimisers"][0]["state"] for state in states]
        entries = {
            name: value if name == "step" else self._joined([[flat[name] for flat in flats.values()] for flats in each])
            for name, value in (each[0][0] if each[0] else {}).items()
        }
        self._steps.load_state_dict({"step": states[0]["step"], "optimisers": [{"state": {0: entries}}]})

    def _joined(self, values: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return the flat tensor of the entries of each model."""
        flat = torch.zeros_like(self._group.parameter.detach())
        for part, masks, tensors in zip(self._group.parts(flat), self._entries, values, strict=True):
            for mask, tensor in zip(masks, tensors, strict=True):
                part[mask] = tensor
        return flat


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of independent examples."""
    return model(inputs, reset_states=True) if isinstance(model, TranslatedModel) else model(inputs)


def loss_limit(loss: Loss, train: Examples) -> float:
    """Return the loss above which a training ends: for numbers, relative to the best constant prediction."""
    targets, weights = train.targets, () if train.weights is None else (train.weights,)
    if not targets.is_floating_point():
        return DIVERGED_LOSS
    constant = constant_outputs(constant_prediction(targets, 0), targets)
    return DIVERGED_LOSS * max(1.0, float(loss(constant, targets, *weights).mean()))


def build_measure(metric: Metric, examples: Examples, *, train: Examples, num_outputs: int) -> Measure:
    """Return a metric on a split, relative to the best constant prediction of the training examples where needed."""
    if not metric.is_relative:
        return Measure(metric, examples)
    options: dict[str, Any] = {"quantile": metric.quantile, "weights": train.weights}
    constant = constant_prediction(metric.units(train.targets), num_outputs, **options)
    batches = constant_batches(constant, metric.units(examples.targets), axis=metric.axis, weights=examples.weights)
    return Measure(metric, examples, replace(metric, units=torch.positive).means(batches))


def constant_batches(constant: Tensor, targets: Tensor, *, axis: int, weights: Tensor | None = None) -> Iterator[Batch]:
    """Yield the outputs of a constant prediction with their targets and weights; `axis`: of the classes."""
    parts = [targets] if weights is None else [targets, weights]
    size = max(1, _TARGETS_AT_ONCE // max(1, targets[0].numel()))
    for part, *others in zip(*(each.split(size) for each in parts), strict=True):
        yield constant_outputs(constant, part, axis=axis), part, *others
