"""Tasks on vectors: a subclass only defines the labelled examples; candidates train in groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from gflownet.evaluation.examples import Split
from gflownet.evaluation.examples import Splits as Splits
from gflownet.evaluation.task import CandidateTraining, Score
from gflownet.evaluation.tensor_task import TensorTask, TensorTraining
from gflownet.evaluation.training import ModelTraining, continue_trainings, trains_together
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.training.random_states import seeded
from gflownet.translation import TranslatedModel, is_direct

# Of 4, 8, 16, 32 and 64 candidates at once 16 took the least time each, 4 and 64 a seventh more. The bytes bound their
# shuffled copies of the examples.
MAX_GROUP_SIZE = 16
MAX_GROUP_BYTES = 2**26


@dataclass(frozen=True)
class _Start:
    """A candidate and the saved training that it continues."""

    graph: ComputationGraph
    seed: int
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Length:
    """Epochs of a training."""

    num_epochs: int
    schedule: int  # of the whole training
    measure_after: int = 0  # epochs after which the validation metric is measured first


class SupervisedTask(TensorTask):
    """Examples of vectors [N, F]: the models of vector graphs train together, a multiple faster than one by one.

    Graphs with operations, state or dropout are trained one by one, as are all with options of `evaluation.training`
    that a group does not have (see trains_together).
    """

    @abstractmethod
    def splits(self) -> Splits:
        """Return the examples, the same for the same config; called once."""

    def data(self) -> Splits:
        return self.splits()

    def evaluate(self, graph: ComputationGraph, *, seed: int) -> Score:
        """Return the validation score after training, scaled by size with `evaluation.size_weight`."""
        (outcome,) = self.evaluate_many([graph], seeds=[seed])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def evaluate_many(self, graphs: Sequence[ComputationGraph], *, seeds: Sequence[int]) -> list[Score | Exception]:
        """Return the outcomes of `evaluate` for each graph, bit-identical, in a fraction of the time."""
        trained = self._continued_many([_Start(*start) for start in zip(graphs, seeds, strict=True)], self._full)
        return [
            training if isinstance(training, Exception) else self.score_of(graph, training)
            for graph, training in zip(graphs, trained, strict=True)
        ]

    def train_many(
        self,
        graphs: Sequence[ComputationGraph],
        *,
        seeds: Sequence[int],
        fidelity: int,
        schedule: int,
        states: Sequence[Mapping[str, Any] | None],
    ) -> Iterator[CandidateTraining | Exception]:
        """Yield the training of each graph up to an epoch, see GFNTask.train_many."""
        starts = [_Start(*start) for start in zip(graphs, seeds, states, strict=True)]
        trainings = self._continued_many(starts, _Length(fidelity, schedule))
        for graph, training in zip(graphs, trainings, strict=True):
            yield training if isinstance(training, Exception) else TensorTraining(self, graph, training)

    def test(self, graph: ComputationGraph, *, seed: int) -> float:
        """Return the test score of the model that `evaluate` scored, trained again from the same seed."""
        (training,) = self._continued_many([_Start(graph, seed)], self._full)
        if isinstance(training, Exception):
            raise training
        return self.test_score(training.model)

    @property
    def _full(self) -> _Length:
        """The full training, measured only where its score needs it."""
        num = self._evaluation.num_epochs
        return _Length(num, num, max(0, num - self._evaluation.training.score_epochs))

    def _continued_many(self, starts: Sequence[_Start], length: _Length) -> Iterator[ModelTraining | Exception]:
        """Yield the training of each candidate up to an epoch, in order."""
        for first in range(0, len(starts), self._group_size):
            yield from self._continued_group(starts[first : first + self._group_size], length)

    @property
    def _group_size(self) -> int:
        """The number of candidates trained together."""
        if not trains_together(self._evaluation, self.train):
            return 1
        inputs = cast(Split, self.train).inputs
        return max(1, min(MAX_GROUP_SIZE, MAX_GROUP_BYTES // (inputs.numel() * inputs.element_size())))

    def _continued_group(self, starts: Sequence[_Start], length: _Length) -> list[ModelTraining | Exception]:
        """Return one outcome per candidate; direct models that have done the same epochs are trained at once."""
        outcomes = [self._prepared(start, length) for start in starts]
        together: dict[int, list[int]] = {}  # positions by epochs done
        for position, training in enumerate(outcomes):
            if not isinstance(training, Exception) and self._is_grouped(training.model):
                together.setdefault(training.num_epochs, []).append(position)
        for positions in together.values():
            trainings = [training for p in positions if not isinstance(training := outcomes[p], Exception)]
            try:
                errors = self._trained_together(trainings, length)
            except Exception as error:
                # Retry one by one: only the faulty candidate fails; the others get the same result as in a group.
                for position in positions:
                    alone = [starts[position]]
                    outcomes[position] = error if len(starts) == 1 else self._continued_group(alone, length)[0]
                continue
            for position, training, diverged in zip(positions, trainings, errors, strict=True):
                outcomes[position] = diverged or training
        return outcomes

    def _trained_together(self, trainings: Sequence[ModelTraining], length: _Length) -> Sequence[Exception | None]:
        """Train direct models up to an epoch and return the error of each."""
        return continue_trainings(
            trainings,
            cast(Split, self.train),
            config=self._evaluation,
            num_epochs=length.num_epochs,
            schedule=length.schedule,
            validation=self.measure,
            measure_after=length.measure_after,
        )

    def _is_grouped(self, model: torch.nn.Module) -> bool:
        """Return whether a model trains in a group."""
        is_vector_graph = isinstance(model, TranslatedModel)
        return is_vector_graph and is_direct(model.plan) and trains_together(self._evaluation, self.train)

    def _prepared(self, start: _Start, length: _Length) -> ModelTraining | Exception:
        """Return the training of a direct model as it starts, the finished one by autograd, or the exception."""
        with seeded(start.seed):
            try:
                training = self._started(start.graph, seed=start.seed, state=start.state, num_epochs=length.num_epochs)
                if not self._is_grouped(training.model):
                    self.trainer.continue_training(
                        training,
                        num_epochs=length.num_epochs,
                        schedule=length.schedule,
                        validation=self.measure,
                        measure_after=length.measure_after,
                    )
                return training
            except Exception as error:
                return error
