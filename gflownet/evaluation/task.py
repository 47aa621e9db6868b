"""The task: scores of finished objects, and their rewards. B trajectories, C conditioning features, K objectives."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gflownet.evaluation.conditioning import Conditioning, RewardConditional
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.recorded_tables import limits_of
from gflownet.evaluation.presentation import Presentation
from gflownet.plugins import Configurable
from gflownet.training.random_states import seeded

# A word in the name of a metric of which smaller values are better.
_COST_NAME = re.compile(
    r"(error|loss|mse|rmse|mae|mape|nll|perplexity|latency|seconds|time|parameters|params|size|cost|flops|"
    r"macs|memory|bytes|energy|regret)s?"
)
# Values at which a utility shows its direction: the first pair with a difference does.
_PROBED = ((0.25, 0.75), (2.0, 8.0), (1e2, 1e3), (1e4, 1e6))
# Metric of a recorded training: its seconds in the table. The seconds of a row are those of the lookup.
TRAINING_SECONDS = "training_seconds"


@dataclass(frozen=True)
class Score:
    """The result of one evaluation."""

    value: float  # validation score, finite and >= 0, best within [0, 1]: rewards are max(value, floor_score)^beta
    num_parameters: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: nn.Module | None = field(default=None, repr=False, compare=False)  # trained; it stays in its process


@dataclass(frozen=True)
class Cost:
    """Size of the model of a graph, computed without allocating it."""

    num_parameters: int
    flops: int  # of a forward pass on one example; a multiply-add counts 2


class CandidateTraining(ABC):
    """The training of one candidate up to a fidelity; it can be saved and continued."""

    fidelity: int  # epochs or steps done
    curve: tuple[float, ...]  # validation score after each epoch or measured step
    model: nn.Module

    @abstractmethod
    def score(self) -> Score:
        """Return the validation score at this fidelity; at the full one, that of `GFNTask.evaluate` bit for bit."""

    @abstractmethod
    def test(self) -> float | None:
        """Return the test score, None without test data."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain containers from which the training continues bit for bit.

        The entry `model` is the state dict of the model.
        """


class GFNTask(Presentation, Configurable, ABC):
    """Scores terminal graphs and turns scores into log-rewards. A subclass defines `evaluate`.

    What tables and reports show of it has defaults in `Presentation`. Independent of policy and trainer. Built once, in
    the main process; `evaluate` is never called by two threads at once. `Config` and `check_config` declare options,
    see gflownet.plugins.Configurable.
    """

    environment: ClassVar[str] = ""  # the env.name that this task needs; empty: any
    # Inputs and outputs of a network, for environments that need them: the width of a vector, or a shape with its
    # layout, such as gflownet.Shape.of((1, 48), "signal").
    input_sizes: tuple[Any, ...] = ()
    output_sizes: tuple[Any, ...] = ()

    # Names of metrics that a run may choose as objectives (evaluation.objectives) in place of the one score.
    objectives: tuple[str, ...] = ()
    # Objectives of which smaller values are better, with the value c of utility 1/2: 1 / (1 + value / c).
    costs: Mapping[str, float] = MappingProxyType({})

    # Largest valid score; a larger one is a mistake of the task, and the evaluation FAILED.
    max_score: float = 1e6
    # Evaluations take microseconds and are safe: evaluation.executor=auto keeps them in the main process.
    is_cheap: ClassVar[bool] = False
    # Epochs or steps of a full training for tasks with `train_many`; 0: evaluations have no fidelity.
    max_fidelity: int = 0
    fidelity_unit: ClassVar[str] = "epochs"

    # Where candidates train: that of the worker's slot, see `to_device`.
    device: torch.device = torch.device("cpu")
    chosen_objectives: tuple[str, ...] = ()  # of this run; empty: the score
    limits: Mapping[str, float] = MappingProxyType({})  # by metric, of evaluation.constraints
    _reward_conditional: RewardConditional | None = None

    def __init__(self, config: TaskConfig) -> None:
        """Keep the validated root config. The __init__ of a subclass calls this one.

        Raises:
            ValueError: another environment than `environment`, or an unknown name in evaluation.objectives.
        """
        self.config = config
        if self.environment and config.env.name != self.environment:
            raise ValueError(f"env.name: expected {self.environment} with this task, got {config.env.name}")
        self.chosen_objectives = tuple(config.evaluation.objectives)
        for name in self.chosen_objectives:
            if name not in self.objectives:
                names = ", ".join(self.objectives) or f"nothing, {config.task} has none"
                raise ValueError(f"evaluation.objectives: expected some of {names}, got {name!r}")
            if self._has_no_direction(name) and any(map(_COST_NAME.fullmatch, re.split(r"[\W_]+", name.lower()))):
                raise ValueError(f"evaluation.objectives: {self._missing_direction(name)}, got the name of a cost")
        self.limits = limits_of(config.evaluation.constraints, key="evaluation.constraints")
        self._reward_conditional = RewardConditional(config.cond, num_objectives=len(self.chosen_objectives))

    @property
    def is_noisy(self) -> bool:
        """Whether scores depend on the seed: a run then has a final stage. By default those of tasks with costs do."""
        return not self.is_cheap

    @property
    def measured_objectives(self) -> tuple[str, ...]:
        """The objectives to measure: those of this run, and those with a limit."""
        limited = (name for name in self.limits if name in self.objectives)
        return tuple(dict.fromkeys((*self.chosen_objectives, *limited)))

    @property
    def trains_seeds_together(self) -> bool:
        """Whether several seeds of one candidate in a call of `train_many` take less time than one by one."""
        return False

    def to_device(self, device: torch.device) -> None:
        """Train and measure candidates on a device from now on: `self.device`. Overridden to move the data there.

        Called in a process of a pool before `warm_up`; never in the main process, which may have no context of it.
        Tasks that override it train on the GPUs, where there are any, with evaluation.device=auto. Scores, saved
        trainings and weights are returned on the CPU.
        """
        self.device = device

    def warm_up(self) -> None:
        """Load the state that evaluations share, such as data in a `cached_property`, before a deadline starts.

        Called once in the owner of a pool on cores, where it may not start threads; with a GPU in each process.
        Elsewhere it may not be called: `evaluate` works without it.
        """

    @abstractmethod
    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return the score of a finished graph, the same for the same seed. An exception is recorded as a failure.

        torch's, numpy's and Python's global generators are seeded with `seed` around the call. Test data must not be
        used here.
        """

    def evaluate_many(self, graphs: Sequence[Any], *, seeds: Sequence[int]) -> Iterable[Score | Exception]:
        """Yield for each graph, in order, its score or the exception that ended its evaluation.

        One after the other by default; overridden by tasks that train many candidates together.
        """
        for graph, seed in zip(graphs, seeds, strict=True):
            with seeded(seed):
                try:
                    result: Score | Exception = self.evaluate(graph, seed=seed)
                except Exception as error:
                    result = error
            yield result

    def train_many(
        self,
        graphs: Sequence[Any],
        *,
        seeds: Sequence[int],
        fidelity: int,
        schedule: int,
        states: Sequence[Mapping[str, Any] | None],
    ) -> Iterable[CandidateTraining | Exception]:
        """Yield for each graph, in order, its training up to `fidelity`, or the exception that ended it.

        Overridden, with `max_fidelity`, by tasks whose trainings can be continued.

        Args:
            graphs: the candidates.
            seeds: one per graph.
            fidelity: epochs or steps after which to stop.
            schedule: epochs or steps of the whole training, for learning-rate schedules.
            states: `state_dict` of the training to continue, or None, one per graph.
        """
        raise NotImplementedError(f"{type(self).__name__}: expected train_many with max_fidelity={self.max_fidelity}")

    def outputs(self, graph: Any, weights: Mapping[str, Tensor], *, split: str) -> Tensor:
        """Return the outputs [N, ...] of a trained model on the validation or test examples, in order, on the CPU.

        Defined by tasks whose runs can choose a set of networks.
        """
        raise NotImplementedError

    def test(self, graph: Any, *, seed: int) -> float | None:
        """Return the test score of a graph for the final report, None for a task without test data."""
        return None

    @property
    def has_test(self) -> bool:
        """Whether `test` measures anything. Without a final stage the best are evaluated again for it."""
        return type(self).test is not GFNTask.test

    def cost(self, graph: Any) -> Cost | None:
        """Return the size of a graph's model, None where it is not known before it is built."""
        return None

    def refusal(self, graph: Any) -> str | None:
        """Return the reason to refuse a graph before its evaluation, None to accept it; a refused one costs nothing.

        For limits beyond budget.parameters and budget.flops.
        """
        return None

    def all_scores(self) -> Sequence[float]:
        """Return the scores of all architectures of the space where a table has them, otherwise none."""
        return ()

    def all_test_scores(self) -> Sequence[float]:
        """Return the test scores of all architectures of the space where a table has them, otherwise none."""
        return ()

    def fingerprint(self) -> str:
        """Return a digest of the data behind the scores; rows with another fingerprint are scored again."""
        return ""

    @property
    def translation_settings(self) -> Mapping[str, Any]:
        """Translation settings (projection, dtype) of `evaluate`, written into reported computation graphs."""
        return {"projection": self.config.evaluation.projection}

    @property
    def num_cond_dim(self) -> int:
        """The number of conditioning features C of the policy."""
        return self._conditional.num_cond_dim

    def sample_conditioning(self, num: int, *, generator: torch.Generator) -> Conditioning:
        """Return the conditioning of `num` new trajectories."""
        return self._conditional.sample(num, generator=generator)

    def reaching(self, sampled: Conditioning, sizes: Tensor) -> Conditioning:
        """Return sampled conditionings for trajectories into terminal states of known sizes [B, L]: caps are larger."""
        return self._conditional.reaching(sampled, sizes)

    def use_limits(self, names: Sequence[str], *, smallest: Sequence[int], caps: Sequence[int]) -> None:
        """Set the ends of cond.limit, where in use, from the limits of the environment, see `LimitConditional.use`."""
        if self._conditional.limit is not None:
            self._conditional.limit.use(names, smallest, caps)

    def override_conditioning(
        self,
        sampled: Conditioning,
        *,
        beta: float | None = None,
        preferences: Sequence[float] | None = None,
        focus: Sequence[float] | None = None,
        limit: int | None = None,
    ) -> Conditioning:
        """Return conditionings of `sample_conditioning` with some values replaced.

        Raises:
            ValueError: a value that `sample_conditioning` never samples.
        """
        return self._conditional.overridden(sampled, beta=beta, preferences=preferences, focus=focus, limit=limit)

    def utility(self, objective: str, value: float) -> float:
        """Return the utility of an objective's metric: >= 0, best within [0, 1], larger is better.

        By default the metric itself, which is in [0, 1] then, and for `costs` 1 / (1 + value / cost of utility 1/2).
        """
        return 1 / (1 + value / self.costs[objective]) if objective in self.costs else value

    def directions(self) -> dict[str, str]:
        """Return min or max for each chosen objective: whether a smaller or a larger metric has the larger utility."""
        return {name: "min" if self._is_cost(name) else "max" for name in self.chosen_objectives}

    def _is_cost(self, objective: str) -> bool:
        with suppress(Exception):  # a utility of the user, which may not take these values
            pairs = ([self.utility(objective, value) for value in pair] for pair in _PROBED)
            return next((first > second for first, second in pairs if first != second), False)
        return objective in self.costs

    def _has_no_direction(self, objective: str) -> bool:
        return type(self).utility is GFNTask.utility and objective not in self.costs

    def _missing_direction(self, objective: str) -> str:
        name = type(self).__name__
        return (
            f"{objective}: expected its direction, {name}.costs = {{{objective!r}: value with utility 1/2}} where "
            f"smaller is better, else {name}.utility(objective, value) in [0, 1]"
        )

    def utilities(self, score: Score) -> tuple[float, ...]:
        """Return the utility of each chosen objective.

        Raises:
            ValueError: a missing metric, or a utility that is not a finite number >= 0.
        """
        utilities = []
        for name in self.chosen_objectives:
            if name not in score.metrics:
                raise ValueError(f"metrics: expected the objective {name}, got {', '.join(score.metrics) or 'none'}")
            if (value := score.metrics[name]) > 1 and self._has_no_direction(name):
                raise ValueError(f"objective {self._missing_direction(name)}, got a value above 1, {value:g}")
            try:
                value = float(self.utility(name, score.metrics[name]))
            except Exception as error:  # raised by the user's task
                reason = f"{type(error).__name__}: {error}"
                raise ValueError(
                    f"objective {name}: expected a utility of {score.metrics[name]}, got {reason}"
                ) from error
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"objective {name}: expected a finite utility >= 0, got {value}")
            utilities.append(value)
        return tuple(utilities)

    def log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        """Return beta * log(max(score, floor)) of scores [B], or of the conditioned scores of utilities [B, K]."""
        if scores.ndim == 2:
            scores = self._conditional.score(scores, conditioning.encoding)
        return conditioning.beta * scores.clamp(min=self.config.evaluation.floor_score).log()

    @property
    def _conditional(self) -> RewardConditional:
        if self._reward_conditional is None:
            raise ValueError(f"task: expected {type(self).__name__}.__init__ to call super().__init__(config)")
        return self._reward_conditional


def soft_size_objective(quality: float, num_parameters: int, *, target_parameters: int, size_weight: float) -> float:
    """Return quality * (num_parameters / target_parameters) ** -size_weight (MnasNet, Tan et al. 2019, eq. 2).

    The paper's exponent w = -0.07 is `size_weight=0.07`. A graph without parameters counts as one.
    """
    return quality * (max(num_parameters, 1) / target_parameters) ** -size_weight
