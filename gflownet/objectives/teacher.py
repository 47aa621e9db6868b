"""The reward of the adaptive teacher: the imbalance of a trajectory under the student (Kim et al. 2025).

The paper is "Adaptive teachers for amortized samplers" (ICLR). Its published code, alstn12088/adaptive-teacher, takes
one more logarithm: log(1.001 + (1 + C [delta > 0]) delta^2) R^alpha. Letters: B trajectories.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import TeacherConfig
from gflownet.objectives.steps import StepReader
from gflownet.objectives.trajectory_balance import vargrad_log_partition

SMOOTHING = 1e-3  # epsilon of the reward: keeps the log-reward of balanced trajectories finite


@torch.no_grad()
def imbalance(
    reader: StepReader, objective: Objective, student: PolicyFunction, trajectories: TrajectoryBatch
) -> Tensor:
    """Return delta = log R(x) + log P_B(tau | x) - log Z - log P_F(tau) of the student, [B]; > 0 if sampled too rarely.

    log Z is the learned one of the student's objective, the flow through the initial state, or VarGrad's estimate if
    the objective learns neither. Symmetries are counted as in the student's objective.
    """
    ratio = reader.read(student, trajectories).log_ratio()
    limit = trajectories.terminal.limit
    log_z = objective.log_partition(student, trajectories.conditioning.to(ratio.device), limit)
    if log_z is None:
        log_z = vargrad_log_partition(ratio, trajectories.conditioning)
    return -(ratio + log_z)


def teacher_log_reward(delta: Tensor, log_reward: Tensor, config: TeacherConfig) -> Tensor:
    """Return log(epsilon + (1 + C [delta > 0]) delta^2) + alpha log R(x), [B]."""
    weight = torch.where(delta > 0, 1 + config.weight, 1.0)
    return (SMOOTHING + weight * delta.square()).log() + config.mixing * log_reward.to(delta)
