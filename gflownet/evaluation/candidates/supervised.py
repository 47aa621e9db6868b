"""Tasks on vectors: a subclass only defines the labelled examples; candidates train in groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import cast

import torch

from gflownet.evaluation.candidates.tensor_task import Start, TensorTask
from gflownet.evaluation.candidates.trainer import Length, ModelTraining, continue_trainings, trains_together
from gflownet.evaluation.data.examples import Split
from gflownet.evaluation.data.examples import Splits as Splits
from gflownet.evaluation.task import Score
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import TranslatedModel, is_as_translated, is_direct

# Of 4, 8, 16, 32 and 64 candidates at once 16 took the least time each, 4 and 64 a seventh more. The bytes bound their
# shuffled copies of the examples.
MAX_GROUP_SIZE = 16
MAX_GROUP_BYTES = 2**26


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

    def evaluate_many(self, graphs: Sequence[ComputationGraph], *, seeds: Sequence[int]) -> list[Score | Exception]:
        """Return the outcomes of `evaluate` for each graph, bit-identical, in a fraction of the time."""
        trained = self._continued_many([Start(*start) for start in zip(graphs, seeds, strict=True)], self._full)
        return [
            training if isinstance(training, Exception) else self.score_of(graph, training)
            for graph, training in zip(graphs, trained, strict=True)
        ]

    def _continued_many(self, starts: Sequence[Start], length: Length) -> Iterator[ModelTraining | Exception]:
        for first in range(0, len(starts), self._group_size):
            yield from self._continued_group(starts[first : first + self._group_size], length)

    def _is_grouped(self, model: torch.nn.Module) -> bool:
        is_translated = isinstance(model, TranslatedModel)
        is_grouped = is_translated and is_direct(model.plan) and is_as_translated(model)
        return is_grouped and trains_together(self._evaluation, self.train)

    @property
    def _group_size(self) -> int:
        if not trains_together(self._evaluation, self.train):
            return 1
        inputs = cast(Split, self.train).inputs
        return max(1, min(MAX_GROUP_SIZE, MAX_GROUP_BYTES // (inputs.numel() * inputs.element_size())))

    def _continued_group(self, starts: Sequence[Start], length: Length) -> list[ModelTraining | Exception]:
        """Return one outcome per candidate; direct models that have done the same epochs are trained at once."""
        outcomes = [self._prepared(start, length) for start in starts]
        together: dict[tuple[int, Length], list[int]] = {}  # positions by epochs done and asked
        for position, training in enumerate(outcomes):
            if not isinstance(training, Exception) and self._is_grouped(training.model):
                together.setdefault((training.num_epochs, training.length or length), []).append(position)
        for (_, asked), positions in together.items():
            trainings = [training for p in positions if not isinstance(training := outcomes[p], Exception)]
            try:
                data = cast(Split, self.train)
                errors = continue_trainings(trainings, data, asked, config=self._evaluation, validation=self.measure)
            except Exception as error:
                # Retry one by one: only the faulty candidate fails; the others get the same result as in a group.
                for position in positions:
                    alone = [starts[position]]
                    outcomes[position] = error if len(starts) == 1 else self._continued_group(alone, length)[0]
                continue
            for position, training, diverged in zip(positions, trainings, errors, strict=True):
                outcomes[position] = diverged or training
        return outcomes
