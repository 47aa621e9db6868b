"""The optimiser and learning-rate schedule of policy and objective from the options under `opt`."""

from __future__ import annotations

import math

import torch

from gflownet.objectives.base import Loss
from gflownet.objectives.config import OptimizerConfig
from gflownet.training.optimisers import OptimiserOptions, build_optimiser
from gflownet.training.schedules import Schedule


def make_optimizer(groups: list[dict], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimiser of parameter groups; settings of a group take precedence."""
    options = OptimiserOptions(
        config.opt,
        config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        epsilon=config.adam_eps,
        companion="adam",
    )
    return build_optimiser(groups, options)


def make_schedule(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, *, num_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the schedule of all learning rates over a run of `num_steps`, after a linear warm-up."""
    schedule = Schedule.named(config.schedule, constant=config.constant_share)

    def factor(step: int) -> float:
        warmup = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
        halving = config.schedule == "halving"
        return warmup * (2 ** (-step / config.lr_decay) if halving else schedule.factor(step / num_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def differentiate(loss: Loss) -> dict[str, float]:
    """Accumulate the gradient of a loss in its parameters and return its metrics.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    value = float(loss.value.detach())
    if not math.isfinite(value):
        raise FloatingPointError(f"expected a finite loss, got {value}")
    loss.value.backward()
    return dict(loss.metrics)
