"""How a backward policy with heads of its own is learned, beside the objective that uses it.

`learned` has no loss of its own: the gradient of the objective reaches it. The others do not feel the objective; each
is the minimum of a loss over what is known of the steps. Letters: B trajectories, U steps that can be undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.mdp.trajectory import Origin


@dataclass(frozen=True)
class UndoneSteps:
    """What a backward policy says about the steps s -> s' of B trajectories, those of each one in order."""

    log_prob: Tensor  # [U] log P_B(s | s')
    log_ways: Tensor  # [U] log-normaliser of the backward logits in s'
    trajectory: Tensor  # [U], ascending
    origin: Tensor  # [B] int8, an Origin


def maximum_entropy(steps: UndoneSteps) -> Tensor:
    """Return the loss whose minimum has P_B(s | s') = n(s) / n(s') with n the number of ways from the initial state.

    That P_B makes all trajectories into a state equally likely (Mohammadpour et al. 2024, Maximum entropy GFlowNets
    with soft Q-learning): log n(s) = -log P_B(tau | s) for each trajectory tau into s. The loss is the mean square of
    the difference: path consistency (Nachum et al. 2017, Bridging the gap between value and policy based reinforcement
    learning) of the reversed process without rewards, between each state and the initial one. Soft Q-learning, one
    step at a time, takes long to carry what is known of the first states to the last (docs/experiments.md).
    """
    log_prob = steps.log_prob.double()  # float32 would lose a step among the sum of those of all trajectories
    so_far = log_prob.cumsum(0)
    begins = torch.searchsorted(steps.trajectory, steps.trajectory)  # the first step of the same trajectory
    log_way = so_far - (so_far - log_prob)[begins]
    # A mean that is 0, not NaN, where no step can be undone.
    return (steps.log_ways + log_way).square().sum().to(steps.log_prob) / max(len(log_way), 1)


def trajectory_likelihood(steps: UndoneSteps) -> Tensor:
    """Return -log P_B(tau | x), averaged over the forward policy's own trajectories (TLM, Gritsaev et al. 2025)."""
    return _unlikelihood(steps, steps.origin == int(Origin.SAMPLED))


def pessimistic(steps: UndoneSteps) -> Tensor:
    """Return -log P_B(tau | x), averaged over all trajectories that were ever sampled (Jang et al. 2024).

    What was not seen gets no flow. Trajectories that P_B itself has drawn tell nothing; `replay.resample=false` replays
    those that were seen.
    """
    return _unlikelihood(steps, steps.origin != int(Origin.RESAMPLED))


def _unlikelihood(steps: UndoneSteps, counts: Tensor) -> Tensor:
    """Return the mean of -log P_B(tau | x) over the trajectories that count [B]; 0 where none does."""
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
# Beside an objective in square nats. What P_B is learned from goes on pulling at the network they share when the
# balance is nearly met: the likelihoods by the noise of their samples, maximum entropy by what it has not learned yet.
# Larger weights slow the objective down, smaller ones P_B (docs/experiments.md).
BACKWARD_WEIGHTS = {"maxent": 0.1, "tlm": 0.002, "pessimistic": 0.002}
