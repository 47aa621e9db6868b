"""What a user writes: the task, which scores one architecture and says what a reward is.

Shapes: B trajectories, C conditioning features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gflownet.evaluation.conditioning import Conditioning, TemperatureConditional
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.randomness import seeded


@dataclass(frozen=True)
class Score:
    """What evaluating one graph yields."""

    # The validation score, finite and >= 0, best kept within [0, 1]: rewards are max(value, floor_score)^beta.
    value: float
    num_parameters: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class GFNTask(ABC):
    """Scores terminal graphs and turns scores into log-rewards. A subclass gives the sizes and `evaluate`.

    The task knows neither the policy nor the trainer. It is built once, in the main process; `evaluate` is called in
    turn, never by two threads at once.
    """

    Config: ClassVar[type | None] = None  # an optional dataclass of the task's own options, the keys of task_options
    # Widths of the input nodes that a graph starts from and of the output nodes that it ends in; an environment that
    # needs them says so where there are none.
    input_sizes: tuple[int, ...] = ()
    output_sizes: tuple[int, ...] = ()

    _temperature: TemperatureConditional | None = None

    def __init__(self, config: TaskConfig) -> None:
        """Keeps the whole root config, which was validated before. A subclass's own __init__ calls this one."""
        self.config = config
        self._temperature = TemperatureConditional(config.cond.temperature)

    @abstractmethod
    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Returns the score of a finished graph, the same for the same seed. May raise: recorded as a failure.

        torch's, numpy's and Python's global generators are seeded with `seed` around the call. Data that only the
        final report may see has no place here.
        """

    def evaluate_many(self, graphs: Sequence[Any], *, seeds: Sequence[int]) -> Iterable[Score | Exception]:
        """Yields for each graph, in order, its score or the exception that ended its evaluation.

        Here one after the other; a task that can train many candidates together overrides it and returns a list.
        """
        for graph, seed in zip(graphs, seeds, strict=True):
            yield self._score_or_exception(graph, seed)

    def test(self, graph: Any, *, seed: int) -> float | None:
        """Returns the test score of a graph for the final report, or None where the task has no test data."""
        return None

    @property
    def num_cond_dim(self) -> int:
        """Number of conditioning features C that the policy is given."""
        return self._conditional.num_cond_dim

    def sample_conditioning(self, num: int, *, generator: torch.Generator) -> Conditioning:
        """Returns what `num` new trajectories are conditioned on."""
        return self._conditional.sample(num, generator=generator)

    def log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        """Returns beta * log(max(score, floor)) of scores `[B]`."""
        return conditioning.beta * scores.clamp(min=self.config.evaluation.floor_score).log()

    @property
    def _conditional(self) -> TemperatureConditional:
        if self._temperature is None:
            raise ValueError(f"task: expected {type(self).__name__}.__init__ to call super().__init__(config)")
        return self._temperature

    def _score_or_exception(self, graph: Any, seed: int) -> Score | Exception:
        with seeded(seed):
            try:
                return self.evaluate(graph, seed=seed)
            except Exception as error:
                return error


def soft_size_objective(quality: float, num_parameters: int, *, target_parameters: int, size_weight: float) -> float:
    """Returns quality * (num_parameters / target_parameters) ** -size_weight (MnasNet, Tan et al. 2019, eq. 2).

    The paper's exponent w = -0.07 is `size_weight=0.07`. A graph without parameters counts as one.
    """
    return quality * (max(num_parameters, 1) / target_parameters) ** -size_weight
