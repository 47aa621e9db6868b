"""The optimiser of policy and objective from the options under `opt`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.objectives.base import Loss
from gflownet.objectives.config import OptimizerConfig
from gflownet.objectives.muon import MuonWithAdam
from gflownet.optimisers import SGD, Adam, AdamW

_ADAM_BETA2 = 0.999  # Kingma and Ba 2015, algorithm 1


def make_optimizer(groups: list[dict], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimiser of parameter groups; settings of a group take precedence."""
    shared = {"lr": config.learning_rate, "weight_decay": config.weight_decay, "fused": True}
    if config.opt == "sgd":
        return SGD(groups, momentum=config.momentum, **shared)
    betas = config.momentum, _ADAM_BETA2
    if config.opt == "muon":
        return MuonWithAdam(
            groups, lr=config.learning_rate, weight_decay=config.weight_decay, betas=betas, eps=config.adam_eps
        )
    kind = {"adam": Adam, "adamw": AdamW}[config.opt]
    return kind(groups, betas=betas, eps=config.adam_eps, **shared)


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


def clip_gradients(parameters: Sequence[Tensor], config: OptimizerConfig) -> None:
    """Clip the gradients of all parameters by `clip_grad_type`."""
    if config.clip_grad_type == "norm":
        torch.nn.utils.clip_grad_norm_(parameters, config.clip_grad_param)
    elif config.clip_grad_type == "value":
        torch.nn.utils.clip_grad_value_(parameters, config.clip_grad_param)
