"""Rollouts under a known reward function, for tests and benchmarks of the learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.sampler import Exploration, sample_forward
from gflownet.learning.source import Rollout
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates


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
        policy: the sampling policy, with its current weights.
        log_reward: log-rewards [B] of B terminal states.
        conditioning: draws the conditioning of a batch.
        generator: of conditioning and actions.
        exploration: temperature and uniform actions; None: neither.
    """
    exploration = exploration or Exploration()
    while True:
        batch_conditioning = conditioning(generator)
        batch = sample_forward(
            context,
            policy,
            conditioning=batch_conditioning,
            generator=generator,
            random_action_prob=exploration.random_action_prob,
            temperature=exploration.temperature,
        )
        yield Rollout(batch.with_rewards(log_reward(batch.terminal, batch_conditioning)), len(batch), ())
