"""The optimiser of a candidate: flat parameters, learning-rate schedule, clipping, averaged weights, and its state.

Updating dozens of small tensors as one saves a sixth of the training time of a small model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gflownet.evaluation.config import EvaluationConfig
from gflownet.optimisers import SGD, Adam, AdamW, eager

_ADAM_BETA2 = 0.999  # Kingma and Ba 2015, algorithm 1
# Muon orthogonalises matrices that are at least this wide and high, as the policy's optimiser.
_MIN_MUON_WIDTH = 16
# First and last learning rate of one_cycle, as shares of the largest one (torch.optim.lr_scheduler.OneCycleLR).
_FIRST_RATE, _LAST_RATE = 1 / 25, 1 / 250_000


def rate_factor(schedule: str, done: float, *, warmup: float) -> float:
    """Return the factor of the learning rate at a share of the training in [0, 1]."""
    if schedule == "constant":
        return 1.0
    done = min(done, 1.0)
    if done < warmup:
        rising = done / warmup
        return rising if schedule == "cosine" else _half_cosine(_FIRST_RATE, 1.0, rising)
    last = 0.0 if schedule == "cosine" else _LAST_RATE
    return _half_cosine(1.0, last, (done - warmup) / (1 - warmup))


def schedule_rate(optimiser: torch.optim.Optimizer, config: EvaluationConfig, *, step: int, num_steps: int) -> None:
    """Set the learning rate of a step, counted from 0."""
    if config.training.schedule == "constant":
        return
    factor = rate_factor(config.training.schedule, (step + 0.5) / num_steps, warmup=config.training.warmup)
    for group in optimiser.param_groups:
        group["lr"] = config.learning_rate * factor


def restore_optimiser(optimiser: torch.optim.Optimizer, state: Mapping[int, Any]) -> None:
    """Give an optimiser a copy of its state by number of the parameter."""
    optimiser.load_state_dict({**optimiser.state_dict(), "state": copy.deepcopy(state)})


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


class Optimisation:
    """Steps of one training: the parameters and gradients of the model become views of flat tensors."""

    def __init__(
        self, model: nn.Module, config: EvaluationConfig, *, num_steps: int, state: dict[str, Any] | None = None
    ) -> None:
        """Start, or continue from a state.

        Args:
            model: its parameters share one dtype and device.
            config: options of the training.
            num_steps: of the whole training, for the schedule.
            state: result of `state_dict`; the model has the weights of that time, except for averaged ones.
        """
        self._evaluation, self._config, self._num_steps = config, config.training, num_steps
        self.step_number = 0  # steps done
        matrices, decayed, other = _grouped(model, config)
        self._flats = [_flattened(group) for group in (matrices, decayed, other) if group]
        self._optimisers = _optimisers(self._flats, config, matrices=matrices, has_decay=bool(decayed))
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._averages = [tensor.clone() for tensor in self._tensors] if self._config.average else []
        if state is not None:
            self._restore(state)

    def zero_grad(self) -> None:
        """Set the gradients to zero; they stay views of the flat tensors."""
        for flat in self._flats:
            assert flat.grad is not None
            flat.grad.zero_()

    def step(self) -> None:
        """Take one step with the gradients of the model."""
        if self._config.clip:
            self._clip()
        for optimiser in self._optimisers:
            schedule_rate(optimiser, self._evaluation, step=self.step_number, num_steps=self._num_steps)
            optimiser.step()
        self.step_number += 1
        if self._averages:
            # The first averages are short: the initial weights count little.
            decay = min(self._config.average, self.step_number / (self.step_number + 10))
            for average, tensor in zip(self._averages, self._tensors, strict=True):
                average.lerp_(tensor, 1 - decay)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Give the model its averaged weights inside the context; without averages, nothing changes."""
        if not self._averages:
            yield
            return
        weights = [tensor.clone() for tensor in self._tensors]
        self._set_tensors(self._averages)
        yield
        self._set_tensors(weights)

    def finish(self) -> list[Tensor]:
        """Leave the model with its averaged weights and return the others, with which a training continues."""
        if not self._averages:
            return []
        weights = [tensor.clone() for tensor in self._tensors]
        self._set_tensors(self._averages)
        return weights

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain containers; call it before `finish`."""
        return {
            "step": self.step_number,
            "optimisers": [optimiser.state_dict()["state"] for optimiser in self._optimisers],
            "weights": [tensor.clone() for tensor in self._tensors] if self._averages else [],
        }

    @property
    def _tensors(self) -> list[Tensor]:
        return [*(flat.detach() for flat in self._flats), *self._buffers]

    def _set_tensors(self, values: Sequence[Tensor]) -> None:
        for tensor, value in zip(self._tensors, values, strict=True):
            tensor.copy_(value)

    def _restore(self, state: dict[str, Any]) -> None:
        self.step_number = state["step"]
        for optimiser, values in zip(self._optimisers, state["optimisers"], strict=True):
            restore_optimiser(optimiser, values)
        if self._averages:  # the model has the averaged weights
            self._set_tensors(state["weights"])

    def _clip(self) -> None:
        gradients = [flat.grad for flat in self._flats if flat.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
        scale = (self._config.clip / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)


def _grouped(model: nn.Module, config: EvaluationConfig) -> tuple[list[nn.Parameter], ...]:
    """Return the trainable parameters: matrices of muon, others with weight decay, others without."""
    options = config.training
    groups: tuple[list[nn.Parameter], ...] = ([], [], [])
    norms = {id(p) for module in model.modules() if _is_norm(module) for p in module.parameters(recurse=False)}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        is_matrix = parameter.ndim >= 2 and id(parameter) not in norms
        width = min(len(parameter), parameter.numel() // len(parameter)) if is_matrix else 0
        if options.optimizer == "muon" and width >= _MIN_MUON_WIDTH:
            groups[0].append(parameter)
        else:
            groups[1 if options.weight_decay and is_matrix else 2].append(parameter)
    return groups


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__


def _flattened(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """Return one parameter that holds all others, which become views of it, as do their gradients."""
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values, gradient in zip(parameters, flat.data.split(sizes), flat.grad.split(sizes), strict=True):
        parameter.data = values.view_as(parameter)
        parameter.grad = gradient.view_as(parameter)
    return flat


def _optimisers(
    flats: Sequence[nn.Parameter], config: EvaluationConfig, *, matrices: Sequence[nn.Parameter], has_decay: bool
) -> list[torch.optim.Optimizer]:
    """Return the optimisers of the flat parameters in the order of `_grouped`."""
    rate, options = config.learning_rate, config.training
    rest, optimisers = list(flats), []
    if matrices:
        rest.pop(0)
        kind = eager(torch.optim.Muon)
        views = [_as_matrix(parameter) for parameter in matrices]
        settings = {"momentum": options.momentum, "weight_decay": options.weight_decay}
        optimisers.append(kind(views, lr=rate, adjust_lr_fn="match_rms_adamw", **settings))
    decays = [options.weight_decay] * has_decay + [0.0]
    groups = [{"params": [flat], "weight_decay": decay} for flat, decay in zip(rest, decays, strict=False)]
    if groups:
        optimisers.append(elementwise_optimiser(groups, config))
    return optimisers


def elementwise_optimiser(groups: Sequence[Any], config: EvaluationConfig) -> torch.optim.Optimizer:
    """Return Adam, AdamW (also for muon, whose matrices have an optimiser of their own) or SGD."""
    rate, options = config.learning_rate, config.training
    if options.optimizer == "sgd":
        return SGD(groups, lr=rate, momentum=options.momentum, nesterov=options.momentum > 0, fused=True)
    kind: Callable[..., torch.optim.Optimizer] = Adam if options.optimizer == "adam" else AdamW
    return kind(groups, lr=rate, betas=(options.momentum, _ADAM_BETA2), fused=True)


def _as_matrix(parameter: nn.Parameter) -> nn.Parameter:
    """Return a kernel as a matrix of its output channels that shares values and gradient."""
    assert parameter.grad is not None
    matrix = nn.Parameter(parameter.detach().view(len(parameter), -1))
    matrix.grad = parameter.grad.view(len(parameter), -1)
    return matrix
