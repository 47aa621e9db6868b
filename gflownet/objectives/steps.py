"""log P_F and log P_B of every step of a batch of trajectories, shared by all objectives, and losses of P_B.

Of the backward policies with heads of the network, `learned` has no separate loss: the gradient of the objective trains
it. The others get no gradient from the objective, only from their loss here. Actions that lead to isomorphic states are
summed where classes of graphs are counted.

Letters: B trajectories or states, S steps, U steps followed by another step (all but Stop), A actions, K equivalent
actions of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.answer import Answer, AnswersBothWays, ask, ask_both
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
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


@dataclass(frozen=True)
class UndoneSteps:
    """Log-probabilities of the backward steps s' -> s of B trajectories, in order within each trajectory."""

    log_prob: Tensor  # [U] log P_B(s | s')
    log_normaliser: Tensor  # [U] log-normaliser of the backward logits in s'
    trajectory: Tensor  # [U], ascending
    origin: Tensor  # [B] int8, an Origin


def maximum_entropy(steps: UndoneSteps) -> Tensor:
    """Return the loss with minimum P_B(s | s') = n(s) / n(s'), n the number of trajectories from the initial state.

    Under this P_B all trajectories into a state are equally likely (Mohammadpour et al. 2024, Maximum entropy GFlowNets
    with soft Q-learning): log n(s) = -log P_B(tau | s) for each trajectory tau into s. The loss is the mean square of
    the difference: path consistency (Nachum et al. 2017, Bridging the gap between value and policy based reinforcement
    learning) of the reversed process without rewards, between each state and the initial one. Soft Q-learning,
    one step at a time, propagates values from the first states to the last slowly (dev/experiments.md).
    """
    log_prob = steps.log_prob.double()  # float32 is too coarse for a cumulative sum over all trajectories
    so_far = log_prob.cumsum(0)
    begins = torch.searchsorted(steps.trajectory, steps.trajectory)  # the first step of the same trajectory
    log_path = so_far - (so_far - log_prob)[begins]
    # 0 instead of NaN without any backward step.
    return (steps.log_normaliser + log_path).square().sum().to(steps.log_prob) / max(len(log_path), 1)


def trajectory_likelihood(steps: UndoneSteps) -> Tensor:
    """Return -log P_B(tau | x), averaged over the forward policy's own trajectories (TLM, Gritsaev et al. 2025)."""
    return _unlikelihood(steps, steps.origin == int(Origin.SAMPLED))


def pessimistic(steps: UndoneSteps) -> Tensor:
    """Return -log P_B(tau | x), averaged over all trajectories sampled so far (Jang et al. 2024).

    Unseen trajectories get no flow. Trajectories drawn by P_B itself are ignored; with `replay.resample=false` the
    sampled ones are replayed.
    """
    return _unlikelihood(steps, steps.origin != int(Origin.RESAMPLED))


def _unlikelihood(steps: UndoneSteps, counts: Tensor) -> Tensor:
    """Return the mean of -log P_B(tau | x) over the trajectories of the mask [B]; 0 without any."""
    counted = counts[steps.trajectory]
    total = -torch.where(counted, steps.log_prob, 0.0).sum()
    return total / counts.sum().clamp(min=1)


BackwardLoss = Callable[[UndoneSteps], Tensor]
BACKWARD_LOSSES: dict[str, BackwardLoss | None] = {
    "uniform": None,
    "learned": None,
    "maxent": maximum_entropy,
    "tlm": trajectory_likelihood,
    "pessimistic": pessimistic,
}
# Weights relative to an objective in square nats. The gradients of these losses do not vanish when the objective is
# nearly 0, and they act on the same network: larger weights slow down the objective, smaller ones P_B
# (dev/experiments.md).
BACKWARD_WEIGHTS = {"maxent": 0.1, "tlm": 0.002, "pessimistic": 0.002}


@dataclass(frozen=True)
class Equivalents:
    """For every action the legal actions of its state into the same class, including itself."""

    owner: Tensor  # [K] int64, which of the A actions
    actions: ActionBatch  # K


def equivalent_actions(
    env: Environment, states: GraphStates, actions: ActionBatch, *, backward: bool = False
) -> Equivalents:
    """Return the equivalents of one action per state, forward or backward; Stop is only equivalent to itself."""
    masks = env.backward_masks(states) if backward else env.forward_masks(states)
    owner, candidates = masks.positions()
    # Equivalent actions have the same type and column: the same kind of node or edge, or the same value.
    same_type = (candidates.kind == actions.kind[owner]) & (candidates.column == actions.column[owner])
    owner, candidates = owner[same_type], candidates[same_type]
    reached = env.identify(env.apply(states, actions))
    same = env.identify(env.apply(states[owner], candidates)) == reached[owner]
    return Equivalents(owner[same], candidates[same])


def num_parent_classes(env: Environment, states: GraphStates) -> Tensor:
    """Return the number of parent classes of each state, [B] int64."""
    owner, actions = env.backward_masks(states).positions()
    parents = env.identify(env.apply(states[owner], actions))
    distinct = torch.unique(torch.stack([owner, parents], 1), dim=0)
    return torch.bincount(distinct[:, 0], minlength=len(states))


def log_sum_by(owner: Tensor, values: Tensor, num: int) -> Tensor:
    """Return the log-sum-exp of the values [K] of each owner, [num]; -inf for an owner without values."""
    highest = torch.full((num,), -torch.inf, dtype=values.dtype, device=values.device)
    highest = highest.scatter_reduce(0, owner, values.detach(), "amax")
    shift = torch.where(highest.isfinite(), highest, 0.0)
    total = torch.zeros_like(shift).index_add(0, owner, (values - shift[owner]).exp())
    return total.log() + shift
