"""Losses that train a backward policy with heads of its network, in addition to the objective.

`learned` has no separate loss: the gradient of the objective trains it. The others get no gradient from the objective,
only from the loss here. Letters: B trajectories, U backward steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.mdp.trajectory import Origin


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
