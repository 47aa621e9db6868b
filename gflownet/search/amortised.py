"""A policy that samples architectures in proportion to acquisition^beta, trained on predictions alone.

Letters: B trajectories, C conditioning features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from gflownet.random_states import seeded
from gflownet.search.proposals import LogValues

BATCH_SIZE = 64  # trajectories of an update: half of the policy, half into the best candidates
_RANDOM_ACTION_PROB = 0.05
# Log-rewards are at most 0 and at least this: acquisitions of hopeless candidates differ by thousands.
_LOG_RANGE = -50.0
_MIN_UPDATES = 2  # of a round
# Random streams of an update.
_FORWARD, _BACKWARD, _CHOICE = range(3)

Generators = Callable[[int, int], torch.Generator]  # (update, stream) -> its random generator


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

    def train(self, num_updates: int, rewards: Rewards, best: GraphStates, generators: Generators) -> None:
        """Take optimiser steps on new trajectories of the policy, and on backward ones from the best candidates.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        for update in range(num_updates):
            batch = self._trajectories(rewards, best, lambda stream, update=update: generators(update, stream))
            if not self.num_updates:
                self.learner.objective.prepare(self.learner.trained, batch)
            self.learner.learn(Rollout(batch, len(batch), ()))
            self.num_updates += 1

    def sample(self, num: int, generator: torch.Generator) -> GraphStates:
        """Return `num` terminal states, without exploration."""
        return sample_forward(
            self.context, self.learner.sampling, conditioning=self.conditioning(num), generator=generator
        ).terminal

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

    def _trajectories(
        self, rewards: Rewards, best: GraphStates, generator: Callable[[int], torch.Generator]
    ) -> TrajectoryBatch:
        num_backward = BATCH_SIZE // 2 if len(best) else 0
        batches = [
            sample_forward(
                self.context,
                self.learner.sampling,
                conditioning=self.conditioning(BATCH_SIZE - num_backward),
                generator=generator(_FORWARD),
                random_action_prob=_RANDOM_ACTION_PROB,
            )
        ]
        if num_backward:
            index = torch.randint(len(best), (num_backward,), generator=generator(_CHOICE))
            batches.append(
                sample_backward(
                    self.context,
                    best[index],
                    conditioning=self.conditioning(num_backward),
                    generator=generator(_BACKWARD),
                    policy=self.learner.sampling if self.context.backward_types else None,
                )
            )
        batch = TrajectoryBatch.cat(batches)
        return batch.with_rewards(rewards(batch.terminal))


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
