"""Search with a surrogate and a policy that samples in proportion to acquisition^beta, trained on predictions alone.

Letters: B trajectories, C conditioning features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.data.source import Rollout
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OBJECTIVES
from gflownet.search.history import ProposalOrigin
from gflownet.search.method import SearchSetup
from gflownet.search.proposals import LogValues
from gflownet.search.surrogate_search import SurrogateSearch
from gflownet.training.random_states import seeded
from gflownet.training.steps import map_tensors
from gflownet.workers.process import stream_seed

BATCH_SIZE = 16  # trajectories of an update: half of the policy, half into the best candidates
_HALF = BATCH_SIZE // 2
_NUM_SAMPLED = 256  # trajectories of each half that are sampled together: more cost little more
_RANDOM_ACTION_PROB = 0.05
# Log-rewards are at most 0 and at least this: acquisitions of hopeless candidates differ by thousands.
_LOG_RANGE = -50.0
# Random streams of a sampling.
_FORWARD, _BACKWARD, _CHOICE = range(3)

Generators = Callable[[int, int], torch.Generator]  # (sampling, stream) -> its random generator


class Rewards:
    """Log-rewards beta * (log acquisition - maximum) of terminal states, each predicted once."""

    def __init__(self, env: Environment, log_values: LogValues, *, beta: float, maximum: float) -> None:
        self._env, self._log_values, self._beta, self._maximum = env, log_values, beta, maximum
        self._known: dict[int, float] = {}  # by code

    def __call__(self, states: GraphStates) -> Tensor:
        """Return the log-rewards of terminal states, [B] float32."""
        codes = self._env.identify(states).tolist()
        new = {code: position for position, code in enumerate(codes) if code not in self._known}
        if new:
            values = self._log_values(states[torch.tensor(list(new.values()))])
            self._known.update(zip(new, self.of_values(values).tolist(), strict=True))
        return torch.tensor([self._known[code] for code in codes])

    def of_values(self, log_values: Tensor) -> Tensor:
        """Return the log-rewards of log acquisitions."""
        return (self._beta * (log_values - self._maximum)).clamp(min=_LOG_RANGE)


class AmortisedPolicy:
    """A policy of the run's options, trained further in every round of a search."""

    def __init__(self, context: GraphBuildingEnvContext, build_learner: Callable[[], Learner], *, seed: int) -> None:
        self.context, self.num_updates = context, 0
        with seeded(seed % 2**32):  # of numpy, too
            self.learner = build_learner()

    def train(
        self,
        num_updates: int,
        rewards: Rewards,
        best: GraphStates,
        generators: Generators,
        sampled: TrajectoryBatch | None = None,
    ) -> Iterator[None]:
        """Take at least `num_updates` optimiser steps, in pieces: each yield follows one step or the samples of many.

        Trajectories are sampled together, by the policy and into the best candidates, and learned from in small
        batches.

        Args:
            num_updates: optimiser steps.
            rewards: of terminal states.
            best: candidates into which backward trajectories are sampled; may be empty.
            generators: of each sampling.
            sampled: trajectories of the policy for the first sampling; None: sampled.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        options, last = self.learner.options, self.num_updates + num_updates
        for sampling in count():
            left = math.ceil((last - self.num_updates) / (options.num_updates * self.learner.objective.num_epochs))
            if left <= 0:
                return
            num = min(_NUM_SAMPLED, left * _HALF)
            streams = lambda stream, sampling=sampling: generators(sampling, stream)  # noqa: E731
            forward = self._forward(num, streams(_FORWARD)) if sampled is None else sampled.part(0, num)
            sampled = None
            batches = [forward.with_rewards(rewards(forward.terminal))]
            yield
            if len(best):
                backward = self._backward(best, len(forward), streams)
                batches.append(backward.with_rewards(rewards(backward.terminal)))
                yield
            for start in range(0, min(left * _HALF, len(forward)), _HALF):
                self._update(TrajectoryBatch.cat([each.part(start, start + _HALF) for each in batches]))
                yield

    def sample(self, num: int, generator: torch.Generator) -> TrajectoryBatch:
        """Return `num` trajectories, without exploration and rewards."""
        return sample_forward(
            self.context, self.learner.sampling, conditioning=self.conditioning(num), generator=generator
        )

    def conditioning(self, num: int) -> Conditioning:
        """Return the constant conditioning: the target is the same for all trajectories."""
        return Conditioning(torch.zeros(num, self.context.num_cond_dim), torch.ones(num))

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser and schedule."""
        return {"learner": self.learner.state_dict(), "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.learner.load_state_dict(state["learner"])
        self.num_updates = state["num_updates"]

    def _update(self, batch: TrajectoryBatch) -> None:
        if not self.num_updates:
            self.learner.objective.prepare(self.learner.trained, batch)
        self.learner.learn(Rollout(batch, len(batch), ()))
        self.num_updates += self.learner.options.num_updates * self.learner.objective.num_epochs

    def _forward(self, num: int, generator: torch.Generator) -> TrajectoryBatch:
        return sample_forward(
            self.context,
            self.learner.sampling,
            conditioning=self.conditioning(num),
            generator=generator,
            random_action_prob=_RANDOM_ACTION_PROB,
        )

    def _backward(self, best: GraphStates, num: int, generators: Callable[[int], torch.Generator]) -> TrajectoryBatch:
        index = torch.randint(len(best), (num,), generator=generators(_CHOICE))
        return sample_backward(
            self.context,
            best[index],
            conditioning=self.conditioning(num),
            generator=generators(_BACKWARD),
            policy=self.learner.sampling if self.context.backward_types else None,
        )


# Random streams of a call or a round, and of the weights; after those of the base class.
_SAMPLES, _CANDIDATES, _UPDATE, _WEIGHTS = range(10, 14)
_NUM_BEST = 64  # candidates into which backward trajectories are sampled
_MAX_CAUGHT_UP = 32  # evaluations whose updates are due at once


class SurrogateGFlowNet(SurrogateSearch):
    """Candidates are mutations and samples of a policy trained on R(x) = acquisition(x)^beta.

    The policy starts from the weights of the last round. A space that is small enough to score as a whole needs none.
    """

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self.policy: AmortisedPolicy | None = None
        self._num_due = 0  # updates between this round and the next
        self._sampled: TrajectoryBatch | None = None  # by the policy for the last proposal
        self._sampled_call = 0  # that sampled them; 0: none since the last update
        self._before: dict[str, Any] | None = None  # state of the policy before work that is not done
        if self.space is None:
            seed = stream_seed(setup.seed, _WEIGHTS)
            self.policy = AmortisedPolicy(setup.context, setup.build_learner, seed=seed)

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

    def samples(self, call: int) -> GraphStates:
        """Return samples of the policy; random architectures before its first update."""
        if self.policy is None or not self.policy.num_updates:
            return self.random_states(call)
        self._sampled_call, self._sampled = call, self._sampled_at(call, self.policy)
        return self._sampled.terminal

    @property
    def samples_origin(self) -> ProposalOrigin:
        is_trained = self.policy is not None and self.policy.num_updates
        return ProposalOrigin.POLICY if is_trained else ProposalOrigin.RANDOM

    def learn(self, round: int) -> Mapping[str, float]:
        if self.policy is None:
            return {}
        if not self.calibration.is_worse_than_mean:
            self._num_due = self._num_updates(self.policy)
        return {"policy_updates": float(self.policy.num_updates)}

    def work(self, round: int) -> Iterator[None]:
        """Train the policy on the acquisition, on its last samples and on trajectories into the best candidates."""
        yield from super().work(round)
        if self.policy is None or not self._num_due:
            return
        self._before = map_tensors(torch.Tensor.clone, self.policy.state_dict())
        yield from self._training(self.policy, round)
        self._num_due, self._sampled_call, self._sampled, self._before = 0, 0, None, None

    def _training(self, policy: AmortisedPolicy, round: int) -> Iterator[None]:
        generator = self.setup.generator(round, _CANDIDATES)
        best = self.best_of_pool(_NUM_BEST)
        if best is None:
            best = self.evolved_pool(round, generator).best(_NUM_BEST).states
        yield
        if not len(best):
            return
        values = self.log_values(best, generator)
        yield
        sampled = self._sampled
        if sampled is None and self._sampled_call:  # of a checkpoint
            sampled = self._sampled_at(self._sampled_call, policy)
        rewards = Rewards(
            self.env,
            lambda states: self.log_values(states, generator),
            beta=self.config.acquisition.beta,
            maximum=float(values.max()),
        )
        yield from policy.train(
            self._num_due, rewards, best, lambda *stream: self.setup.generator(round, _UPDATE, *stream), sampled=sampled
        )

    def state_dict(self) -> dict[str, Any]:
        policy = self._before or (None if self.policy is None else self.policy.state_dict())
        return {**super().state_dict(), "policy": policy, "num_due": self._num_due, "sampled_call": self._sampled_call}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_due, self._sampled_call = state["num_due"], state["sampled_call"]
        self._sampled, self._before = None, None
        if self.policy is not None:
            self.policy.load_state_dict(state["policy"])

    def _sampled_at(self, call: int, policy: AmortisedPolicy) -> TrajectoryBatch:
        return policy.sample(self.config.proposals.num_sampled, self.setup.generator(call, _SAMPLES))

    def _num_updates(self, policy: AmortisedPolicy) -> int:
        """Return the updates that are due after a round."""
        if self.config.proposals.num_updates is not None:
            return self.config.proposals.num_updates
        rate = self.config.proposals.updates_per_evaluation
        evaluations = min(len(self.history), policy.num_updates / max(rate, 1e-9) + _MAX_CAUGHT_UP)
        return max(round(rate * evaluations) - policy.num_updates, 0)
