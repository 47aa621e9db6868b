"""The rollout of a training step: sampled, searched, replayed and offline trajectories with their rewards.

Letters: B trajectories or chains of a local search, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.task import GFNTask
from gflownet.learning.config import LocalSearchConfig, OfflineConfig, ReplayConfig
from gflownet.learning.replay import ReplayBuffer, SeenStates, action_sequences
from gflownet.learning.sampler import (
    Exploration,
    SampledStep,
    assembled,
    chosen_by,
    conditions_of,
    roll_out,
    sample_backward,
    sample_forward,
)
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.answer import distinct
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.workers.process import Stream, stream_seed

_SHARE_BACK = 0.5  # largest share of the construction steps that a change of local search undoes


@dataclass(frozen=True)
class Rollout:
    """Data of one training step."""

    trajectories: TrajectoryBatch  # with rewards; fresh samples first
    num_fresh: int
    evaluations: Sequence[Evaluation]  # of the fresh samples
    other_evaluations: Sequence[Evaluation] = ()  # of local search and of intermediate states
    replays: Sequence[TrajectoryBatch] = ()  # further replayed batches, one optimiser step each
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """Composition of a rollout."""

    num_trajectories: int
    num_taught: int = 0  # of them, sampled by the teacher
    exploration: Exploration = field(default_factory=Exploration)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    local_search: LocalSearchConfig = field(default_factory=LocalSearchConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    scores_states: bool = False  # score intermediate states on which Stop is legal


Score = Callable[[TrajectoryBatch], TrajectoryBatch]  # sets the log-rewards


class Refined(NamedTuple):
    """Result of a search."""

    proposals: Sequence[TrajectoryBatch]  # one batch of B trajectories with rewards per iteration
    accepted_share: float  # of all proposals
    terminal: GraphStates  # current B states of the chains


@dataclass(frozen=True)
class LocalSearch:
    """B chains of terminal states (Local search GFlowNets, Kim et al. 2024, section 4, with the deterministic filter).

    A proposal undoes K steps and continues with the policy; K is uniform between 1 and half of the state's
    construction steps. A chain moves to proposals with a higher reward.
    """

    context: GraphBuildingEnvContext  # with backward actions if P_B is learned
    config: LocalSearchConfig
    exploration: Exploration

    def refine(
        self,
        terminal: GraphStates,
        log_reward: Tensor,
        conditioning: Conditioning,
        *,
        policy: PolicyFunction,
        score: Score,
        generator: torch.Generator,
    ) -> Refined:
        """Run the chains from terminal states [B] with log-rewards [B], each with its own conditioning."""
        proposals, num_accepted = [], 0
        for _ in range(self.config.num_iterations):
            proposal = score(self._proposed(terminal, conditioning, policy, generator))
            accepted = proposal.log_reward > log_reward
            index = torch.arange(len(accepted)) + torch.where(accepted, 0, len(accepted))
            terminal = GraphStates.cat([proposal.terminal, terminal])[index]
            log_reward = torch.where(accepted, proposal.log_reward, log_reward)
            proposals.append(proposal)
            num_accepted += int(accepted.sum())
        return Refined(proposals, num_accepted / max(len(terminal) * len(proposals), 1), terminal)

    def _proposed(
        self, terminal: GraphStates, conditioning: Conditioning, policy: PolicyFunction, generator: torch.Generator
    ) -> TrajectoryBatch:
        """Undo steps of trajectories into the states from P_B, and sample the continuation; without rewards."""
        env, backward_policy = self.context.env, policy if self.context.backward_types else None
        backward = sample_backward(
            self.context, terminal, conditioning=conditioning, generator=generator, policy=backward_policy
        )
        sequences = action_sequences(env, backward)  # consistent node numbers for the continuation
        current = sequences.walk(env, conditioning=conditioning, origin=Origin.RESAMPLED)
        (position, num_steps), owner = _positions(current), current.trajectory
        low = num_steps.clamp(max=1)  # the initial state has no step to undo
        high = (num_steps * _SHARE_BACK).ceil().long().clamp(min=low)
        uniform = torch.rand(len(current), generator=generator, dtype=torch.float64)
        num_shared = (num_steps - low - (uniform * (high - low + 1)).long())[owner]
        shared = (position < num_shared).nonzero().squeeze(1)
        branches = (position == num_shared).nonzero().squeeze(1)
        start = current.states[branches[owner[branches].argsort()]]
        shared_step = SampledStep(
            current.states[shared], owner[shared], current.actions[shared], None, current.log_backward[shared]
        )
        with torch.inference_mode():
            choose = chosen_by(self.context, policy, current.conditioning, generator, self.exploration)
            steps = roll_out(env, start, choose)
        return assembled(env, [shared_step, *steps], conditions_of(current), Origin.RESAMPLED)


def _positions(trajectories: TrajectoryBatch) -> tuple[Tensor, Tensor]:
    """Return the position of each step in its trajectory, [S], and the number of actions before Stop, [B]."""
    order, length = trajectories.trajectory.argsort(stable=True), torch.bincount(trajectories.trajectory)
    within = torch.arange(len(order)) - (length.cumsum(0) - length).repeat_interleave(length)
    return torch.empty_like(order).scatter_(0, order, within), length - 1


class StepScorer:
    """Scores terminal states; a graph that was scored earlier in the same step is not evaluated again."""

    def __init__(self, env: Environment, evaluator: Evaluator, *, step: int) -> None:
        self.evaluations: list[Evaluation] = []  # of all scored states, in order
        self.keys: list[str] = []  # canonical keys of these states
        self._env, self._evaluator, self._step = env, evaluator, step
        self._cache: dict[str, Evaluation] = {}

    def scores(self, terminal: GraphStates) -> Tensor:
        """Return scores [B] of terminal states [B], or utilities [B, K] of several objectives."""
        graphs = [self._env.terminal(terminal, i) for i in range(len(terminal))]
        keys = [graph.canonical_key() for graph in graphs]
        indices = [i for i, key in enumerate(keys) if key not in self._cache]
        results = self._evaluator.evaluate([graphs[i] for i in indices], step=self._step) if indices else []
        new = dict(zip(indices, results, strict=True))
        return self.add(keys, [new.get(i) or replace(self._cache[key], cached=True) for i, key in enumerate(keys)])

    def add(self, keys: Sequence[str], evaluations: Sequence[Evaluation]) -> Tensor:
        """Add evaluations of graphs by canonical key, and return their scores or utilities."""
        for key, evaluation in zip(keys, evaluations, strict=True):
            self._cache.setdefault(key, evaluation)
        self.evaluations += evaluations
        self.keys += keys
        return scores_of(evaluations)


def scores_of(evaluations: Sequence[Evaluation]) -> Tensor:
    """Return scores [B], or utilities [B, K] of several objectives."""
    return torch.tensor([evaluation.utilities or evaluation.score for evaluation in evaluations])


class TrajectorySource:
    """Samples the trajectories of a step, and makes its rollout of their evaluations.

    Both are functions of seed, step, weights and contents of the replay buffer: any process can compute any step,
    repeatedly.
    """

    def __init__(
        self,
        context: GraphBuildingEnvContext,
        options: SourceOptions,
        *,
        task: GFNTask,
        seed: int,
        offline: SeenStates | None = None,
    ) -> None:
        self.context, self.options, self.task, self.seed, self.offline = context, options, task, seed, offline
        self._search = LocalSearch(context, options.local_search, options.exploration)

    def rollout(
        self,
        step: int,
        fresh: TrajectoryBatch,
        keys: Sequence[str],
        evaluations: Sequence[Evaluation],
        *,
        policy: PolicyFunction,
        evaluator: Evaluator,
        replay: ReplayBuffer,
    ) -> Rollout:
        """Return the fresh trajectories with their rewards, and those of local search, replay and offline data.

        Args:
            step: of the training.
            fresh: B sampled trajectories.
            keys: B canonical keys of its terminal graphs.
            evaluations: B of them.
            policy: samples the other trajectories.
            evaluator: scores further states, of local search and on the way.
            replay: gets all scored terminal states.
        """
        scorer, metrics = StepScorer(self.context.env, evaluator, step=step), {}

        def rewarded(batch: TrajectoryBatch, scores: Tensor) -> TrajectoryBatch:
            if self.options.replay.use:
                sequences = None if self.options.replay.resample else action_sequences(self.context.env, batch)
                seen = SeenStates(batch.terminal, scores, sequences)
                metrics["replay_size"] = float(replay.add(seen, keys=scorer.keys[-len(batch) :]))
            return self._rewarded(batch, scores)

        fresh = rewarded(fresh, scorer.add(keys, evaluations))
        batches, num_fresh = [fresh], len(fresh)
        if num := self.options.local_search.num:
            refined = self._search.refine(
                fresh.terminal[:num],
                fresh.log_reward[:num],
                conditions_of(fresh)[:num],
                policy=policy,
                score=lambda batch: rewarded(batch, scorer.scores(batch.terminal)),
                generator=self._generator(step, Stream.LOCAL_SEARCH),
            )
            batches += refined.proposals
            metrics["local_search_accepted"] = refined.accepted_share
        batches += self.replayed(step, replay, policy) + self.offline_trajectories(step, policy)
        updates = [TrajectoryBatch.cat(batches)]
        for turn in range(1, 1 + self.options.replay.num_updates):
            updates += self.replayed(step, replay, policy, turn)
        if self.options.scores_states:
            updates = [self._with_state_rewards(batch, scorer) for batch in updates]
        return Rollout(updates[0], num_fresh, evaluations, scorer.evaluations[num_fresh:], updates[1:], metrics)

    def sample_on_policy(self, step: int, *, policy: PolicyFunction) -> TrajectoryBatch:
        """Sample trajectories without exploration, from a separate random stream, without rewards."""
        return self._sample(step, Stream.VALIDATION, policy, Exploration(), self.options.num_trajectories)

    def mean_score(self, step: int, *, policy: PolicyFunction, evaluator: Evaluator) -> float:
        """Return the mean score of trajectories sampled without exploration."""
        scorer = StepScorer(self.context.env, evaluator, step=step)
        scorer.scores(self.sample_on_policy(step, policy=policy).terminal)
        return sum(each.score for each in scorer.evaluations) / len(scorer.evaluations)

    def sample(
        self, step: int, policy: PolicyFunction, teacher: PolicyFunction | None = None, *, num: int | None = None
    ) -> TrajectoryBatch:
        """Sample `num` trajectories (default: those of a step) from the policy and the teacher, without rewards."""
        num = self.options.num_trajectories if num is None else num
        num_taught, exploration = min(self.options.num_taught, num), self.options.exploration
        if teacher is None:
            return self._sample(step, Stream.FRESH, policy, exploration, num)
        on_policy = self._sample(step, Stream.FRESH, policy, exploration, num - num_taught)
        taught = self._sample(step, Stream.TAUGHT, teacher, exploration, num_taught)
        origin = torch.full_like(taught.origin, int(Origin.REMEMBERED))
        return TrajectoryBatch.cat([on_policy, replace(taught, origin=origin)])

    def _sample(
        self, step: int, stream: int, policy: PolicyFunction, exploration: Exploration, num: int
    ) -> TrajectoryBatch:
        generator = self._generator(step, stream)
        conditioning = self.task.sample_conditioning(num, generator=generator)
        return sample_forward(
            self.context,
            policy,
            conditioning=conditioning,
            generator=generator,
            random_action_prob=exploration.random_action_prob,
            temperature=exploration.temperature,
        )

    def replayed(self, step: int, replay: ReplayBuffer, policy: PolicyFunction, *turn: int) -> list[TrajectoryBatch]:
        """Return trajectories into replayed terminal states: the original or resampled ones."""
        options = self.options.replay
        if not (options.use and options.num_from_replay):
            return []
        states = replay.sample(options.num_from_replay, seed=stream_seed(self.seed, step, Stream.REPLAY_CHOICE, *turn))
        if states is None:
            return []
        generator = self._generator(step, Stream.REPLAYED, *turn)
        if states.sequences is None:
            return [self._resampled(states, policy, generator)]
        conditioning = self._conditioning_into(states, generator)
        batch = states.sequences.walk(self.context.env, conditioning=conditioning, origin=Origin.REMEMBERED)
        return [self._rewarded(batch, states.scores)]

    def offline_trajectories(self, step: int, policy: PolicyFunction) -> list[TrajectoryBatch]:
        """Return trajectories into uniformly drawn graphs of the offline data."""
        if self.offline is None or not self.options.offline.num:
            return []
        generator = self._generator(step, Stream.OFFLINE)
        index = torch.randint(len(self.offline), (self.options.offline.num,), generator=generator)
        return [self._resampled(self.offline[index], policy, generator)]

    def resampled(
        self, step: int, terminal: GraphStates, evaluations: Sequence[Evaluation], policy: PolicyFunction
    ) -> TrajectoryBatch:
        """Return a new trajectory into each of these scored states."""
        states = SeenStates(terminal, scores_of(evaluations))
        return self._resampled(states, policy, self._generator(step, Stream.FINISHED))

    def _resampled(self, states: SeenStates, policy: PolicyFunction, generator: torch.Generator) -> TrajectoryBatch:
        """Sample a new trajectory into each state from the trained backward policy."""
        conditioning = self._conditioning_into(states, generator)
        batch = sample_backward(
            self.context,
            states.terminal,
            conditioning=conditioning,
            generator=generator,
            policy=policy if self.context.backward_types else None,
        )
        return self._rewarded(batch, states.scores)

    def _conditioning_into(self, states: SeenStates, generator: torch.Generator) -> Conditioning:
        """Return the conditioning of new trajectories into states; limits are at least their sizes."""
        conditioning = self.task.sample_conditioning(len(states), generator=generator)
        sizes = self.context.env.sizes
        return conditioning if conditioning.limit is None else self.task.reaching(conditioning, sizes(states.terminal))

    def _with_state_rewards(self, trajectories: TrajectoryBatch, scorer: StepScorer) -> TrajectoryBatch:
        """Add the log-reward of every intermediate state on which Stop is legal, 0 for other states."""
        states, owner = trajectories.states, trajectories.trajectory
        stop = self.context.env.forward_masks(states).masks[GraphActionType.Stop].flatten(1).any(1)
        steps = stop.nonzero().squeeze(1)
        first, inverse = distinct(states[steps], torch.zeros(len(steps), 1))
        scores = scorer.scores(states[steps[first]])[inverse]
        of_states = self._log_reward(scores, conditions_of(trajectories)[owner[steps]])
        log_reward = torch.zeros(len(states)).index_put((steps,), of_states)
        return trajectories.with_state_rewards(log_reward)

    def _rewarded(self, trajectories: TrajectoryBatch, scores: Tensor) -> TrajectoryBatch:
        return trajectories.with_rewards(self._log_reward(scores, conditions_of(trajectories)))

    def _log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        log_reward = self.task.log_reward(scores, conditioning)
        invalid = (~log_reward.isfinite()).nonzero().squeeze(1).tolist()
        if invalid:
            score = ", ".join(f"{value:g}" for value in scores[invalid[0]].reshape(-1).tolist())
            name = type(self.task).__name__
            raise UserError(
                f"{name}.log_reward: expected a finite number for the score {score}, got {log_reward[invalid[0]]}"
            )
        return log_reward

    def _generator(self, step: int, *stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self.seed, step, *stream))
