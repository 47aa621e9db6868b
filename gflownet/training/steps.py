"""Steps of one training: gradients, clipping, learning rate, update, state and divergence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gflownet.training.optimisers import OptimiserOptions, Schedule, build_optimisers, is_wide, split_parameters
from gflownet.training.precision import use_channels_last

# A cross-entropy of 1,000 nats means logits that are off by 1,000: the training does not recover.
DIVERGED_LOSS = 1_000.0

Result = TypeVar("Result")


def map_tensors(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Return nested containers, such as a saved state, with a function applied to each tensor."""
    match state:
        case Tensor():
            return function(state)
        case dict():
            return {key: map_tensors(function, value) for key, value in state.items()}
        case list() | tuple():
            return type(state)(map_tensors(function, value) for value in state)
        case _:
            return state


class DivergedError(RuntimeError):
    """The loss or its gradient is not finite, or the loss is too large to recover from."""

    @classmethod
    def check(cls, loss: float, place: str, *, limit: float = DIVERGED_LOSS, name: str = "loss") -> None:
        """Raise the error, with the step or epoch, for a loss that is above the limit or not finite."""
        if not loss <= limit:
            raise cls(f"{place}: expected a {name} <= {limit:g}, got {loss:g}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode in the block, and every submodule back to its mode after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:  # a `train` of its own may do more than to set the mode, also of submodules
            module.train(mode)
        for module, mode in modes:
            module.training = mode


def _norm(parameters: Sequence[Tensor]) -> Tensor:
    """Return the global norm of the gradients."""
    return nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])


@torch.no_grad()
def update_average(averages: Sequence[Tensor], tensors: Sequence[Tensor], *, decay: float) -> None:
    """Update exponential moving averages of tensors in place."""
    for average, tensor in zip(averages, tensors, strict=True):
        average.lerp_(tensor, 1 - decay)


@dataclass(frozen=True)
class Copies:
    """Copies of one model in flat tensors: each parameter has the entries of one copy after those of another."""

    num: int
    sizes: Sequence[Sequence[int]]  # of each flat tensor: entries of its parameters

    def rows(self, value: Tensor, position: int) -> list[Tensor]:
        """Return the views [num, entries] of the parameters in a flat tensor, or of a buffer after all flat tensors."""
        sizes = self.sizes[position] if position < len(self.sizes) else [value.numel()]
        return [part.view(self.num, -1) for part in value.split(list(sizes))]

    def part(self, value: Tensor, position: int) -> Tensor:
        """Return the entries [num, ...] of each copy in a flat tensor; the number of steps is the same for all."""
        return torch.cat(self.rows(value, position), 1) if value.ndim else value.expand(self.num)


@dataclass(frozen=True)
class EntryDecay:
    """Weight decay of single entries of a flat parameter, as an optimiser has it for all."""

    parameter: Tensor
    rates: Tensor  # of each entry
    is_decoupled: bool  # AdamW (Loshchilov and Hutter 2019); else a part of the gradient

    @torch.no_grad()
    def apply(self, learning_rate: float) -> None:
        """Decay the entries, or add the decay to their clipped gradients."""
        if self.is_decoupled:
            self.parameter.addcmul_(self.parameter, self.rates, value=-learning_rate)
        elif self.parameter.grad is not None:
            self.parameter.grad.addcmul_(self.parameter, self.rates)


