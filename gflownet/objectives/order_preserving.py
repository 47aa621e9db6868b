"""Order-preserving GFlowNets (Chen and Mauch 2024): only the order of the rewards counts.

Letters: B trajectories.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.trajectory_balance import total_loss


class OrderPreserving(Objective):
    """Cross-entropy of the pairwise order of rewards under the learned log-rewards.

    The learned log-reward of a trajectory is log P_F(tau) - log P_B(tau | x), up to log Z, which cancels in a pair
    (eq. 4; labels of eq. 3: 1/2 for equal rewards). Only the order of rewards is used, so p(x) is not proportional to
    R(x), and noise in the scale of rewards has no effect. Pairs under different conditionings are not compared.
    """

    samples_reward = False
    compares = True

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean cross-entropy over pairs, in nats; 0 for a single trajectory.

        Raises:
            UserError: no two trajectories are under one conditioning.
        """
        steps = self.reader.read(policy, trajectories)
        learned = steps.log_ratio() + steps.log_reward  # log P_F - log P_B
        if self.reader.scales_rewards:
            learned = learned - trajectories.log_symmetry.to(learned)
        log_reward = trajectories.log_reward.to(learned)
        label = torch.heaviside(log_reward[:, None] - log_reward[None, :], log_reward.new_tensor(0.5))
        label = torch.where(log_reward.isnan()[:, None], torch.nan, label)  # an unknown reward gives a NaN loss
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(
            learned[:, None] - learned[None, :], label, reduction="none"
        )
        pairs = _pairs(trajectories.conditioning).to(entropy.device)
        if len(trajectories) > 1 and not bool(pairs.any()):
            raise UserError(
                "algo.method=order_preserving: expected trajectories with equal conditioning, got only different ones; "
                "without cond.limit.metric, set cond.temperature.sample_dist=constant and cond.preferences.weights"
            )
        value = torch.where(pairs, entropy, 0.0).sum() / pairs.sum().clamp(min=1)
        return total_loss(value, steps, {})


def _pairs(conditioning: Tensor) -> Tensor:
    """Return the mask of pairs of trajectories under one conditioning, [B, B] bool, each pair once."""
    _, group = torch.unique(conditioning, dim=0, return_inverse=True)
    return (group[:, None] == group[None, :]).triu(1)
