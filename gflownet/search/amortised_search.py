"""Search with a surrogate and a policy that samples in proportion to acquisition^beta, trained on predictions alone.

Letters: B trajectories, C conditioning features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner
from gflownet.learning.sampler import sample_backward, sample_forward
from gflownet.learning.source import Rollout
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OBJECTIVES
from gflownet.search.history import ProposalOrigin
from gflownet.search.method import Candidates, SearchSetup
from gflownet.search.proposals import origin_of
from gflownet.search.surrogate_search import NUM_SAMPLED, SurrogateSearch
from gflownet.training.random_states import seeded
from gflownet.training.steps import map_tensors
from gflownet.workers.process import Stream, stream_seed

BATCH_SIZE = 16  # trajectories of an update: half of the policy, half into the best candidates
_NUM_SAMPLED = 256  # trajectories of each kind that are sampled together: more cost little more
_RANDOM_ACTION_PROB = 0.05
# Log-rewards are at most 0 and at least this: acquisitions of hopeless candidates differ by thousands.
LOG_RANGE = -50.0

Generators = Callable[[int, int], torch.Generator]  # (sampling, stream) -> its random generator
Predict = Callable[[GraphStates], Tensor]  # terminal states [B] -> predictions [B] or [B, K], float64


class PredictedOnce:
    """Predictions for terminal states, each architecture predicted once."""

    def __init__(self, env: Environment, predict: Predict, known: Mapping[int, Tensor] | None = None) -> None:
        """`known` has the predictions of an interrupted training, by code."""
        self._env, self._predict = env, predict
        self.known: dict[int, Tensor] = {**(known or {})}

    def __call__(self, states: GraphStates) -> Tensor:
        """Return the predictions for terminal states, [B] or [B, K]."""
        codes = self._env.identify(states).tolist()
        new = {code: position for position, code in enumerate(codes) if code not in self.known}
        if new:
            values = self._predict(states[torch.tensor(list(new.values()))])
            self.known.update(zip(new, values, strict=True))
        return torch.stack([self.known[code] for code in codes])


class Target(Protocol):
    """The conditions under which a policy is trained, and its rewards under each."""

    def conditioning(self, num: int, generator: torch.Generator) -> Conditioning:
        """Return the conditions of `num` trajectories."""
        ...

    def best(self, conditioning: Conditioning, generator: torch.Generator) -> GraphStates:
        """Return a terminal state with a large reward for each condition, [B]; [0] where none are known."""
        ...

    def log_reward(self, states: GraphStates, conditioning: Conditioning) -> Tensor:
        """Return the log-rewards of terminal states under their conditions, [B] float32."""
        ...


@dataclass(frozen=True)
class AcquisitionTarget:
    """Log-rewards beta * (log acquisition - maximum), without conditions."""

    num_cond_dim: int
    candidates: GraphStates  # into which trajectories are sampled; may be none
    log_values: Predict
    beta: float
    maximum: float

    def conditioning(self, num: int, generator: torch.Generator) -> Conditioning:
        return no_conditioning(num, self.num_cond_dim)

    def best(self, conditioning: Conditioning, generator: torch.Generator) -> GraphStates:
        if not len(self.candidates):
            return self.candidates
        return self.candidates[torch.randint(len(self.candidates), (len(conditioning.beta),), generator=generator)]

    def log_reward(self, states: GraphStates, conditioning: Conditioning) -> Tensor:
        return (self.beta * (self.log_values(states) - self.maximum)).clamp(min=LOG_RANGE).float()


def no_conditioning(num: int, num_cond_dim: int) -> Conditioning:
    """Return the constant conditioning: the target is the same for all trajectories."""
    return Conditioning(torch.zeros(num, num_cond_dim), torch.ones(num))


class AmortisedPolicy:
    """A policy trained on predictions, in one or several rounds.

    Attributes:
        sampled: the last trajectories of the policy in training, with their rewards; None before the first ones.
        num_samplings: those of `train` from which all updates are taken.
    """

    def __init__(self, context: GraphBuildingEnvContext, learner: Learner) -> None:
        self.context, self.learner, self.num_updates, self.num_samplings = context, learner, 0, 0
        self.sampled: TrajectoryBatch | None = None

    def train(
        self, num_updates: int, target: Target, generators: Generators, *, first: int = 0
    ) -> Generator[Mapping[str, float]]:
        """Take at least `num_updates` optimiser steps, and yield the metrics of each; empty ones after a sampling.

        Trajectories are sampled together, by the policy and into good candidates, and learned from in small batches.
        An objective that imitates learns only from the latter, one that learns on-policy only from the former.

        Args:
            num_updates: optimiser steps.
            target: conditions and rewards.
            generators: of each sampling.
            first: number of the first sampling.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        options, objective, last = self.learner.options, self.learner.objective, self.num_updates + num_updates
        size = BATCH_SIZE if objective.imitates or objective.is_on_policy else BATCH_SIZE // 2
        for sampling in count(first):
            left = math.ceil((last - self.num_updates) / (options.num_updates * objective.num_epochs))
            if left <= 0:
                return
            num, batches = min(_NUM_SAMPLED, left * size), list[TrajectoryBatch]()
            streams = partial(generators, sampling)
            if not objective.imitates:
                self.sampled = self._forward(num, target, streams)
                batches = [self.sampled]
                yield {}
            if not objective.is_on_policy and (backward := self._backward(num, target, streams)) is not None:
                batches.append(backward)
                yield {}
            starts = range(0, min(left * size, len(batches[0])), size)
            for start in starts:
                metrics = self._update(TrajectoryBatch.cat([each.part(start, start + size) for each in batches]))
                self.num_samplings = sampling + (start == starts[-1])
                yield metrics

    def sample(self, conditioning: Conditioning, generator: torch.Generator) -> TrajectoryBatch:
        """Return a trajectory for each condition, without exploration and rewards."""
        return sample_forward(self.context, self.learner.sampling, conditioning=conditioning, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser, schedule and counts."""
        counts = {"num_updates": self.num_updates, "num_samplings": self.num_samplings}
        return {"learner": self.learner.state_dict(), **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.learner.load_state_dict(state["learner"])
        self.num_updates, self.num_samplings = state["num_updates"], state["num_samplings"]

    def _update(self, batch: TrajectoryBatch) -> Mapping[str, float]:
        metrics = self.learner.learn(Rollout(batch, len(batch), ()))
        self.num_updates += self.learner.options.num_updates * self.learner.objective.num_epochs
        return metrics

    def _forward(self, num: int, target: Target, generators: Callable[[int], torch.Generator]) -> TrajectoryBatch:
        conditioning = target.conditioning(num, generators(Stream.CONDITIONING))
        options: dict[str, Any] = {"generator": generators(Stream.FORWARD), "random_action_prob": _RANDOM_ACTION_PROB}
        batch = sample_forward(self.context, self.learner.sampling, conditioning=conditioning, **options)
        return batch.with_rewards(target.log_reward(batch.terminal, conditioning))

    def _backward(
        self, num: int, target: Target, generators: Callable[[int], torch.Generator]
    ) -> TrajectoryBatch | None:
        conditioning = target.conditioning(num, generators(Stream.BACKWARD_CONDITIONING))
        best, is_learned = target.best(conditioning, generators(Stream.CHOICE)), self.context.backward_types
        if not len(best):
            return None
        policy = self.learner.sampling if is_learned and not self.learner.objective.imitates else None
        batch = sample_backward(
            self.context, best, conditioning=conditioning, generator=generators(Stream.BACKWARD), policy=policy
        )
        return batch.with_rewards(target.log_reward(batch.terminal, conditioning))


_NUM_BEST = 64  # candidates into which backward trajectories are sampled
_MAX_CAUGHT_UP = 32  # evaluations whose updates are due at once


class SurrogateGFlowNet(SurrogateSearch):
    """Candidates are mutations and samples of a policy trained on R(x) = acquisition(x)^beta.

    The policy starts from the weights of the last round.
    """

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self._num_learned = 0  # architectures of the history at the end of the last work
        with seeded(stream_seed(setup.seed, Stream.WEIGHTS) % 2**32):  # of numpy, too
            self.policy = AmortisedPolicy(setup.context, setup.build_learner())

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise UserError for objectives that need other data."""
        super().check_config(config)
        objective = OBJECTIVES.load(config.algo.method)
        if not objective.samples_reward or objective.is_on_policy:
            raise UserError(
                "algo.method: expected an objective that samples in proportion to rewards and learns off-policy with "
                f"search.method=surrogate_gflownet, such as tb, got {config.algo.method}"
            )

    def propose(self, call: int, num: int) -> Candidates:
        """Return up to `num` unknown terminal states; none before the updates that are due, if nothing is in flight."""
        if self._has_work and not self.history.in_flight:
            return Candidates(self.env.initial_states(0))
        return super().propose(call, num)

    def samples(self, call: int) -> Candidates:
        """Return samples of the policy; random architectures before its first update."""
        if not self.policy.num_updates:
            return super().samples(call)
        conditioning = no_conditioning(NUM_SAMPLED, self.setup.context.num_cond_dim)
        states = self.policy.sample(conditioning, self.setup.generator(call, Stream.POLICY_SAMPLES)).terminal
        return Candidates(states, origin_of((ProposalOrigin.POLICY, len(states))))

    def policy_metrics(self) -> Mapping[str, float]:
        return {"policy_updates": float(self.policy.num_updates)}

    def work(self, round: int) -> Generator[Mapping[str, float]]:
        """Train the policy on the acquisition, on its samples and on trajectories into the best candidates."""
        if not self._has_work:
            return
        before = map_tensors(torch.Tensor.clone, self.policy.state_dict())
        try:
            yield from self._training(round)
        except GeneratorExit:  # a resumed run repeats it
            self.policy.load_state_dict(before)
            raise
        self._num_learned = len(self.history)

    @property
    def _has_work(self) -> bool:
        return self._num_fitted > 0 and self._num_learned < len(self.history)

    def _training(self, round: int) -> Generator[Mapping[str, float]]:
        if self.calibration.is_worse_than_mean:
            return
        generator = self.setup.generator(round, Stream.TARGET)
        best = self.best_of_pool(_NUM_BEST)
        if best is None:
            best = self.evolved_pool(round, generator).best(_NUM_BEST).states
        yield {}
        if not len(best):
            return
        values = self.log_values(best)
        yield {}
        target = AcquisitionTarget(
            self.setup.context.num_cond_dim,
            best,
            PredictedOnce(self.env, self.log_values),
            beta=self.config.acquisition.beta,
            maximum=float(values.max()),
        )
        for _ in self.policy.train(self._num_updates(), target, partial(self.setup.generator, round, Stream.UPDATES)):
            yield {}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "policy": self.policy.state_dict(), "num_learned": self._num_learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_learned = state["num_learned"]
        self.policy.load_state_dict(state["policy"])

    def _num_updates(self) -> int:
        """Return the updates that are due after a round."""
        rate, num = self.config.proposals.updates_per_evaluation, self.policy.num_updates
        return round(rate * min(len(self.history), num / max(rate, 1e-9) + _MAX_CAUGHT_UP)) - num
