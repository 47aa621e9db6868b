"""Tasks that train a candidate on labelled examples: a subclass only says what the examples are."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.randomness import seeded
from gflownet.evaluation.task import GFNTask, Score, soft_size_objective
from gflownet.evaluation.training import Split, accuracy, train_classifier
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import to_pytorch_model


@dataclass(frozen=True)
class Splits:
    """Three disjoint sets of labelled examples; classes are numbered from 0 and all occur in `train`."""

    train: Split
    validation: Split
    test: Split  # seen by the final report only


class SupervisedTask(GFNTask):
    """Classification: a graph becomes a model, is trained on `train`, and scores by its accuracy on `validation`."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        splits = self.splits()
        self._train, self._validation, self._test = splits.train, splits.validation, splits.test
        self.input_sizes = (self._train.inputs.shape[1],)
        self.output_sizes = (int(self._train.targets.max()) + 1,)

    @abstractmethod
    def splits(self) -> Splits:
        """Returns the examples, always the same for one config; called once."""

    def evaluate(self, graph: ComputationGraph, *, seed: int) -> Score:
        """Returns the validation accuracy after training, scaled by size where `evaluation.size_weight` says so."""
        evaluation = self.config.evaluation
        model, train_loss = self._trained(graph, seed=seed)
        validation_accuracy = accuracy(model, self._validation)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        value = soft_size_objective(
            validation_accuracy,
            num_parameters,
            target_parameters=evaluation.target_parameters,
            size_weight=evaluation.size_weight,
        )
        return Score(value, num_parameters, {"validation_accuracy": validation_accuracy, "train_loss": train_loss})

    def test(self, graph: ComputationGraph, *, seed: int) -> float:
        """Returns the test accuracy of the very model that `evaluate` scored, trained again from the same seed."""
        model, _ = self._trained(graph, seed=seed)
        return accuracy(model, self._test)

    def _trained(self, graph: ComputationGraph, *, seed: int) -> tuple[nn.Module, float]:
        """Returns the trained model of a graph and its training loss; both depend on `seed` and nothing else."""
        evaluation = self.config.evaluation
        device, dtype = self._train.inputs.device, self._train.inputs.dtype
        shuffling = torch.Generator().manual_seed(seed)
        with seeded(seed):
            model = to_pytorch_model(graph, {"projection": evaluation.projection, "device": device, "dtype": dtype})
            train_loss = train_classifier(model, self._train, config=evaluation, generator=shuffling)
        return model, train_loss
