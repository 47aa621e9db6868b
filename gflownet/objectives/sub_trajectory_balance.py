"""Sub-trajectory balance (Madan et al. 2023) over all sub-trajectories at once.

Letters: B trajectories, S steps, T maximum number of states of a trajectory, the terminal one included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.state_flows import StateFlowObjective
from gflownet.objectives.steps import Steps
from gflownet.objectives.trajectory_balance import total_loss


class SubTrajectoryBalance(StateFlowObjective):
    """Regression to zero of log F(s_i) P_F(s_i..s_j) - log F(s_j) P_B(s_i..s_j) for all i < j, weighted lambda^(j - i).

    The weights sum to one within each trajectory (eq. 8). lambda = 0 is detailed balance within trajectories; a large
    lambda is trajectory balance with F(s0) for Z.
    """

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        super().__init__(context, config)
        self.decay = config.subtb.decay

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the weighted mean loss."""
        steps = self.reader.read(policy, trajectories)
        log_flow = self.log_flow(steps, trajectories)
        potential, num_states = _potentials(log_flow, steps)
        imbalance = potential[:, :, None] - potential[:, None, :]  # [B, T, T] from i to j
        weight = self._weights(num_states, potential.shape[1])
        # Entries without weight are set to 0: the gradient of the loss need not be finite there.
        penalty = self.regression(torch.where(weight > 0, imbalance, 0.0))
        balance = (weight * penalty).sum()
        return total_loss(balance, steps, {"log_Z": float(log_flow[steps.first].detach().mean())})

    def _weights(self, num_states: Tensor, max_states: int) -> Tensor:
        """Return the weight of every sub-trajectory, [B, T, T], from state i (rows) to state j > i; their sum is 1."""
        position = torch.arange(max_states, device=num_states.device)
        num_steps = position[None, :] - position[:, None]
        inside = (num_steps > 0) & (position[None, None, :] < num_states[:, None, None])
        # Divide by the largest power, a common factor, so that no power of lambda overflows.
        largest = num_states - 1 if self.decay > 1 else torch.ones_like(num_states)
        power = (num_steps - largest[:, None, None]).double()
        weight = torch.where(inside, self.decay ** torch.where(inside, power, 0.0), 0.0)
        return (weight / (weight.sum((1, 2), keepdim=True) * len(num_states))).float()


class ForwardLookingSubTrajectoryBalance(SubTrajectoryBalance):
    """Sub-trajectory balance with log F(s) = network output + log R(s) where Stop is legal (Pan et al. 2023)."""

    needs_state_rewards = True
    supports_teacher = False
    looks_forward = True


def _potentials(log_flow: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """Return log F(s_t) - sum over the steps before t of log P_F - log P_B, [B, T], and the number of states, [B].

    The imbalance of a sub-trajectory is the difference between its two ends. The last state is the terminal one.
    """
    order = steps.trajectory.argsort(stable=True)
    num_steps = torch.bincount(steps.trajectory, minlength=steps.num_trajectories)
    first = num_steps.cumsum(0) - num_steps
    row = steps.trajectory[order]
    column = torch.arange(len(order), device=order.device) - first[row]
    shape = (steps.num_trajectories, int(num_steps.max()) + 1)
    flows, ratios = log_flow.new_zeros(shape), log_flow.new_zeros(shape)
    flows = flows.index_put((row, column), log_flow[order])
    rows = torch.arange(len(num_steps), device=order.device)
    flows = flows.index_put((rows, num_steps), steps.log_reward.to(flows))
    ratios = ratios.index_put((row, column + 1), (steps.log_forward - steps.log_backward)[order])
    return flows - ratios.cumsum(1), num_steps + 1
