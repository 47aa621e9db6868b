"""Reinforcement-learning baselines: they seek the highest log-reward, and explore by an entropy bonus only."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.steps import StepReader, Steps

_SMALLEST_DEVIATION = 1e-6  # of advantages, so that equal ones are not divided by zero


class ActorCritic(Objective):
    """A policy-gradient loss with the policy's number of a state as value function.

    Trajectories that the policy has not just sampled are left out: their gradient would be biased.
    """

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        super().__init__()
        if config.backward_policy != "uniform":
            raise UserError(
                f"algo.backward_policy: expected uniform, {config.method} knows none, got {config.backward_policy}"
            )
        self.reader = StepReader(context, AlgoConfig(symmetry="none"))  # nothing else of the options is read
        self.options = config.actor_critic

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return actor's and critic's loss, averaged over the steps of sampled trajectories, 0 if there are none."""
        steps = self.reader.read(policy, trajectories)
        counts = (trajectories.origin == int(Origin.SAMPLED)).to(steps.trajectory.device)[steps.trajectory]
        final = steps.log_reward[steps.trajectory]  # nothing is earned on the way, nothing discounted
        value = steps.answer.numbers
        actor = self.actor_loss(steps, trajectories, (final - value).detach(), counts)
        entropy = steps.answer.categorical.entropy()
        per_step = actor + self.options.value_weight * (value - final).square() - self.options.entropy * entropy
        total = torch.where(counts, per_step, 0.0).sum() / counts.sum().clamp(min=1)
        return Loss(total, {"loss": float(total.detach()), "entropy": float(entropy.detach().mean())})

    @abstractmethod
    def actor_loss(self, steps: Steps, trajectories: TrajectoryBatch, advantage: Tensor, counts: Tensor) -> Tensor:
        """Return the loss of every step's action [S], given its advantage [S]; `counts` [S] says which are averaged."""


class AdvantageActorCritic(ActorCritic):
    """-log pi(a | s) times the advantage (A2C, Mnih et al. 2016)."""

    def actor_loss(self, steps: Steps, trajectories: TrajectoryBatch, advantage: Tensor, counts: Tensor) -> Tensor:
        """Return the policy-gradient loss."""
        return -steps.log_forward * advantage


class ProximalPolicyOptimization(ActorCritic):
    """The clipped surrogate loss (PPO, Schulman et al. 2017, eq. 7), several optimiser steps per batch."""

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        super().__init__(context, config)
        self.num_epochs = config.actor_critic.num_epochs

    @torch.no_grad()
    def annotated(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> TrajectoryBatch:
        """Return the trajectories with the log-probabilities of their actions before the first of the epochs."""
        log_forward = self.reader.read(policy, trajectories).log_forward
        return trajectories.with_log_forward(log_forward.to(trajectories.log_backward))

    def actor_loss(self, steps: Steps, trajectories: TrajectoryBatch, advantage: Tensor, counts: Tensor) -> Tensor:
        """Return the clipped surrogate loss, of advantages scaled to a deviation of one."""
        counted = advantage[counts]
        if len(counted) > 1:
            advantage = (advantage - counted.mean()) / counted.std().clamp(min=_SMALLEST_DEVIATION)
        ratio = (steps.log_forward - trajectories.log_forward.to(steps.log_forward)).exp()
        bounded = ratio.clamp(1 - self.options.clip, 1 + self.options.clip)
        return -torch.minimum(ratio * advantage, bounded * advantage)
