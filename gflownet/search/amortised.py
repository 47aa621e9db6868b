"""A policy that samples architectures in proportion to acquisition^beta, trained on predictions alone.

Letters: B trajectories, C conditioning features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.data.source import Rollout
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.search.proposals import LogValues
from gflownet.training.random_states import seeded

BATCH_SIZE = 16  # trajectories of an update: half of the policy, half into the best candidates
_HALF = BATCH_SIZE // 2
_NUM_SAMPLED = 256  # trajectories of each half that are sampled together: more cost little more
_RANDOM_ACTION_PROB = 0.05
# Log-rewards are at most 0 and at least this: acquisitions of hopeless candidates differ by thousands.
_LOG_RANGE = -50.0
_MIN_UPDATES = 2  # of a round
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


def updates_within(*, overhead: float, evaluation_s: float, used_s: float, update_s: float, maximum: int) -> int:
    """Return the number of updates that keep the own work within a share of the evaluation seconds.

    Args:
        overhead: seconds of own work per second of evaluation; inf: no bound.
        evaluation_s: of all evaluations so far.
        used_s: own work so far.
        update_s: of an update; 0: unknown, for the first round.
        maximum: of a round, and its number where nothing bounds it.
    """
    if math.isinf(overhead):
        return maximum
    allowed = int((overhead * evaluation_s - used_s) / update_s) if update_s > 0 else 0
    return min(maximum, max(_MIN_UPDATES, allowed))
