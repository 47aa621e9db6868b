"""The contract of a search method: propose candidates, learn from their results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.task import Cost, GFNTask
from gflownet.learning.auxiliary import AuxiliaryNetworks
from gflownet.learning.learner import Learner
from gflownet.learning.replay import ReplayBuffer
from gflownet.learning.source import TrajectorySource
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import SIZES, Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OBJECTIVES
from gflownet.plugins import Configurable
from gflownet.search.config import SearchConfig
from gflownet.search.history import History
from gflownet.search.prior import Prior
from gflownet.search.proposals import SpreadDraws
from gflownet.search.start import Start
from gflownet.search.surrogate import Prediction, Surrogate
from gflownet.workers.process import stream_seed


@dataclass(frozen=True)
class Results:
    """The results of one round."""

    round: int  # from 1 on
    states: GraphStates  # B terminal states
    candidates: Sequence[Any]  # B, their graphs or isomorphic ones
    evaluations: Sequence[Evaluation]  # B


@dataclass(frozen=True)
class Candidates:
    """What a method proposes."""

    states: GraphStates  # B terminal states
    origins: Tensor | None = None  # [B] int64, each a ProposalOrigin; None: not known

    @classmethod
    def of(cls, proposed: GraphStates | Candidates) -> Candidates:
        """Return candidates, also of states alone."""
        return proposed if isinstance(proposed, Candidates) else cls(proposed)


@dataclass(frozen=True)
class Learned:
    """What a method returns of a round, or of a training step."""

    metrics: Mapping[str, float]
    log_rewards: Sequence[float] = ()  # of the trajectories of the step
    other_evaluations: Sequence[Evaluation] = ()  # of further states that the round has scored
    is_resumable: bool = False  # whether a resumed run continues after this step, not before the first one of its work

    @classmethod
    def of(cls, learned: Mapping[str, float] | Learned) -> Learned:
        """Return what was learned, also of metrics alone."""
        return learned if isinstance(learned, Learned) else cls(learned)


@dataclass(frozen=True)
class PolicyTraining:
    """The policy of a run with what trains it on scores, for search.method=gflownet."""

    learner: Learner
    auxiliary: AuxiliaryNetworks
    source: TrajectorySource
    replay: ReplayBuffer
    in_order: bool  # learn the sampled trajectories; False: trajectories sampled backwards from finished states
    validate_every: int  # training steps; 0: never
    start_workers: Callable[[int], Generator[TrajectoryBatch]] | None  # from a step on; None: sample in this process


@dataclass(frozen=True)
class SearchSetup:
    """The parts of a run that a search method may use."""

    context: GraphBuildingEnvContext
    task: GFNTask
    config: SearchConfig  # `config.options` is the method's `Config`
    history: History
    seed: int
    build_learner: Callable[[], Learner]  # a new policy with its objective and optimiser, of the run's options
    build_surrogate: Callable[[], Surrogate]
    build_training: Callable[[], PolicyTraining]
    num_evaluations: int  # expected evaluations of the search, for schedules
    prior: Prior  # evaluations of earlier searches
    is_refused: Callable[[Any], bool] = lambda candidate: False  # whether a hard cap of the budget refuses it
    # Values [n, K] of evaluations as after whole trainings, by their metrics: some have inherited weights.
    estimates: Callable[[Tensor, Sequence[Mapping[str, float]]], Tensor] = lambda values, metrics: values
    start: Start | None = None  # network of env.start

    def is_refused_at(self, states: GraphStates, index: int) -> bool:
        """Return whether a hard cap of the budget refuses a terminal state of a batch."""
        return self.is_refused(self.context.env.terminal(states, index))

    def generator(self, *stream: int) -> torch.Generator:
        """Return the random generator of a stream."""
        return torch.Generator().manual_seed(stream_seed(self.seed, *stream))

    def random_draws(self, *stream: int) -> SpreadDraws:
        """Return the source of random architectures within the hard caps, whose pool is of a stream."""
        return random_draws(
            self.context.env,
            self.task,
            even_share=self.config.random.even_share,
            is_refused=self.is_refused,
            generator=self.generator(*stream),
        )


def random_draws(
    env: Environment, task: GFNTask, *, even_share: float, is_refused: Callable[[Any], bool], generator: torch.Generator
) -> SpreadDraws:
    """Return the source of random architectures of a task, spread over their parameters."""

    def sizes(states: GraphStates) -> Tensor:
        candidates, limits = [env.terminal(states, index) for index in range(len(states))], env.vocabulary.limits
        refused = torch.tensor([is_refused(each) for each in candidates], dtype=torch.bool)
        if SIZES[0] in limits:  # counted for all states together
            values = env.sizes(states)[:, limits.index(SIZES[0])].double()
        else:
            costs = [cost_of(task, each) for each in candidates]
            values = torch.tensor([math.nan if cost is None else cost.num_parameters for cost in costs]).double()
        return values.masked_fill(refused, math.nan)

    return SpreadDraws(env, sizes, even_share=even_share, generator=generator)


def cost_of(task: GFNTask, candidate: Any) -> Cost | None:
    """Return the cost of a candidate, None for an unknown one."""
    with suppress(ValueError):  # of a candidate whose evaluation fails, too
        return task.cost(candidate)
    return None


class SearchMethod(Configurable, ABC):
    """Proposes candidates, and learns from their results.

    Between two calls of `propose` the history grows by results, not always by all that were proposed: some are still in
    flight. Randomness comes from `setup.generator(call, ...)`, so that a resumed run proposes the same candidates.
    """

    uses_surrogate: ClassVar[bool] = False
    trains_policy: ClassVar[bool] = False  # on scores: its proposals are samples of the policy of the run
    keeps_history: ClassVar[bool] = True  # False: it learns from the results of each round once

    def __init__(self, setup: SearchSetup) -> None:
        self.setup, self.history, self.env = setup, setup.history, setup.context.env

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise UserError for objectives that cannot train the sampler of the search."""
        objective = OBJECTIVES.load(config.algo.method)
        if objective.needs_state_rewards or objective.imitates:
            raise UserError(
                "algo.method: expected an objective that learns from rewards of terminal states with "
                f"search.method={config.search.method}, such as tb, got {config.algo.method}"
            )
        varies = config.cond.limit.metric is not None or config.cond.temperature.sample_dist != "constant"
        varies |= bool(config.evaluation.objectives) and not config.cond.preferences.weights
        if objective.compares and varies and config.search.train_sampler:
            raise UserError(
                "algo.method: expected an objective for conditions that differ (preferences, limit, temperature) with "
                f"search.method={config.search.method}, such as tb, got {config.algo.method}"
            )

    @property
    def num_first(self) -> int:
        """Number of first candidates, which depend on no results; the next ones wait for all of theirs."""
        return 0

    def session(self, evaluator: Evaluator, *, first_call: int) -> AbstractContextManager[object]:
        """Return the context of a process that searches, for worker processes.

        Args:
            evaluator: scores further states, which are no proposals.
            first_call: number of the next call of `propose`.
        """
        return nullcontext()

    @abstractmethod
    def propose(self, call: int, num: int) -> GraphStates | Candidates:
        """Return up to `num` terminal states to evaluate next.

        None where results in flight or work come first; else none at the end. A repeated call returns the same, and
        leaves the same state. Known states are allowed: their result comes from the store, without an evaluation.

        Args:
            call: number of the call, from 1 on.
            num: at least 1.
        """

    def observe(self, results: Results) -> Mapping[str, float] | Learned:
        """Learn from the results of a round, which the history has, and return metrics of the method."""
        return {}

    def work(self, round: int) -> Generator[Mapping[str, float] | Learned]:
        """Yield after each piece of the work that is due after a round, of some milliseconds, while candidates train.

        A piece that is a step of the run has its metrics, others have none. Work that is closed before its end leaves
        the state before it, or that after the last step that is resumable.
        """
        yield from ()

    def predicted(self, states: GraphStates) -> Prediction | None:
        """Return the distributions of the scores of terminal states [B] given all evaluations; None without a model.

        In scores, for measured architectures, too: the distribution of the mean score over seeds has the standard
        deviation `latent_std`, that of one training around its mean is `noise`.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state beyond the history, safe to load with `weights_only=True`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; the history is restored before."""
