"""Trajectory balance (Malkin et al. 2022, eq. 14) and its variant without a learned log Z (Zhang et al. 2023).

Letters: B trajectories, C conditioning.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.log_partition import LogPartition, estimated_log_partition
from gflownet.objectives.steps import Steps


class LearnedLogPartition(Objective):
    """Regression to zero of a log-ratio per trajectory plus a learned log Z."""

    uses_regression = True

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        super().__init__(context, config)
        self.log_z = LogPartition(context.num_cond_dim, learning_rate=config.tb.Z_learning_rate)

    @abstractmethod
    def log_ratio(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return the log-ratio of each trajectory, [B]; it is -log Z at the optimum."""

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean loss of a trajectory; an unknown reward (NaN) gives a NaN loss."""
        steps = self.reader.read(policy, trajectories)
        log_z = self.log_z(trajectories.conditioning)
        balance = self.regression(self.log_ratio(steps, trajectories) + log_z).mean()
        return total_loss(balance, steps, {"log_Z": float(log_z.detach().mean())})

    @torch.no_grad()
    def prepare(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> None:
        """Set log Z to its estimate from a first batch."""
        log_ratio = self.log_ratio(self.reader.read(policy, trajectories), trajectories)
        self.log_z.base.copy_(estimated_log_partition(log_ratio, trajectories.conditioning))

    def parameter_groups(self) -> list[dict]:
        """Return the parameters of log Z, with their own learning rate."""
        return self.log_z.parameter_groups()

    def log_partition(self, policy: PolicyFunction, conditioning: Tensor, limit: Tensor | None = None) -> Tensor:
        """Return the learned log Z, [B]."""
        return self.log_z(conditioning)


class TrajectoryBalance(LearnedLogPartition):
    """Regression to zero of log Z + log P_F(tau) - log R(x) - log P_B(tau | x)."""

    supports_teacher = True

    def log_ratio(self, steps: Steps, trajectories: TrajectoryBatch) -> Tensor:
        """Return log P_F(tau) - log P_B(tau | x) - log R(x), [B]."""
        return steps.log_ratio()


class VarGrad(Objective):
    """Trajectory balance with log Z estimated from the batch: the mean of log R + log P_B - log P_F.

    With the squared loss this is the log-variance of a batch (Richter et al. 2020, VarGrad; Zhang et al. 2023, Robust
    scheduling with GFlowNets, eq. 8). Trajectories with equal conditioning share their Z; the estimate is made per
    conditioning.
    """

    uses_regression = True
    supports_teacher = True
    compares = True

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean loss of the deviation from the estimated log Z, which has no gradient."""
        steps = self.reader.read(policy, trajectories)
        ratio = steps.log_ratio()
        log_z = vargrad_log_partition(ratio, trajectories.conditioning)
        balance = self.regression(ratio + log_z).mean()
        return total_loss(balance, steps, {"log_Z": float(log_z.mean())})


def vargrad_log_partition(ratio: Tensor, conditioning: Tensor) -> Tensor:
    """Return VarGrad's estimate of log Z under each conditioning [B, C], [B]: the mean of -`Steps.log_ratio` [B].

    Raises:
        UserError: all conditionings differ, so that the loss would be 0.
    """
    distinct, group = torch.unique(conditioning, dim=0, return_inverse=True)
    if len(distinct) == len(conditioning) > 1:
        raise UserError(
            "algo.method=vargrad: expected trajectories with equal conditioning, got only different ones; "
            "without cond.limit.metric, set cond.temperature.sample_dist=constant and cond.preferences.weights"
        )
    group = group.to(ratio.device)
    count = torch.bincount(group, minlength=len(distinct))
    return -(torch.zeros_like(count, dtype=ratio.dtype).index_add(0, group, ratio.detach()) / count)[group]


def total_loss(value: Tensor, steps: Steps, metrics: dict[str, float]) -> Loss:
    """Return an objective's loss plus the loss of the backward policy, with both as metrics."""
    metrics = {"loss": float(value.detach()), **metrics}
    if steps.backward_loss.requires_grad:
        metrics["backward_loss"] = float(steps.backward_loss.detach())
    return Loss(value + steps.backward_loss, metrics)
