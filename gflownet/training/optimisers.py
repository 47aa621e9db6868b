"""Optimisers by name, and schedules of their learning rates.

Nothing here imports torch._dynamo, which takes as long as the import of torch.

A group is a dictionary of torch.optim: `params`, and settings such as `lr` that replace the shared ones.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimiserName = Literal["adam", "adamw", "sgd", "muon"]

_ADAM_BETA2 = 0.999  # Kingma and Ba 2015, algorithm 1
# Narrower matrices are small embedding tables or heads, for which orthogonalised steps work badly.
_MIN_MUON_WIDTH = 16
# torch wraps these methods in functions that import torch._dynamo, to exclude them from compiled graphs.
_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def eager(kind: type[torch.optim.Optimizer]) -> type:
    """Return a subclass with unwrapped methods; its steps are neither differentiable nor compiled."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _METHODS}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**methods, "step": step, "__module__": __name__, "__doc__": kind.__doc__})


Adam = eager(torch.optim.Adam)
AdamW = eager(torch.optim.AdamW)
SGD = eager(torch.optim.SGD)


@dataclass(frozen=True)
class OptimiserOptions:
    """Optimiser of one training."""

    name: OptimiserName
    learning_rate: float
    momentum: float = 0.9  # of sgd and muon; first beta of adam and adamw
    muon_momentum: float | None = None  # of muon; None: momentum
    weight_decay: float = 0.0  # of muon, and of groups that set none
    nesterov: bool = False  # of sgd
    companion: Literal["adam", "adamw"] = "adamw"  # with muon, of the parameters that are no wide matrices


def build_optimisers(
    matrices: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]], options: OptimiserOptions
) -> list[torch.optim.Optimizer]:
    """Return Muon (Jordan et al. 2024) for the groups of matrices and an elementwise optimiser for the others.

    Steps of matrices are scaled to the size of Adam's (Liu et al. 2025, Muon is scalable for LLM training, eq. 4), so
    one learning rate fits both. Without groups of a kind its optimiser is left out.
    """
    shared = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
    optimisers = []
    if matrices:
        muon = eager(torch.optim.Muon)
        momentum = options.momentum if options.muon_momentum is None else options.muon_momentum
        optimisers.append(muon(matrices, momentum=momentum, adjust_lr_fn="match_rms_adamw", **shared))
    name = options.companion if options.name == "muon" else options.name
    if groups and name == "sgd":
        optimisers.append(SGD(groups, momentum=options.momentum, nesterov=options.nesterov, fused=True, **shared))
    elif groups:
        kind = {"adam": Adam, "adamw": AdamW}[name]
        betas = options.momentum, _ADAM_BETA2
        optimisers.append(kind(groups, betas=betas, fused=True, **shared))
    return optimisers


def build_optimiser(groups: Sequence[dict[str, Any]], options: OptimiserOptions) -> torch.optim.Optimizer:
    """Return one optimiser of all groups; muon splits each group into wide matrices and other parameters."""
    if options.name != "muon":
        return build_optimisers((), groups, options)[0]
    split: tuple[list[dict[str, Any]], ...] = ([], [])
    for group in groups:
        for part, has_width in zip(split, (True, False), strict=True):
            if parameters := [each for each in group["params"] if is_wide(each) == has_width]:
                part.append({**group, "params": parameters})
    matrices, elementwise = split
    return MuonWithAdam(build_optimisers(matrices, elementwise, options))


class MuonWithAdam(torch.optim.Optimizer):
    """Muon and an elementwise optimiser as one, with one schedule and one state."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        """Take the groups of the parts, not copies, so that a schedule changes both."""
        self._parts = parts
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

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts for group in part.param_groups]


def is_wide(parameter: Tensor) -> bool:
    """Return whether Muon fits: a matrix that is wide and high enough."""
    return parameter.ndim == 2 and min(parameter.shape) >= _MIN_MUON_WIDTH


def split_parameters(
    model: nn.Module, *, for_muon: Callable[[str, Tensor], bool], decays: bool
) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters: matrices of Muon, those with weight decay (no norms or biases), and others.

    Args:
        model: its parameters are in order in each list.
        for_muon: from a name and a matrix or kernel, whether Muon updates it.
        decays: whether any parameter has weight decay.
    """
    norms = {
        id(p) for module in model.modules() if "Norm" in type(module).__name__ for p in module.parameters(recurse=False)
    }
    matrices, decayed, elementwise = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_matrix = parameter.ndim >= 2 and id(parameter) not in norms
        if is_matrix and for_muon(name, parameter):
            matrices.append(parameter)
        else:
            (decayed if decays and is_matrix else elementwise).append(parameter)
    return matrices, decayed, elementwise


# First and last learning rate of one_cycle, as shares of the largest one (torch.optim.lr_scheduler.OneCycleLR).
_FIRST_RATE, _LAST_RATE = 1 / 25, 1 / 250_000
_TRAPEZOID_SHARE = 0.8  # of a training before the rate of trapezoid falls (Hägele et al. 2024)


# Rate between a first and a last one; cosine: Loshchilov and Hutter 2017, equation 5.
_CURVES: dict[str, Callable[[float, float, float], float]] = {
    "constant": lambda first, last, share: first,
    "linear": lambda first, last, share: first + (last - first) * share,
    "cosine": lambda first, last, share: last + (first - last) * (1 + math.cos(math.pi * share)) / 2,
}


@dataclass(frozen=True)
class Schedule:
    """A rise during the warm-up, a constant rate, then a fall to the end; rates are shares of the largest one."""

    fall: str = "constant"  # constant, linear, cosine
    rise: str = "linear"  # linear, cosine
    warmup: float = 0.0  # share of the training in which the rate rises
    constant: float = 0.0  # share of the rest before the rate falls
    first: float = 0.0  # rate at the start of the warm-up
    last: float = 0.0  # rate at the end

    @classmethod
    def named(
        cls, name: str, *, warmup: float = 0.0, constant: float = 0.0, first: float = 0.0, last: float = 0.0
    ) -> Schedule:
        """Return constant, linear, cosine, trapezoid (constant, then linear) or one_cycle (half cosines)."""
        if name == "one_cycle":
            return cls("cosine", "cosine", warmup=warmup, first=_FIRST_RATE, last=_LAST_RATE)
        if name == "trapezoid":
            return cls("linear", warmup=warmup, constant=_TRAPEZOID_SHARE, first=first, last=last)
        return cls(name, warmup=warmup, constant=constant, first=first, last=last)

    def factor(self, done: float) -> float:
        """Return the factor of the learning rate after a share of the training; shares above 1 count as 1."""
        done = min(done, 1.0)
        if done < self.warmup:
            return _CURVES[self.rise](self.first, 1.0, done / self.warmup)
        share = (done - self.warmup) / (1 - self.warmup)
        return _CURVES[self.fall](1.0, self.last, max(0.0, (share - self.constant) / (1 - self.constant)))
