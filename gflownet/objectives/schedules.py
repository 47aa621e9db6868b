"""Learning-rate schedules: factors of the base rate by training step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gflownet.objectives.config import OptimizerConfig

# (step, number of steps of the run, options) -> factor of the learning rate.
Schedule = Callable[[int, int, OptimizerConfig], float]


def _constant(step: int, num_steps: int, config: OptimizerConfig) -> float:
    return 1.0


def _halving(step: int, num_steps: int, config: OptimizerConfig) -> float:
    return 2 ** (-step / config.lr_decay)


def _linear(step: int, num_steps: int, config: OptimizerConfig) -> float:
    return 1 - _decay_progress(step, num_steps, config)


def _cosine(step: int, num_steps: int, config: OptimizerConfig) -> float:
    return 0.5 * (1 + math.cos(math.pi * _decay_progress(step, num_steps, config)))


def _decay_progress(step: int, num_steps: int, config: OptimizerConfig) -> float:
    """Return 0 during the constant share of the run, then a value that rises linearly to 1 at its end."""
    share = min(step / num_steps, 1.0)
    return max(0.0, (share - config.constant_share) / (1 - config.constant_share))


SCHEDULES: dict[str, Schedule] = {
    "halving": _halving,
    "linear": _linear,
    "cosine": _cosine,
    "constant": _constant,
}


def make_schedule(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, *, num_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the schedule of all learning rates over a run of `num_steps`, after a linear warm-up."""
    factor = SCHEDULES[config.schedule]

    def warmed_up(step: int) -> float:
        warmup = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
        return warmup * factor(step, num_steps, config)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, warmed_up)
