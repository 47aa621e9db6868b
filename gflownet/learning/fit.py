"""The one training loop: of the trainer, of benchmarks and of tests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from gflownet.data.sampler import Exploration, sample_forward
from gflownet.data.source import Rollout
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective


@dataclass(frozen=True)
class TrainingStep:
    """One training step, after it was taken."""

    number: int  # from 1 on
    rollout: Rollout
    metrics: Mapping[str, float] = field(default_factory=dict)


class Auxiliary(Protocol):
    """Networks trained with the policy on the same trajectories."""

    def learn(
        self, policy: PolicyFunction, objective: Objective, trajectories: TrajectoryBatch, *, is_first: bool
    ) -> dict[str, float]:
        """Take their optimiser steps on a batch, and return their metrics."""
        ...


def fit(
    learner: Learner,
    rollouts: Iterable[Rollout],
    *,
    num_steps: int,
    first_step: int = 1,
    auxiliary: Auxiliary | None = None,
) -> Generator[TrainingStep]:
    """Yield each training step from `first_step` to `num_steps` after it was taken.

    A rollout is asked for when the step before it was consumed, so that a caller may stop between two steps.

    Raises:
        FloatingPointError: a loss is not finite; the message names the step.
    """
    for number, rollout in zip(range(first_step, num_steps + 1), rollouts):  # noqa: B905 (rollouts never end)
        batch, is_first = rollout.trajectories, number == 1
        if is_first:
            learner.objective.prepare(learner.trained, batch)
        try:
            beside = auxiliary.learn(learner.trained, learner.objective, batch, is_first=is_first) if auxiliary else {}
            metrics = learner.learn(rollout)
        except FloatingPointError as error:
            raise FloatingPointError(f"step {number}: {error}") from error
        yield TrainingStep(number, rollout, {**metrics, **beside})


def sampled_rollouts(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    *,
    log_reward: Callable[[GraphStates, Conditioning], Tensor],
    conditioning: Callable[[torch.Generator], Conditioning],
    generator: torch.Generator,
    exploration: Exploration | None = None,
) -> Iterator[Rollout]:
    """Yield batches of on-policy trajectories under a known reward function, without end.

    Args:
        context: of the environment.
        policy: samples, with the weights of the moment.
        log_reward: log-rewards [B] of B terminal states.
        conditioning: draws what the trajectories of a batch are conditioned on.
        generator: draws conditioning and actions.
        exploration: how the policy is softened to sample; none if not given.
    """
    exploration = exploration or Exploration()
    while True:
        batch = sample_forward(
            context,
            policy,
            conditioning=(given := conditioning(generator)),
            generator=generator,
            random_action_prob=exploration.random_action_prob,
            temperature=exploration.temperature,
        )
        yield Rollout(batch.with_rewards(log_reward(batch.terminal, given)), len(batch), ())
