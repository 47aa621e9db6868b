"""Maximum likelihood on backward trajectories of given graphs (Zhang et al. 2022, section 3.1)."""

from __future__ import annotations

import torch

from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.trajectory_balance import total_loss


class MaxLikelihood(Objective):
    """-log P_F(tau) of trajectories drawn backwards from given graphs: p(x) approaches the frequency of x among them.

    Trajectories sampled forwards are ignored. No symmetry correction is needed: P_B draws the labelled trajectories of
    all forms of a graph.
    """

    imitates = True
    samples_reward = False
    backward_policies = ("uniform", "maxent", "tlm", "pessimistic")

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean over the trajectories not sampled forwards, in nats; 0 if there are none."""
        steps = self.reader.read(policy, trajectories)
        counts = (trajectories.origin != int(Origin.SAMPLED)).to(steps.log_reward.device)
        unlikelihood = -steps.sum_by_trajectory(steps.log_forward)
        value = torch.where(counts, unlikelihood, 0.0).sum() / counts.sum().clamp(min=1)
        return total_loss(value, steps, {})
