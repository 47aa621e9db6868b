"""Reinforcement-learning baselines: they maximise the log-reward, with an entropy bonus for exploration."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.steps import StepReader, Steps

_SMALLEST_DEVIATION = 1e-6  # lower bound of the standard deviation of advantages
ENTROPY_WEIGHT, VALUE_WEIGHT = 0.01, 0.5  # of the policy's entropy, and of the value function's loss
# Of ppo: largest distance of the probability ratio from 1, and optimiser steps per batch of trajectories.
CLIP, NUM_EPOCHS = 0.2, 4


class ActorCritic(Objective):
    """A policy-gradient loss; the scalar output of the policy network is the value function.

    Replayed and other off-policy trajectories are ignored: their gradient would be biased.
    """

    is_on_policy = True
    samples_reward = False
    backward_policies = ("uniform",)
    symmetries = ("reward", "none")  # rewards are never scaled

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        super().__init__(context, config)
        self.reader = StepReader(context, AlgoConfig(symmetry="none"))

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return actor's and critic's loss, averaged over the steps of sampled trajectories; 0 without any."""
        steps = self.reader.read(policy, trajectories)
        counts = (trajectories.origin == int(Origin.SAMPLED)).to(steps.trajectory.device)[steps.trajectory]
        final = steps.log_reward[steps.trajectory]  # no intermediate rewards, no discount
        value = steps.outputs.numbers
        actor = self.actor_loss(steps, trajectories, (final - value).detach(), counts)
        entropy = steps.outputs.categorical.entropy()
        per_step = actor + VALUE_WEIGHT * (value - final).square() - ENTROPY_WEIGHT * entropy
        total = torch.where(counts, per_step, 0.0).sum() / counts.sum().clamp(min=1)
        return Loss(total, {"loss": float(total.detach()), "entropy": float(entropy.detach().mean())})

    @abstractmethod
    def actor_loss(self, steps: Steps, trajectories: TrajectoryBatch, advantage: Tensor, counts: Tensor) -> Tensor:
        """Return the loss of each step's action [S] from its advantage [S]; `counts` [S] masks the averaged steps."""


class AdvantageActorCritic(ActorCritic):
    """-log pi(a | s) times the advantage (A2C, Mnih et al. 2016)."""

    def actor_loss(self, steps: Steps, trajectories: TrajectoryBatch, advantage: Tensor, counts: Tensor) -> Tensor:
        """Return the policy-gradient loss."""
        return -steps.log_forward * advantage


class ProximalPolicyOptimization(ActorCritic):
    """The clipped surrogate loss (PPO, Schulman et al. 2017, eq. 7), several optimiser steps per batch."""

    num_epochs = NUM_EPOCHS

    @torch.no_grad()
    def annotated(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> TrajectoryBatch:
        """Return the trajectories with the log-probabilities of their actions before the first epoch."""
        log_forward = self.reader.read(policy, trajectories).log_forward
        return trajectories.with_log_forward(log_forward.to(trajectories.log_backward))

    def actor_loss(self, steps: Steps, trajectories: TrajectoryBatch, advantage: Tensor, counts: Tensor) -> Tensor:
        """Return the clipped surrogate loss, of advantages normalised to standard deviation 1."""
        counted = advantage[counts]
        if len(counted) > 1:
            advantage = (advantage - counted.mean()) / counted.std().clamp(min=_SMALLEST_DEVIATION)
        ratio = (steps.log_forward - trajectories.log_forward.to(steps.log_forward)).exp()
        bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
        return -torch.minimum(ratio * advantage, bounded * advantage)
