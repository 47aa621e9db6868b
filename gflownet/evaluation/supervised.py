"""Classification tasks: a subclass only defines the labelled examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from gflownet.evaluation.config import EvaluationConfig, TaskConfig
from gflownet.evaluation.randomness import seeded
from gflownet.evaluation.task import GFNTask, Score, soft_size_objective
from gflownet.evaluation.training import Split, accuracy, train_classifier, train_classifiers
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import TranslatedModel, is_direct, measure_latency, to_pytorch_model
from gflownet.translation.graph_summary import summarise_plan

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
class TrainedCandidate:
    """A trained model."""

    model: TranslatedModel
    train_loss: float  # mean of the last epoch


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
            trained if isinstance(trained, Exception) else self._score(trained)
            for trained in self._trained(graphs, seeds)
        ]

    def test(self, graph: ComputationGraph, *, seed: int) -> float:
        """Return the test accuracy of the model that `evaluate` scored, trained again from the same seed."""
        (trained,) = self._trained([graph], [seed])
        if isinstance(trained, Exception):
            raise trained
        return accuracy(trained.model, self._test)

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

    def _score(self, trained: TrainedCandidate) -> Score:
        evaluation = self._evaluation
        validation_accuracy = accuracy(trained.model, self._validation)
        num_parameters = sum(parameter.numel() for parameter in trained.model.parameters())
        value = soft_size_objective(
            validation_accuracy,
            num_parameters,
            target_parameters=evaluation.target_parameters,
            size_weight=evaluation.size_weight,
        )
        metrics = {"validation_accuracy": validation_accuracy, "train_loss": trained.train_loss}
        measured = {name: self._measure(name, trained.model, validation_accuracy) for name in self.chosen_objectives}
        return Score(value, num_parameters, metrics | measured)

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
    ) -> Iterator[TrainedCandidate | Exception]:
        """Yield the trained model of each graph, in order; a function of graph and seed."""
        pairs = list(zip(graphs, seeds, strict=True))
        for start in range(0, len(pairs), self._group_size):
            yield from self._trained_group(pairs[start : start + self._group_size])

    @property
    def _group_size(self) -> int:
        """The number of candidates trained together."""
        inputs = self._train.inputs
        return max(1, min(MAX_GROUP_SIZE, MAX_GROUP_BYTES // (inputs.numel() * inputs.element_size())))

    def _trained_group(self, pairs: Sequence[tuple[ComputationGraph, int]]) -> list[TrainedCandidate | Exception]:
        """Return one outcome per pair of graph and seed; direct models are trained at once."""
        prepared = [self._prepared(graph, seed=seed) for graph, seed in pairs]
        together = {place: model for place, model in enumerate(prepared) if isinstance(model, TranslatedModel)}
        outcomes = {place: each for place, each in enumerate(prepared) if not isinstance(each, TranslatedModel)}
        if together:
            generators = [torch.Generator().manual_seed(pairs[place][1]) for place in together]
            models = list(together.values())
            try:
                losses = train_classifiers(models, self._train, config=self._evaluation, generators=generators)
            except Exception as error:
                # Retry one by one: only the faulty candidate fails; the others get the same result as in a group.
                losses = [error] if len(pairs) == 1 else [self._trained_group([pairs[place]])[0] for place in together]
            for (place, model), loss in zip(together.items(), losses, strict=True):
                is_outcome = isinstance(loss, TrainedCandidate | Exception)
                outcomes[place] = loss if is_outcome else TrainedCandidate(model, loss)
        return [outcomes[place] for place in range(len(pairs))]

    def _prepared(self, graph: ComputationGraph, *, seed: int) -> TranslatedModel | TrainedCandidate | Exception:
        """Return the direct model before training, the model trained by autograd, or the exception."""
        evaluation = self._evaluation
        options = {**self.translation_settings, "device": self._train.inputs.device}
        with seeded(seed):
            try:
                model = to_pytorch_model(graph, options)
                self._check_sizes(model)
                if is_direct(model.plan):
                    return model
                shuffling = torch.Generator().manual_seed(seed)
                return TrainedCandidate(
                    model, train_classifier(model, self._train, config=evaluation, generator=shuffling)
                )
            except Exception as error:
                return error

    def _check_sizes(self, model: TranslatedModel) -> None:
        expected, got = (sum(self.input_sizes), sum(self.output_sizes)), (model.plan.input_size, model.plan.output_size)
        if got != expected:
            raise ValueError(
                f"expected a graph from {expected[0]} features to {expected[1]} classes, got {got[0]} to {got[1]}"
            )
