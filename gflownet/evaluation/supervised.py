"""Classification tasks: a subclass only defines the labelled examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from gflownet.evaluation.config import EvaluationConfig, TaskConfig
from gflownet.evaluation.digest import data_digest
from gflownet.evaluation.randomness import global_states, seeded, set_global_states
from gflownet.evaluation.task import CandidateTraining, Cost, GFNTask, Score, soft_size_objective
from gflownet.evaluation.training import (
    ClassifierTraining,
    Split,
    accuracy,
    continue_training,
    continue_trainings,
)
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.validation import blocking_problems
from gflownet.translation import TranslatedModel, is_direct, measure_latency, to_pytorch_model
from gflownet.translation.graph_summary import summarise_plan
from gflownet.translation.planning import build_plan, structural_key

# Of 4, 8, 16, 32 and 64 candidates at once 16 took the least time each, 4 and 64 a seventh more. The bytes bound their
# shuffled copies of the examples.
MAX_GROUP_SIZE = 16
MAX_GROUP_BYTES = 2**26
# Forward passes whose median is the latency. The median varied by 3 to 11 % with 20 passes, by 0.3 to 8 % with 100 (a
# few milliseconds) and by 0.3 to 1 % with 400.
NUM_TIMED_CALLS = 100


@dataclass(frozen=True)
class Splits:
    """Three disjoint sets of labelled examples; classes are numbered from 0 and all occur in `train`."""

    train: Split
    validation: Split
    test: Split  # seen by the final report only


@dataclass(frozen=True)
class _Start:
    """A candidate and the saved training that it continues."""

    graph: ComputationGraph
    seed: int
    state: Mapping[str, Any] | None = None


@dataclass(eq=False)
class TranslatedTraining(ClassifierTraining):
    """The training of a graph's model."""

    model: TranslatedModel
    # Of the global generators, which dropout uses; None for direct models, which have no randomness.
    global_states: Mapping[str, Any] | None = None


class SupervisedTraining(CandidateTraining):
    """The training of one candidate of a SupervisedTask."""

    def __init__(self, task: SupervisedTask, training: TranslatedTraining) -> None:
        self._task, self._training = task, training
        self.fidelity, self.model = training.num_epochs, training.model
        num_parameters = task.num_parameters(training.model)
        self.curve = tuple(task.value(accuracy, num_parameters) for accuracy in training.accuracies)

    def score(self) -> Score:
        return self._task.score_of(self._training)

    def test(self) -> float:
        return self._task.test_accuracy(self._training.model)

    def state_dict(self) -> dict[str, Any]:
        training = self._training
        # Cloned: torch.save writes the whole memory of a view, and all models of a group share one.
        return {
            "model": {name: value.clone() for name, value in training.model.state_dict().items()},
            "moments": training.moments and tuple(moment.clone() for moment in training.moments),
            "generator": training.generator.get_state(),
            "global_states": training.global_states,
            "num_epochs": training.num_epochs,
            "train_loss": training.train_loss,
            "accuracies": list(training.accuracies),
        }


