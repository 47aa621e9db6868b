"""log P_F and log P_B of every step of a batch of trajectories, shared by all objectives.

Letters: B trajectories, S steps, U steps followed by another step (all but Stop).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.answer import Answer, AnswersBothWays, ask, ask_both
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.equivalence import equivalent_actions, log_sum_by, num_parent_classes
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.backward import BACKWARD_LOSSES, BACKWARD_WEIGHTS, UndoneSteps
from gflownet.objectives.config import AlgoConfig


@dataclass(frozen=True)
class Steps:
    """Log-probabilities of the steps, on the policy's device, in the order of the batch."""

    outputs: Answer  # outputs for the state before each step
    trajectory: Tensor  # [S]
    step: Tensor  # [U] index of each step followed by another
    successor: Tensor  # [U] index of the step after it
    log_forward: Tensor  # [S] log P_F of each action
    log_backward: Tensor  # [S] log P_B of undoing it; 0 for Stop
    log_reward: Tensor  # [B] plus log |Aut(x)| / |Aut(s0)| if `symmetry` scales rewards
    backward_loss: Tensor  # scalar, loss of the backward policy

    @property
    def num_trajectories(self) -> int:
        """Return B."""
        return len(self.log_reward)

    @property
    def is_stop(self) -> Tensor:
        """Return the mask of Stop steps, [S] bool."""
        goes_on = torch.zeros(len(self.trajectory), dtype=torch.bool, device=self.trajectory.device)
        goes_on[self.step] = True
        return ~goes_on

    @property
    def first(self) -> Tensor:
        """Return the index of the first step of each trajectory, [B]."""
        follows = torch.zeros(len(self.trajectory), dtype=torch.bool, device=self.trajectory.device)
        follows[self.successor] = True
        steps = (~follows).nonzero().squeeze(1)
        return steps[self.trajectory[steps].argsort()]

    def sum_by_trajectory(self, values: Tensor) -> Tensor:
        """Return the sums [B] of a value per step [S]."""
        return values.new_zeros(self.num_trajectories).index_add(0, self.trajectory, values)

    def log_ratio(self) -> Tensor:
        """Return log P_F(tau) - log P_B(tau | x) - log R(x) of each trajectory, [B]."""
        return self.sum_by_trajectory(self.log_forward - self.log_backward) - self.log_reward


class StepReader:
    """Reads trajectories under one symmetry scheme and one backward policy."""

    def __init__(self, context: GraphBuildingEnvContext, config: AlgoConfig) -> None:
        self.context = context
        self.counts_classes = config.symmetry == "actions"
        self.scales_rewards = config.symmetry in ("reward", "flows")
        self.scales_flows = config.symmetry == "flows"
        self.learns_backward = config.backward_policy != "uniform"
        self.detaches_backward = config.backward_policy not in ("uniform", "learned")
        self.backward_loss = BACKWARD_LOSSES[config.backward_policy]
        self.backward_weight = BACKWARD_WEIGHTS.get(config.backward_policy, 1.0)

    def read(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Steps:
        """Return the log-probabilities of the steps, from one evaluation of the policy."""
        conditioning = trajectories.conditioning[trajectories.trajectory]
        if self.learns_backward:
            outputs = ask_both(self.context, cast(AnswersBothWays, policy), trajectories.states, conditioning)
        else:
            outputs = ask(self.context, policy, trajectories.states, conditioning)
        step, successor = trajectories.successors()
        log_forward = self._log_forward(outputs, trajectories)
        device = log_forward.device
        log_undo = self._log_undone(outputs, trajectories, step, successor)
        log_undone = (log_undo.detach() if self.detaches_backward else log_undo).to(log_forward.dtype)
        log_backward = torch.zeros_like(log_forward).index_put((step.to(device),), log_undone)
        return Steps(
            outputs=outputs,
            trajectory=trajectories.trajectory.to(device),
            step=step.to(device),
            successor=successor.to(device),
            log_forward=log_forward,
            log_backward=log_backward,
            log_reward=self.log_reward(trajectories).to(log_forward),
            backward_loss=self._backward_loss(outputs, trajectories, log_undo, step, successor),
        )

    def log_reward(self, trajectories: TrajectoryBatch) -> Tensor:
        """Return the log-rewards on the right side of the balance, [B]."""
        return trajectories.log_reward + trajectories.log_symmetry if self.scales_rewards else trajectories.log_reward

    def log_symmetries(self, outputs: Answer, trajectories: TrajectoryBatch) -> Tensor:
        """Return log |Aut(s)| - log |Aut(s0)| of the state before each step, [S] float32; `outputs` are from `read`."""
        env, states = self.context.env, trajectories.states
        counted = states if outputs.first is None else states[outputs.first]
        counts = torch.tensor(env.num_automorphisms(counted), dtype=torch.float64)
        symmetries = (counts.log() - math.log(env.num_initial_automorphisms)).float()
        return symmetries if outputs.owner is None else symmetries[outputs.owner]

    def _log_forward(self, outputs: Answer, trajectories: TrajectoryBatch) -> Tensor:
        """Return log P_F of each step, [S]."""
        if not self.counts_classes:
            return outputs.log_prob(trajectories.actions)
        same = equivalent_actions(self.context.env, trajectories.states, trajectories.actions)
        each = outputs.log_prob(same.actions, states=same.owner)
        return log_sum_by(same.owner.to(each.device), each, len(trajectories.actions))

    def _log_undone(self, outputs: Answer, trajectories: TrajectoryBatch, step: Tensor, successor: Tensor) -> Tensor:
        """Return log P_B of each step but Stop, [U], on the policy's device."""
        device = outputs.numbers.device
        if not self.learns_backward and not self.counts_classes:
            return trajectories.log_backward[step].to(outputs.numbers)
        after = trajectories.states[successor]
        if not self.learns_backward:
            return -num_parent_classes(self.context.env, after).to(outputs.numbers).log()
        undo = trajectories.backward[step]  # an action in the state after the step
        if not self.counts_classes:
            return outputs.backward_log_prob(undo, states=successor)
        same = equivalent_actions(self.context.env, after, undo, backward=True)
        each = outputs.backward_log_prob(same.actions, states=successor[same.owner])
        return log_sum_by(same.owner.to(device), each, len(step))

    def _backward_loss(
        self, outputs: Answer, trajectories: TrajectoryBatch, log_undo: Tensor, step: Tensor, successor: Tensor
    ) -> Tensor:
        if self.backward_loss is None or outputs.backward is None:
            return outputs.numbers.new_zeros(())
        device = log_undo.device
        steps = UndoneSteps(
            log_prob=log_undo,
            log_normaliser=outputs.log_ways()[successor.to(device)],
            trajectory=trajectories.trajectory[step].to(device),
            origin=trajectories.origin.to(device),
        )
        return self.backward_weight * self.backward_loss(steps)


def stops(num: int) -> ActionBatch:
    """Return Stop, `num` times."""
    zero = torch.zeros(num, dtype=torch.int64)
    return ActionBatch(zero + int(GraphActionType.Stop), zero, zero)
