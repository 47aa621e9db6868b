"""What a user writes: the task, which scores one architecture and says what a reward is.

Shapes: B trajectories, C conditioning features, K objectives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gflownet.evaluation.conditioning import Conditioning, RewardConditional
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.randomness import seeded
from gflownet.plugins import Configurable


@dataclass(frozen=True)
class Score:
    """What evaluating one graph yields."""

    # The validation score, finite and >= 0, best kept within [0, 1]: rewards are max(value, floor_score)^beta.
    value: float
    num_parameters: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class GFNTask(Configurable, ABC):
    """Scores terminal graphs and turns scores into log-rewards. A subclass gives the sizes and `evaluate`.

    The task knows neither the policy nor the trainer. It is built once, in the main process; `evaluate` is called in
    turn, never by two threads at once.
    """

    environment: ClassVar[str] = ""  # the env.name that this task needs; empty: any
    # Widths of the input and output nodes of a graph, for environments that need them.
    input_sizes: tuple[int, ...] = ()
    output_sizes: tuple[int, ...] = ()

    # Names of metrics that a run may choose as its objectives (evaluation.objectives) in place of the one score.
    objectives: ClassVar[tuple[str, ...]] = ()

    chosen_objectives: tuple[str, ...] = ()  # of this run, none where there is one, the score
    _parts: RewardConditional | None = None

    def __init__(self, config: TaskConfig) -> None:
        """Keeps the whole root config, which was validated before. A subclass's own __init__ calls this one.

        Raises:
            ValueError: evaluation.objectives names what is no objective of this task.
        """
        self.config = config
        if self.environment and config.env.name != self.environment:
            raise ValueError(f"env.name: expected {self.environment} with this task, got {config.env.name}")
        self.chosen_objectives = tuple(config.evaluation.objectives)
        for name in self.chosen_objectives:
            if name not in self.objectives:
                known = ", ".join(self.objectives) or f"nothing, {config.task} has none"
                raise ValueError(f"evaluation.objectives: expected some of {known}, got {name!r}")
        self._parts = RewardConditional(config.cond, num_objectives=len(self.chosen_objectives))

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
    def translation_settings(self) -> Mapping[str, Any]:
        """Settings (projection, dtype) that `evaluate` translates computation graphs with, written into reported ones.

        A task that translates with others overrides it.
        """
        return {"projection": self.config.evaluation.projection}

    @property
    def num_cond_dim(self) -> int:
        """Number of conditioning features C that the policy is given."""
        return self._conditional.num_cond_dim

    def sample_conditioning(self, num: int, *, generator: torch.Generator) -> Conditioning:
        """Returns what `num` new trajectories are conditioned on."""
        return self._conditional.sample(num, generator=generator)

    def asked(
        self,
        drawn: Conditioning,
        *,
        beta: float | None = None,
        preferences: Sequence[float] | None = None,
        focus: Sequence[float] | None = None,
    ) -> Conditioning:
        """Returns what was drawn by `sample_conditioning` with what is given in its place.

        Raises:
            ValueError: what is given is nothing that `sample_conditioning` draws.
        """
        return self._conditional.asked(drawn, beta=beta, preferences=preferences, focus=focus)

    def conditioning(
        self, num: int, *, beta: float, preferences: Sequence[float] = (), focus: Sequence[float] = ()
    ) -> Conditioning:
        """Returns `num` times one conditioning, to ask a trained policy for what somebody wants.

        Raises:
            ValueError: preferences or focus do not fit the objectives in use.
        """
        return self._conditional.repeated(num, beta=beta, preferences=preferences, focus=focus)

    def utility(self, objective: str, value: float) -> float:
        """Returns how good a metric that is an objective is: a number >= 0, best kept within [0, 1], larger is better.

        Here the metric itself; a task whose metric is a cost overrides it.
        """
        return value

    def utilities(self, score: Score) -> tuple[float, ...]:
        """Returns the utility of each chosen objective, nothing where there is one objective, the score.

        Raises:
            ValueError: a metric is missing, or no utility.
        """
        found = []
        for name in self.chosen_objectives:
            if name not in score.metrics:
                raise ValueError(f"metrics: expected the objective {name}, got {', '.join(score.metrics) or 'none'}")
            try:
                value = float(self.utility(name, score.metrics[name]))
            except Exception as error:  # whatever the user's own code raises
                reason = f"{type(error).__name__}: {error}"
                raise ValueError(
                    f"objective {name}: expected a utility of {score.metrics[name]}, got {reason}"
                ) from error
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"objective {name}: expected a finite utility >= 0, got {value}")
            found.append(value)
        return tuple(found)

    def log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        """Returns beta * log(max(score, floor)) of scores `[B]`, or of what utilities `[B, K]` score as conditioned."""
        if scores.ndim == 2:
            scores = self._conditional.score(scores, conditioning.encoding)
        return conditioning.beta * scores.clamp(min=self.config.evaluation.floor_score).log()

    @property
    def _conditional(self) -> RewardConditional:
        if self._parts is None:
            raise ValueError(f"task: expected {type(self).__name__}.__init__ to call super().__init__(config)")
        return self._parts

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
