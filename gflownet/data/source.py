"""The data of a training step: trajectories sampled, evaluated and remembered, and what is learned from again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from gflownet.data.action_sequences import action_sequences
from gflownet.data.config import LocalSearchConfig, OfflineConfig, ReplayConfig
from gflownet.data.local_search import LocalSearch
from gflownet.data.replay import SeenStates
from gflownet.data.sampler import Exploration, sample_backward, sample_forward
from gflownet.data.scorer import StepScorer
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.task import GFNTask
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.answer import distinct
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.workers.process import stream_seed

# What a step draws at random for, each from a stream of its own.
_FRESH, _REPLAYED, _REPLAY_CHOICE, _VALIDATION, GLOBAL_STREAM, _SEARCH, _SEARCH_CHOICE, _OFFLINE, _TAUGHT = range(9)


@dataclass(frozen=True)
class Rollout:
    """What one training step learns from."""

    trajectories: TrajectoryBatch  # fresh ones, then all others; their rewards are known
    num_fresh: int
    evaluations: Sequence[Evaluation]  # of the fresh ones
    others: Sequence[Evaluation] = ()  # of what local search found, and of states on the way
    replays: Sequence[TrajectoryBatch] = ()  # replayed ones again, each for an optimiser step of its own
    metrics: Mapping[str, float] = field(default_factory=dict)


class Replay(Protocol):
    """The part of the replay buffer that a rollout needs; in a worker, a proxy answers for it."""

    def add(self, seen: SeenStates, *, keys: Sequence[str]) -> int:
        """Keep terminal states that are new, and return how many are kept in all."""
        ...

    def sample(self, num: int, *, seed: int) -> SeenStates | None:
        """Return `num` states and their scores, or None while there are too few."""
        ...


@dataclass(frozen=True)
class SourceOptions:
    """What a step's data are made of."""

    num_trajectories: int
    num_taught: int = 0  # of them, by the teacher
    exploration: Exploration = field(default_factory=Exploration)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    local_search: LocalSearchConfig = field(default_factory=LocalSearchConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    scales_rewards: bool = True  # whether p(x) ~ R(x) is meant, not R(x) / |Aut(x)|
    scores_states: bool = False  # whether states on the way are scored, too, where they may stop


class TrajectorySource:
    """Makes the data of a step; what it draws depends on the seed, the step and the policy's weights alone.

    What is replayed, and searched around, depends on what the replay buffer holds, too. It holds nothing that changes,
    so that any process may make any step, again if need be.
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
        self._search = LocalSearch(context, options.local_search, options.exploration, options.scales_rewards)

    def rollout(
        self,
        step: int,
        *,
        policy: PolicyFunction,
        evaluator: Evaluator,
        replay: Replay,
        teacher: PolicyFunction | None = None,
    ) -> Rollout:
        """Return the data of a step, its rewards known: sampled with exploration, found near by, seen before, given."""
        scorer, metrics = StepScorer(self.context.env, evaluator, step=step), {}

        def scored(found: TrajectoryBatch) -> TrajectoryBatch:
            scores = scorer.scores(found.terminal)
            if self.options.replay.use:
                keys = scorer.keys[-len(found) :]
                metrics["replay_size"] = float(self._remember(found, scores, keys, replay))
            return self._rewarded(found, scores)

        fresh = scored(self._fresh(step, policy, teacher))
        parts, num_fresh = [fresh], len(fresh)
        start = self._search_start(step, fresh, replay)
        if start is not None:
            generator = self._generator(step, _SEARCH)
            refined = self._search.refine(*start, policy=policy, score=scored, generator=generator)
            parts += refined.proposals
            metrics["local_search_accepted"] = refined.accepted_share
        parts += self._replayed(step, replay, policy) + self._given(step, policy)
        batches = [TrajectoryBatch.cat(parts)]
        for turn in range(1, 1 + self.options.replay.num_updates):
            batches += self._replayed(step, replay, policy, turn)
        if self.options.scores_states:
            batches = [self._with_state_rewards(batch, scorer) for batch in batches]
        fresh_ones, others = scorer.evaluations[:num_fresh], scorer.evaluations[num_fresh:]
        return Rollout(batches[0], num_fresh, fresh_ones, others, batches[1:], metrics)

    def sample_on_policy(self, step: int, *, policy: PolicyFunction) -> TrajectoryBatch:
        """Return trajectories without exploration, from a random stream of their own, without rewards."""
        return self._sample(step, _VALIDATION, policy, Exploration(), self.options.num_trajectories)

    def evaluated(
        self, trajectories: TrajectoryBatch, evaluator: Evaluator, *, step: int
    ) -> tuple[TrajectoryBatch, list[Evaluation]]:
        """Return the trajectories with their rewards, and the evaluations behind those."""
        scorer = StepScorer(self.context.env, evaluator, step=step)
        return self._rewarded(trajectories, scorer.scores(trajectories.terminal)), scorer.evaluations

    def _fresh(self, step: int, policy: PolicyFunction, teacher: PolicyFunction | None) -> TrajectoryBatch:
        """Return the trajectories of the policy, then those of the teacher, which are not the policy's own."""
        num, num_taught, exploration = self.options.num_trajectories, self.options.num_taught, self.options.exploration
        if teacher is None:
            return self._sample(step, _FRESH, policy, exploration, num)
        own = self._sample(step, _FRESH, policy, exploration, num - num_taught)
        taught = self._sample(step, _TAUGHT, teacher, exploration, num_taught)
        origin = torch.full_like(taught.origin, int(Origin.REMEMBERED))
        return TrajectoryBatch.cat([own, replace(taught, origin=origin)])

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

    def _remember(self, found: TrajectoryBatch, scores: Tensor, keys: Sequence[str], replay: Replay) -> int:
        """Store terminal states under their keys, with their actions if those are replayed; return the buffer size."""
        sequences = None if self.options.replay.resample else action_sequences(self.context.env, found)
        return replay.add(SeenStates(found.terminal, scores, sequences), keys=keys)

    def _search_start(
        self, step: int, fresh: TrajectoryBatch, replay: Replay
    ) -> tuple[GraphStates, Tensor, Conditioning] | None:
        """Return the terminal states that are searched around, with log-rewards and conditioning, if there are any."""
        options = self.options.local_search
        if not options.num:
            return None
        if options.start == "fresh":
            first = slice(options.num)
            conditioning = Conditioning(fresh.conditioning[first], fresh.beta[first])
            return fresh.terminal[first], fresh.log_reward[first], conditioning
        drawn = replay.sample(options.num, seed=stream_seed(self.seed, step, _SEARCH_CHOICE))
        if drawn is None:
            return None
        generator = self._generator(step, _SEARCH_CHOICE)
        conditioning = self.task.sample_conditioning(len(drawn), generator=generator)
        return drawn.terminal, self._log_reward(drawn.scores, conditioning), conditioning

    def _replayed(self, step: int, replay: Replay, policy: PolicyFunction, *turn: int) -> list[TrajectoryBatch]:
        """Return trajectories into terminal states seen before: those that found them, or new ones."""
        options = self.options.replay
        if not (options.use and options.num_from_replay):
            return []
        drawn = replay.sample(options.num_from_replay, seed=stream_seed(self.seed, step, _REPLAY_CHOICE, *turn))
        if drawn is None:
            return []
        generator = self._generator(step, _REPLAYED, *turn)
        if drawn.sequences is None:
            return [self._resampled(drawn, policy, generator)]
        conditioning = self.task.sample_conditioning(len(drawn), generator=generator)
        again = drawn.sequences.walk(self.context.env, conditioning=conditioning, origin=Origin.REMEMBERED)
        return [self._rewarded(again, drawn.scores)]

    def _given(self, step: int, policy: PolicyFunction) -> list[TrajectoryBatch]:
        """Return trajectories into graphs of the offline data, all equally likely."""
        if self.offline is None or not self.options.offline.num:
            return []
        generator = self._generator(step, _OFFLINE)
        index = torch.randint(len(self.offline), (self.options.offline.num,), generator=generator)
        return [self._resampled(self.offline[index], policy, generator)]

    def _resampled(self, seen: SeenStates, policy: PolicyFunction, generator: torch.Generator) -> TrajectoryBatch:
        """Return a new trajectory into each of these states, drawn from the backward policy that is trained."""
        conditioning = self.task.sample_conditioning(len(seen), generator=generator)
        asked = policy if self.context.backward_types else None
        again = sample_backward(
            self.context, seen.terminal, conditioning=conditioning, generator=generator, policy=asked
        )
        return self._rewarded(again, seen.scores)

    def _with_state_rewards(self, trajectories: TrajectoryBatch, scorer: StepScorer) -> TrajectoryBatch:
        """Return the trajectories with the log-reward of every state on the way on which Stop is legal, 0 of others."""
        states, owner = trajectories.states, trajectories.trajectory
        stop = self.context.env.forward_masks(states).masks[GraphActionType.Stop].flatten(1).any(1)
        steps = stop.nonzero().squeeze(1)
        first, twin = distinct(states[steps], torch.zeros(len(steps), 1))
        scores = scorer.scores(states[steps[first]])[twin]
        conditioning = Conditioning(trajectories.conditioning[owner[steps]], trajectories.beta[owner[steps]])
        log_reward = torch.zeros(len(states)).index_put((steps,), self._log_reward(scores, conditioning))
        return trajectories.with_state_rewards(log_reward)

    def _rewarded(self, trajectories: TrajectoryBatch, scores: Tensor) -> TrajectoryBatch:
        conditioning = Conditioning(trajectories.conditioning, trajectories.beta)
        return trajectories.with_rewards(self._log_reward(scores, conditioning))

    def _log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        log_reward = self.task.log_reward(scores, conditioning)
        wrong = (~log_reward.isfinite()).nonzero().squeeze(1).tolist()
        if wrong:
            score = ", ".join(f"{value:g}" for value in scores[wrong[0]].reshape(-1).tolist())
            name = type(self.task).__name__
            raise UserError(
                f"{name}.log_reward: expected a finite number for the score {score}, got {log_reward[wrong[0]]}"
            )
        return log_reward

    def _generator(self, step: int, *stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self.seed, step, *stream))
