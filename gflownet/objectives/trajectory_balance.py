"""Trajectory balance (Malkin et al. 2022, eq. 14), with the symmetry correction of graphs whose nodes have no names.

Letters: B trajectories, S steps, C conditioning.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.answer import AnswersBothWays, ask, ask_both
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.config import AlgoConfig

_WIDTH = 64  # of the small network that makes log Z a function of the conditioning


class TrajectoryBalance(Objective):
    """Squared difference of log Z + log P_F(tau) and log R(x) + log P_B(tau | x).

    Actions are counted labelled on both sides, so what balances is p(x) |Aut(x)| / |Aut(s0)|, and log R(x) is raised by
    log |Aut(x)| - log |Aut(s0)| (Symmetry-Aware GFlowNets, ICML 2025); without `correct_symmetries`, p(x) ~ R / |Aut|.
    """

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        super().__init__()
        self.context = context
        self.correct_symmetries = config.correct_symmetries
        self.learned_backward = config.backward_policy == "learned"
        self.learning_rate = config.tb.Z_learning_rate
        self.log_z_base = nn.Parameter(torch.zeros(()))
        last = nn.Linear(_WIDTH, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.log_z_shape = nn.Sequential(nn.Linear(context.num_cond_dim, _WIDTH), nn.SiLU(), last)

    def log_z(self, conditioning: Tensor) -> Tensor:
        """Return the learned log-partition under each conditioning, [B]."""
        return self.log_z_base + self.log_z_shape(conditioning).squeeze(1)

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean squared imbalance; a NaN reward (one not filled in) gives a NaN loss."""
        balance = self._forward_minus_backward(policy, trajectories)
        log_z = self.log_z(trajectories.conditioning.to(balance.device))
        value = (balance + log_z).square().mean()
        return Loss(value, {"loss": float(value.detach()), "log_Z": float(log_z.detach().mean())})

    @torch.no_grad()
    def prepare(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> None:
        """Start log Z at the value that balances a first batch on average (the estimate of VarGrad)."""
        self.log_z_base.copy_(-self._forward_minus_backward(policy, trajectories).mean())

    def parameter_groups(self) -> list[dict]:
        """Return log Z with its own learning rate."""
        return [{"params": list(self.parameters()), "lr": self.learning_rate, "weight_decay": 0.0}]

    def _forward_minus_backward(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Tensor:
        """Return log P_F(tau) - log P_B(tau | x) - log R(x) of each trajectory, [B], where the policy answers."""
        steps = trajectories.trajectory
        log_forward, log_backward = self._log_probs(policy, trajectories)
        log_reward = trajectories.log_reward
        if self.correct_symmetries:
            log_reward = log_reward + trajectories.log_symmetry
        ratio = log_forward - log_backward.to(log_forward)
        return (-log_reward).to(ratio).index_add(0, steps.to(ratio.device), ratio)

    def _log_probs(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> tuple[Tensor, Tensor]:
        """Return log P_F and log P_B of every step, [S] each, from one evaluation of the policy."""
        shown = trajectories.conditioning[trajectories.trajectory]
        if not self.learned_backward:
            answer = ask(self.context, policy, trajectories.states, shown)
            return answer.log_prob(trajectories.actions), trajectories.log_backward
        answer = ask_both(self.context, cast(AnswersBothWays, policy), trajectories.states, shown)
        log_forward = answer.log_prob(trajectories.actions)
        # Where a step led to is the state of its successor; nothing leads back from behind Stop.
        step, successor = trajectories.successors()
        undo = ActionBatch(*(torch.zeros_like(x) for x in trajectories.backward.parts))
        for mine, theirs in zip(undo.parts, trajectories.backward.parts, strict=True):
            mine[successor] = theirs[step]
        log_backward = answer.backward_log_prob(undo)[successor.to(log_forward.device)]
        return log_forward, torch.zeros_like(log_forward).index_put((step.to(log_forward.device),), log_backward)
