"""GFlowNets as entropy-regularised reinforcement learning (Tiapkin et al. 2024): soft Q-learning, and Munchausen's.

The reward of a step is log P_B, that of Stop is log R(x); the optimal soft value of a state is its log-flow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.answer import Answer
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss
from gflownet.objectives.state_flows import FlowObjective
from gflownet.objectives.trajectory_balance import total_loss


class SoftQ(FlowObjective):
    """Regression of Q(s, a) to log P_B(s | s') + V(s') with V the logsumexp of Q, which carries no gradient.

    The policy's logits, plus one learned offset, are Q.
    """

    munchausen = 0.0
    lowest_log_policy = 0.0

    @property
    def entropy_weight(self) -> float:
        """Return the entropy weight with the same optimal policy as weight 1 without Munchausen's term.

        Munchausen's term is an entropy bonus of alpha times that weight (Vieillard et al. 2020, theorem 1).
        """
        return 1 / (1 - self.munchausen)

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean loss of a step."""
        steps = self.reader.read(policy, trajectories)
        value = self.log_flow(steps, trajectories)
        reward = steps.log_reward[steps.trajectory].index_put((steps.step,), steps.log_backward[steps.step])
        bonus = steps.log_forward.detach().clamp(min=self.lowest_log_policy) * self.munchausen * self.entropy_weight
        follows = torch.zeros_like(value).index_put((steps.step,), value.detach()[steps.successor])
        q_value = self.entropy_weight * steps.log_forward + value
        balance = self.regression(q_value - (reward + bonus + follows)).mean()
        return total_loss(balance, steps, {"log_Z": float(value[steps.first].detach().mean())})

    def read_flow(self, outputs: Answer) -> Tensor:
        """Return the soft values of the states."""
        return self.entropy_weight * outputs.categorical.logsumexp()


class Munchausen(SoftQ):
    """Soft Q-learning with alpha log pi(a | s) added to the reward, with a lower bound (Vieillard et al. 2020)."""

    munchausen = 0.15
    lowest_log_policy = -25.0