class Steps:
    """Steps of optimisers that together update every parameter once."""

    def __init__(
        self,
        optimisers: Sequence[torch.optim.Optimizer],
        parameters: Sequence[Tensor],
        *,
        schedule: Schedule | None = None,
        num_steps: int = 1,
        max_norm: float = 0.0,
        has_fixed_gradients: bool = False,
        copies: Copies | None = None,
        decay: EntryDecay | None = None,
    ) -> None:
        """Start at step 0.

        Args:
            optimisers: with the maximum learning rates of their groups.
            parameters: their gradients are clipped.
            schedule: of the learning rates; None: the caller sets them.
            num_steps: of the whole training, for the schedule.
            max_norm: to which gradients are clipped; 0: they are not.
            has_fixed_gradients: whether the gradients are cleared in place, as views of them exist.
            copies: of one model, for their states.
            decay: for the only optimiser, which has none.
        """
        self.optimisers, self.number = optimisers, 0  # number of steps
        self._parameters, self._schedule, self._num_steps, self._max_norm = parameters, schedule, num_steps, max_norm
        self._rates = [[group["lr"] for group in optimiser.param_groups] for optimiser in optimisers]
        self._has_fixed_gradients = has_fixed_gradients
        self._copies, self._decay = copies, decay
        clipped = set(map(id, parameters))
        groups = [group for optimiser in optimisers for group in optimiser.param_groups]
        self._unclipped = [each for group in groups for each in group["params"] if id(each) not in clipped]

    def take(self, differentiate: Callable[[], Result]) -> Result:
        """Take one step on the gradients that `differentiate` accumulates, and return its result."""
        result, _ = self.compute_gradients(differentiate)
        self.update((self.number - 0.5) / self._num_steps)
        return result

    def compute_gradients(self, differentiate: Callable[[], Result]) -> tuple[Result, Tensor | None]:
        """Begin a step: return the result of `differentiate` and the norm of its gradients, which are then clipped."""
        for optimiser in () if self._has_fixed_gradients else self.optimisers:
            optimiser.zero_grad()
        for parameter in self._parameters if self._has_fixed_gradients else ():
            assert parameter.grad is not None
            parameter.grad.zero_()
        result = differentiate()
        self.number += 1
        return result, nn.utils.clip_grad_norm_(self._parameters, self._max_norm) if self._max_norm else None

    def check_gradients(self, norm: Tensor | None) -> None:
        """Raise FloatingPointError unless all gradients are finite.

        Args:
            norm: of the clipped ones, from `compute_gradients`.
        """
        parameters = self._unclipped if norm is not None else [*self._parameters, *self._unclipped]
        for value in map(float, (_norm(parameters),) if norm is None else (norm, _norm(parameters))):
            if not math.isfinite(value):
                raise FloatingPointError(f"expected a gradient with a finite norm, got {value}")

    def update(self, done: float = 0.0) -> None:
        """Update the parameters, with the learning rates after a share of the training."""
        if self._schedule is not None:
            factor = self._schedule.factor(done)
            for optimiser, rates in zip(self.optimisers, self._rates, strict=True):
                for group, rate in zip(optimiser.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
        if self._decay is not None:
            self._decay.apply(self.optimisers[0].param_groups[0]["lr"])
        for optimiser in self.optimisers:
            optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain containers, without the weights of the model."""
        return {
            "step": self.number,
            "optimisers": [{"state": optimiser.state_dict()["state"]} for optimiser in self.optimisers],
        }

    def states_of_copies(self) -> list[dict[str, Any]]:
        """Return the state of the steps of each copy, as `state_dict` returns it for one model."""
        assert self._copies is not None
        state, part = self.state_dict(), self._copies.part
        flats = [
            {i: {key: part(value, i) for key, value in entry.items()} for i, entry in each["state"].items()}
            for each in state["optimisers"]
        ]
        return [
            {"step": self.number, "optimisers": [{"state": map_tensors(partial(_row, k), each)} for each in flats]}
            for k in range(self._copies.num)
        ]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a copy of the result of `state_dict`."""
        self.number = state["step"]
        for optimiser, content in zip(self.optimisers, state["optimisers"], strict=True):
            values = copy.deepcopy(content["state"])
            optimiser.load_state_dict({**optimiser.state_dict(), "state": values})


def flat_steps(
    model: nn.Module,
    options: OptimiserOptions,
    *,
    schedule: Schedule,
    num_steps: int,
    memory_format: str = "contiguous",
    num_copies: int = 1,
) -> Steps:
    """Return the steps of a model whose parameters and gradients become views of flat tensors.

    Updating dozens of small tensors as one saves a sixth of the training time of a small model. Norms and biases have
    no weight decay. The parameters share one dtype and device. Kernels of images and
    signals get the memory format, which convolutions pass on to their outputs. With several copies of one model, see
    `StackedModel`, each takes the steps that it takes alone.
    """
    if memory_format == "channels_last":
        use_channels_last(model)
    uses_muon, decay = options.name == "muon", options.weight_decay
    matrices, decayed, remaining = split_parameters(
        model, for_muon=lambda _, parameter: uses_muon and is_wide(parameter.flatten(1)), decays=decay > 0
    )
    groups, flats = [], [_flattened(matrices, memory_format)] if matrices else []
    for parameters, each_decay in ((decayed, decay), (remaining, 0.0)):
        if parameters:
            flats.append(_flattened(parameters, memory_format))
            groups.append({"params": [flats[-1]], "weight_decay": each_decay})
    views = [{"params": [_as_matrix(parameter) for parameter in matrices]}] if matrices else []
    assert num_copies == 1 or not matrices, "Muon treats the copies of a matrix as one"
    sizes = [[each.numel() for each in parameters] for parameters in (decayed, remaining) if parameters]
    return Steps(
        build_optimisers(views, groups, options),
        flats,
        schedule=schedule,
        num_steps=num_steps,
        has_fixed_gradients=True,
        copies=Copies(num_copies, sizes) if num_copies > 1 else None,
    )


def _flattened(parameters: Sequence[nn.Parameter], memory_format: str) -> nn.Parameter:
    """Return one parameter that holds all others, which become views of it, as do their gradients."""
    orders = [_CHANNELS_LAST.get(each.ndim, ()) if memory_format == "channels_last" else () for each in parameters]
    ordered = [_permuted(each.detach(), order) for each, order in zip(parameters, orders, strict=True)]
    flat = nn.Parameter(torch.cat([each.reshape(-1) for each in ordered]))
    flat.grad = torch.zeros_like(flat)
    parts = (each.data.split([values.numel() for values in ordered]) for each in (flat, flat.grad))
    for parameter, shaped, order, values, gradient in zip(parameters, ordered, orders, *parts, strict=True):
        back = [order.index(axis) for axis in range(len(order))]
        parameter.data = _permuted(values.view(shaped.shape), back)
        parameter.grad = _permuted(gradient.view(shaped.shape), back)
    return flat


_CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}  # order of the axes of a kernel in memory, by their number


def _permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    return tensor.permute(*order) if order else tensor


def _as_matrix(parameter: nn.Parameter) -> nn.Parameter:
    """Return a kernel as a matrix of its output channels that shares values and gradient."""
    assert parameter.grad is not None
    order = () if parameter.is_contiguous() else _CHANNELS_LAST[parameter.ndim]  # columns may be in any order
    values, gradient = (
        _permuted(each, order).view(len(parameter), -1) for each in (parameter.detach(), parameter.grad)
    )
    return _view(values, gradient)


def _view(values: Tensor, gradient: Tensor) -> nn.Parameter:
    """Return a parameter that shares values and gradient with others."""
    parameter = nn.Parameter(values)
    parameter.grad = gradient
    return parameter


def _row(position: int, rows: Tensor) -> Tensor:
    return rows[position].clone()