class SupervisedTask(GFNTask):
    """Classification: train the model of a graph on `train` and score it by its accuracy on `validation`."""

    objectives = ("accuracy", "parameters", "flops", "latency")

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        splits = self.splits()
        self._train, self._validation, self._test = splits.train, splits.validation, splits.test
        self.input_sizes = (self._train.inputs.shape[1],)
        self.output_sizes = (int(self._train.targets.max()) + 1,)
        # A plain dataclass: reading from OmegaConf takes 1 % of the time of a candidate.
        names = [field.name for field in fields(EvaluationConfig)]
        self._evaluation = EvaluationConfig(**{name: getattr(config.evaluation, name) for name in names})
        self.max_fidelity = self._evaluation.num_epochs

    @abstractmethod
    def splits(self) -> Splits:
        """Return the examples, the same for the same config; called once."""

    def evaluate(self, graph: ComputationGraph, *, seed: int) -> Score:
        """Return the validation accuracy after training, scaled by size with `evaluation.size_weight`."""
        (outcome,) = self.evaluate_many([graph], seeds=[seed])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def evaluate_many(self, graphs: Sequence[ComputationGraph], *, seeds: Sequence[int]) -> list[Score | Exception]:
        """Return the outcomes of `evaluate` for each graph, bit-identical, in a fraction of the time."""
        return [
            trained if isinstance(trained, Exception) else self.score_of(trained)
            for trained in self._trained(graphs, seeds)
        ]

    def train_many(
        self,
        graphs: Sequence[ComputationGraph],
        *,
        seeds: Sequence[int],
        fidelity: int,
        schedule: int,
        states: Sequence[Mapping[str, Any] | None],
    ) -> Iterator[SupervisedTraining | Exception]:
        """Yield the training of each graph up to an epoch, see GFNTask.train_many; the learning rate is constant."""
        starts = [_Start(*start) for start in zip(graphs, seeds, states, strict=True)]
        for trained in self._continued(starts, num_epochs=fidelity, validation=self._validation):
            yield trained if isinstance(trained, Exception) else SupervisedTraining(self, trained)

    def test(self, graph: ComputationGraph, *, seed: int) -> float:
        """Return the test accuracy of the model that `evaluate` scored, trained again from the same seed."""
        (trained,) = self._trained([graph], [seed])
        if isinstance(trained, Exception):
            raise trained
        return self.test_accuracy(trained.model)

    def test_accuracy(self, model: TranslatedModel) -> float:
        """Return the accuracy of a trained model on test data."""
        return accuracy(model, self._test)

    def cost(self, graph: ComputationGraph) -> Cost:
        """Return the size of a graph's model from its plan. Raises ValueError for an invalid graph."""
        projection = self._evaluation.projection
        # Graphs too large to translate have a plan too.
        problems = [each for each in blocking_problems(graph, projection) if each.code != "too_many_parameters"]
        if problems:
            raise ValueError("; ".join(problem.message for problem in problems))
        summary = summarise_plan(build_plan(graph, projection, structural_key(graph, projection)))
        return Cost(summary.num_parameters, summary.flops)

    def fingerprint(self) -> str:
        """Return a digest of the examples."""
        splits = (self._train, self._validation, self._test)
        return data_digest(values for split in splits for values in (split.inputs, split.targets))

    @property
    def translation_settings(self) -> Mapping[str, Any]:
        """The projection of the config and the dtype of the examples."""
        dtype = str(self._train.inputs.dtype).removeprefix("torch.")
        return {"projection": self._evaluation.projection, "dtype": dtype}

    def utility(self, objective: str, value: float) -> float:
        """Return the accuracy itself, or 1 / (1 + cost / target) of a cost: 1 at no cost, 1/2 at its target."""
        if objective == "accuracy":
            return value
        return 1 / (1 + value / getattr(self._evaluation, f"target_{objective}"))

    def score_of(self, training: TranslatedTraining) -> Score:
        """Return the score of a model after its training."""
        known = training.accuracies
        validation_accuracy = known[-1] if known else accuracy(training.model, self._validation)
        num_parameters = self.num_parameters(training.model)
        metrics = {"validation_accuracy": validation_accuracy, "train_loss": training.train_loss}
        measured = {name: self._measure(name, training.model, validation_accuracy) for name in self.chosen_objectives}
        return Score(self.value(validation_accuracy, num_parameters), num_parameters, metrics | measured)

    def value(self, validation_accuracy: float, num_parameters: int) -> float:
        """Return the accuracy scaled by the size of the model, see evaluation.size_weight."""
        return soft_size_objective(
            validation_accuracy,
            num_parameters,
            target_parameters=self._evaluation.target_parameters,
            size_weight=self._evaluation.size_weight,
        )

    def num_parameters(self, model: TranslatedModel) -> int:
        """Return the number of parameters of a model."""
        return sum(parameter.numel() for parameter in model.parameters())

    def _measure(self, objective: str, model: TranslatedModel, validation_accuracy: float) -> float:
        """Return an objective in its unit; costs are per example."""
        match objective:
            case "accuracy":
                return validation_accuracy
            case "parameters":
                return float(summarise_plan(model.plan).num_parameters)
            case "flops":
                return float(summarise_plan(model.plan).flops)
            case _:
                return measure_latency(model, num_calls=NUM_TIMED_CALLS).median_seconds

    def _trained(
        self, graphs: Sequence[ComputationGraph], seeds: Sequence[int]
    ) -> Iterator[TranslatedTraining | Exception]:
        """Yield the fully trained model of each graph, in order; a function of graph and seed."""
        starts = [_Start(graph, seed) for graph, seed in zip(graphs, seeds, strict=True)]
        return self._continued(starts, num_epochs=self._evaluation.num_epochs)

    def _continued(
        self, starts: Sequence[_Start], *, num_epochs: int, validation: Split | None = None
    ) -> Iterator[TranslatedTraining | Exception]:
        """Yield the training of each candidate up to an epoch, in order, measured on `validation` after each epoch."""
        for first in range(0, len(starts), self._group_size):
            group = starts[first : first + self._group_size]
            yield from self._continued_group(group, num_epochs=num_epochs, validation=validation)

    @property
    def _group_size(self) -> int:
        """The number of candidates trained together."""
        inputs = self._train.inputs
        return max(1, min(MAX_GROUP_SIZE, MAX_GROUP_BYTES // (inputs.numel() * inputs.element_size())))

    def _continued_group(
        self, starts: Sequence[_Start], *, num_epochs: int, validation: Split | None
    ) -> list[TranslatedTraining | Exception]:
        """Return one outcome per candidate; direct models that have done the same epochs are trained at once."""
        outcomes = [self._prepared(start, num_epochs=num_epochs, validation=validation) for start in starts]
        together: dict[int, list[int]] = {}  # positions by epochs done
        for position, training in enumerate(outcomes):
            if not isinstance(training, Exception) and is_direct(training.model.plan):
                together.setdefault(training.num_epochs, []).append(position)
        options = {"config": self._evaluation, "num_epochs": num_epochs, "validation": validation}
        for positions in together.values():
            trainings = [training for p in positions if not isinstance(training := outcomes[p], Exception)]
            try:
                errors = continue_trainings(trainings, self._train, **options)
            except Exception as error:
                # Retry one by one: only the faulty candidate fails; the others get the same result as in a group.
                for position in positions:
                    alone = [starts[position]]
                    outcomes[position] = (
                        error
                        if len(starts) == 1
                        else self._continued_group(alone, num_epochs=num_epochs, validation=validation)[0]
                    )
                continue
            for position, training, diverged in zip(positions, trainings, errors, strict=True):
                outcomes[position] = diverged or training
        return outcomes

    def _prepared(self, start: _Start, *, num_epochs: int, validation: Split | None) -> TranslatedTraining | Exception:
        """Return the training of a direct model as it starts, the finished one by autograd, or the exception."""
        options = {**self.translation_settings, "device": self._train.inputs.device}
        with seeded(start.seed):
            try:
                model = to_pytorch_model(start.graph, options)
                self._check_sizes(model)
                training = _restored(model, start)
                if training.num_epochs > num_epochs:
                    raise ValueError(f"expected a training of at most {num_epochs} epochs, got {training.num_epochs}")
                if not is_direct(model.plan):
                    if training.global_states is not None:
                        set_global_states(training.global_states)
                    continue_training(
                        training, self._train, config=self._evaluation, num_epochs=num_epochs, validation=validation
                    )
                    training.global_states = global_states()
                return training
            except Exception as error:
                return error

    def _check_sizes(self, model: TranslatedModel) -> None:
        expected, got = (sum(self.input_sizes), sum(self.output_sizes)), (model.plan.input_size, model.plan.output_size)
        if got != expected:
            raise ValueError(
                f"expected a graph from {expected[0]} features to {expected[1]} classes, got {got[0]} to {got[1]}"
            )


def _restored(model: TranslatedModel, start: _Start) -> TranslatedTraining:
    """Return the training of a new model, from its first epoch or from a saved state."""
    generator = torch.Generator().manual_seed(start.seed)
    state = start.state
    if state is None:
        return TranslatedTraining(model, generator)
    model.load_state_dict(state["model"])
    generator.set_state(state["generator"])
    training = TranslatedTraining(
        model, generator, state["num_epochs"], state["train_loss"], state["moments"], list(state["accuracies"])
    )
    training.global_states = state["global_states"]
    return training
