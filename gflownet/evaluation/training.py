"""Training of many small classifiers at once: vector graphs, without autograd and with one optimiser for all.

K: candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.examples import Examples, num_steps
from gflownet.evaluation.examples import Split as Split
from gflownet.evaluation.optimisation import elementwise_optimiser, restore_optimiser, schedule_rate
from gflownet.evaluation.tensor_training import CandidateDivergedError as CandidateDivergedError
from gflownet.evaluation.tensor_training import Measure, ModelTraining, check_loss
from gflownet.translation import DirectTraining, TranslatedModel


def trains_together(config: EvaluationConfig, examples: Examples) -> bool:
    """Return whether groups of models can be trained with these options.

    The loss is cross-entropy without label smoothing, and a step treats all parameters alike.
    """
    options = config.training
    return (
        isinstance(examples, Split)
        and examples.targets.ndim == 1
        and not examples.targets.is_floating_point()
        and options.loss in ("auto", "cross_entropy")
        and options.optimizer != "muon"
        and options.class_weights == "none"
        and not (options.augment or options.label_smoothing or options.weight_decay or options.clip or options.average)
    )


def continue_trainings(
    trainings: Sequence[ModelTraining],
    data: Split,
    *,
    config: EvaluationConfig,
    num_epochs: int,
    schedule: int,
    validation: Measure | None = None,
    measure_after: int = 0,
) -> list[CandidateDivergedError | None]:
    """Train direct models (`is_direct`) up to an epoch, in place and all at once; return the error of each.

    All have done the same number of epochs. Each result is bit-identical for every set and order of models, and equals
    `ModelTrainer.continue_training` up to rounding. Memory: K copies of the examples.
    """
    group = DirectTraining(cast("list[TranslatedModel]", [training.model for training in trainings]))
    (epoch,) = {training.num_epochs for training in trainings}
    per_epoch = num_steps(data, config.batch_size)
    optimiser = elementwise_optimiser([group.parameter], config)
    if trainings[0].optimisation is not None:
        restore_optimiser(optimiser, {0: _joined(group, trainings)})
    errors: list[CandidateDivergedError | None] = [None] * len(trainings)
    while epoch < num_epochs and None in errors:
        losses = _train_epoch(
            group,
            data,
            optimiser,
            config=config,
            steps=(epoch * per_epoch, schedule * per_epoch),
            generators=[each.generator for each in trainings],
        )
        for position, training in enumerate(trainings):
            if errors[position] is None:
                training.train_loss = losses[position]
                errors[position] = _error_of(training.train_loss, epoch=epoch)
            if errors[position] is None:
                training.num_epochs = epoch + 1
                if validation is not None and training.num_epochs > measure_after:
                    training.values.append(validation.value(training.model))
        epoch += 1
    _set_states(group, trainings, optimiser, num_done=epoch * per_epoch)
    return errors


def _train_epoch(
    group: DirectTraining,
    data: Split,
    optimiser: torch.optim.Optimizer,
    *,
    config: EvaluationConfig,
    steps: tuple[int, int],
    generators: Sequence[torch.Generator],
) -> list[float]:
    """Take one optimiser step per batch and return the mean loss of each model; `steps`: done, and of the training."""
    batches = [data.shuffled(config.batch_size, each) for each in generators]
    losses = []
    for number, step in enumerate(zip(*batches, strict=True), start=steps[0]):
        losses.append(group.backward(*zip(*step, strict=True)))
        schedule_rate(optimiser, config, step=number, num_steps=steps[1])
        optimiser.step()
    # Summed here, one by one: how a tensor's mean over steps rounds may depend on the number of columns.
    return [sum(history) / len(history) for history in zip(*torch.stack(losses).tolist(), strict=True)]


def _error_of(mean_loss: float, *, epoch: int) -> CandidateDivergedError | None:
    """Return the error of a loss, without frames that hold tensors."""
    try:
        check_loss(mean_loss, epoch=epoch)
    except CandidateDivergedError as error:
        return error
    return None


def _joined(group: DirectTraining, trainings: Sequence[ModelTraining]) -> dict[str, Any]:
    """Return the optimiser's state of all models in flat tensors."""
    states = [_state_of(training) for training in trainings]
    joined: dict[str, Any] = {}
    for name, value in states[0].items():
        if name == "step":
            joined[name] = value
            continue
        joined[name] = torch.zeros_like(group.parameter.detach())
        for part, state in zip(group.parts(joined[name]), states, strict=True):
            part.copy_(state[name])
    return joined


def _state_of(training: ModelTraining) -> dict[str, Any]:
    assert training.optimisation is not None
    return training.optimisation["optimisers"][0][0]


def _set_states(
    group: DirectTraining, trainings: Sequence[ModelTraining], optimiser: torch.optim.Optimizer, *, num_done: int
) -> None:
    """Give each training its part of the optimiser's state, as `Optimisation.state_dict` writes it."""
    state = optimiser.state[group.parameter]
    if not state:
        return
    parts: list[dict[str, Any]] = [{} for _ in trainings]
    for name, value in state.items():
        each = [value] * len(trainings) if name == "step" else group.parts(value)
        for part, values in zip(parts, each, strict=True):
            part[name] = values
    for training, part in zip(trainings, parts, strict=True):
        training.optimisation = {"step": num_done, "optimisers": [{0: part}], "weights": []}
