"""Relative trajectory balance (Venkatraman et al. 2024): sampling from a prior policy, tilted by the reward."""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.answer import ask
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch, moved
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.log_partition import LogPartition, estimated_log_partition
from gflownet.objectives.regression import REGRESSIONS
from gflownet.objectives.steps import StepReader, Steps
from gflownet.objectives.trajectory_balance import total_loss


class RelativeTrajectoryBalance(Objective):
    """Regression to zero of log Z + log P_F(tau) - log R(x) - log P_prior(tau) (eq. 8): p(x) ~ R(x) p_prior(x).

    Both policies go forward, so there are no backward policy and no symmetries to correct. The prior is uniform over
    legal actions, or a frozen policy given as `prior`.
    """

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig, *, prior: Policy | None = None) -> None:
        super().__init__()
        self.context = context
        self.reader = StepReader(context, config)
        self.regression = REGRESSIONS[config.regression]
        self.log_z = LogPartition(context.num_cond_dim, learning_rate=config.tb.Z_learning_rate)
        self.prior = None if prior is None else prior.requires_grad_(False)

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean penalty."""
        steps = self.reader.read(policy, trajectories)
        log_z = self.log_z(trajectories.conditioning)
        balance = self.regression(self._log_ratio(steps, trajectories) + log_z).mean()
        return total_loss(balance, steps, {"log_Z": float(log_z.detach().mean())})

    @torch.no_grad()
    def prepare(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> None:
        """Start log Z at the estimate of a first batch."""
        log_ratio = self._log_ratio(self.reader.read(policy, trajectories), trajectories)
        self.log_z.base.copy_(estimated_log_partition(log_ratio, trajectories.conditioning))

    def parameter_groups(self) -> list[dict]:
        """Return log Z with its own learning rate."""
        return self.log_z.parameter_groups()

    def log_partition(self, policy: PolicyFunction, conditioning: Tensor) -> Tensor:
        """Return the learned log of the sum of R(x) p_prior(x), [B]."""
        return self.log_z(conditioning)

    def _log_ratio(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return log P_F(tau) - log P_prior(tau) - log R(x), [B]."""
        log_reward = trajectories.log_reward.to(steps.log_reward)
        log_prior = self._log_prior(steps, trajectories)
        log_forward = steps.answer.log_prob(trajectories.actions)
        return steps.sum_by_trajectory(log_forward - log_prior) - log_reward

    @torch.no_grad()
    def _log_prior(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return the prior's log-probability of every step, [S]."""
        if self.prior is None:
            return -steps.answer.categorical.log_n_actions()
        device = steps.log_reward.device
        shown = trajectories.conditioning[trajectories.trajectory]
        prior = self.prior

        def ask_prior(batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
            return prior(moved(batch, device), conditioning.to(device))

        return ask(self.context, ask_prior, trajectories.states, shown).log_prob(trajectories.actions)
