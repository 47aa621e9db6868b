"""Relative trajectory balance (Venkatraman et al. 2024): sample a prior policy reweighted by the reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from gflownet.mdp.answer import ask
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch, moved
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.steps import Steps
from gflownet.objectives.trajectory_balance import LearnedLogPartition


class RelativeTrajectoryBalance(LearnedLogPartition):
    """Regression to zero of log Z + log P_F(tau) - log R(x) - log P_prior(tau) (eq. 8): p(x) ~ R(x) p_prior(x).

    Both policies are forward policies: no backward policy and no symmetry correction. The prior is uniform over legal
    actions, or the frozen policy of the run `algo.relative.prior`.
    """

    backward_policies = ("uniform", "maxent", "tlm", "pessimistic")

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig, *, prior: Policy | None = None) -> None:
        super().__init__(context, config)
        self.prior = None if prior is None else prior.requires_grad_(False)

    @classmethod
    def build(
        cls, context: GraphBuildingEnvContext, config: AlgoConfig, *, load_policy: Callable[[str, str], Policy]
    ) -> Self:
        """Return the objective with the prior policy of another run, where `algo.relative.prior` names one."""
        folder = config.relative.prior
        prior = load_policy(folder, "algo.relative.prior") if folder else None
        return cls(context, config, prior=prior)

    def log_ratio(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return log P_F(tau) - log P_prior(tau) - log R(x), [B]."""
        log_reward = trajectories.log_reward.to(steps.log_reward)
        log_prior = self._log_prior(steps, trajectories)
        log_forward = steps.outputs.log_prob(trajectories.actions)
        return steps.sum_by_trajectory(log_forward - log_prior) - log_reward

    def prior_policy(self, policy: PolicyFunction) -> PolicyFunction:
        """Return the frozen prior, or the uniform distribution over legal actions."""

        def evaluate(batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
            if self.prior is None:
                categorical, scalars = policy(batch, conditioning)
                return categorical.mixed(1.0), scalars
            device = self.log_z.base.device
            return self.prior(moved(batch, device), conditioning.to(device))

        return evaluate

    @torch.no_grad()
    def _log_prior(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return the prior's log-probability of each step, [S]."""
        if self.prior is None:
            return -steps.outputs.categorical.log_n_actions()
        conditioning = trajectories.conditioning[trajectories.trajectory]
        prior = self.prior_policy(self.prior)
        return ask(self.context, prior, trajectories.states, conditioning).log_prob(trajectories.actions)
