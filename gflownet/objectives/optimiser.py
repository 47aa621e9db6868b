"""The optimiser of policy and objective from the options under `opt`: kinds, Muon, learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gflownet.objectives.base import Loss
from gflownet.objectives.config import OptimizerConfig
from gflownet.optimisers import SGD, Adam, AdamW

_ADAM_BETA2 = 0.999  # Kingma and Ba 2015, algorithm 1
# Narrower matrices are small embedding tables or heads, for which orthogonalised steps work badly.
_MIN_WIDTH = 16

# (step, number of steps of the run, options) -> factor of the learning rate.
Schedule = Callable[[int, int, OptimizerConfig], float]


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


SCHEDULES: dict[str, Schedule] = {"halving": _halving, "linear": _linear, "cosine": _cosine, "constant": _constant}


def make_schedule(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, *, num_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the schedule of all learning rates over a run of `num_steps`, after a linear warm-up."""
    factor = SCHEDULES[config.schedule]

    def warmed_up(step: int) -> float:
        warmup = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
        return warmup * factor(step, num_steps, config)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, warmed_up)


class MuonWithAdam(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024: momentum, orthogonalised) on matrices at least 16 wide and high, Adam on the rest.

    Steps of matrices are scaled to the size of Adam's (Liu et al. 2025, Muon is scalable for LLM training, eq. 4), so
    one learning rate fits both.
    """

    def __init__(
        self, groups: list[dict], *, lr: float, weight_decay: float, betas: tuple[float, float], eps: float
    ) -> None:
        """Split each group into matrices and other parameters.

        Args:
            groups: parameter groups; a group's own learning rate and weight decay win.
            lr: learning rate.
            weight_decay: decoupled for matrices (AdamW's), in the gradient for the rest (Adam's).
            betas: of Adam; the first is also the momentum of Muon.
            eps: of Adam.
        """
        split = [(group, [], []) for group in groups]
        for group, matrices, remainder in split:
            for parameter in group["params"]:
                (matrices if _is_matrix(parameter) else remainder).append(parameter)
        matrix_groups = [{**group, "params": matrices} for group, matrices, _ in split if matrices]
        other_groups = [{**group, "params": remainder} for group, _, remainder in split if remainder]
        self._parts: list[torch.optim.Optimizer] = []
        if matrix_groups:
            muon = partial(torch.optim.Muon, momentum=betas[0], adjust_lr_fn="match_rms_adamw")
            self._parts.append(muon(matrix_groups, lr=lr, weight_decay=weight_decay))
        if other_groups:
            adam = partial(torch.optim.Adam, betas=betas, eps=eps, fused=True)
            self._parts.append(adam(other_groups, lr=lr, weight_decay=weight_decay))
        super().__init__(self._groups(), {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step of both optimisers."""
        assert closure is None, "the gradients are there"
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both optimisers."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self._groups()

    def _groups(self) -> list[dict]:
        """Return the groups of both optimisers (not copies), so that a schedule changes both."""
        return [group for part in self._parts for group in part.param_groups]


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and min(parameter.shape) >= _MIN_WIDTH
