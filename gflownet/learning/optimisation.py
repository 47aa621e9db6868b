"""The optimiser and learning-rate schedule of policy and objective from the options under `opt`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch.nn.utils import get_total_norm

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


def advance(schedule: torch.optim.lr_scheduler.LambdaLR) -> None:
    """Set the learning rates of the next step, also after a skipped first step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of")
        schedule.step()


def restore_schedule(schedule: torch.optim.lr_scheduler.LambdaLR, state: dict[str, Any]) -> None:
    """Restore a schedule after its optimiser; a resumed run may have other learning rates than the checkpoint."""
    rates = schedule.base_lrs
    schedule.load_state_dict(state)
    schedule.base_lrs = rates
    for group, rate, factor in zip(schedule.optimizer.param_groups, rates, schedule.lr_lambdas, strict=True):
        group["lr"] = rate * factor(schedule.last_epoch)


def differentiate(loss: Loss, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Accumulate the gradient of a loss in the parameters of an optimiser and return its metrics.

    Raises:
        FloatingPointError: the loss or its gradient is not finite.
    """
    value = float(loss.value.detach())
    if not math.isfinite(value):
        raise FloatingPointError(f"expected a finite loss, got {value}")
    loss.value.backward()
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    norm = float(get_total_norm([each.grad for each in parameters if each.grad is not None]))
    if not math.isfinite(norm):
        raise FloatingPointError(f"expected a gradient with a finite norm, got {norm}")
    return dict(loss.metrics)
