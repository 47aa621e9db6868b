"""Functions of generated code: linear layers, recurrent cells over whole sequences; the module of the operation rhn.

B is the batch, T the number of time steps, D the width. A sequence [T B, D] is ordered by time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.layers import BHN, FFN, AdapterHeads, DoraFFN, RHNBlock, RMSNorm
from gflownet.rhn.wavefront import along_wavefront

# A forward of its own, a compiled call or a weight that is no parameter is one more.
_NUM_ATTRIBUTES = len(vars(nn.Linear(1, 1, bias=False)))
_PLAIN_TENSORS = {Tensor, nn.Parameter}
_OWN_CALLS = {"forward", "_compiled_call_impl", "_is_replica"}
_OF_RHN = {RHNBlock, RMSNorm, BHN, AdapterHeads, DoraFFN, FFN, nn.Linear}


def _has_hooks(values: Mapping[str, Any]) -> bool:
    has_forward = values["_forward_pre_hooks"] or values["_forward_hooks"]
    return bool(has_forward or values["_backward_pre_hooks"] or values["_backward_hooks"])


def is_untouched(module: nn.Module, has_type: Callable[[type], object]) -> bool:
    """Return whether code that reads the parameters of a module does what calls of it and its submodules do."""
    return not _has_any_global_hook() and all(
        has_type(type(each))
        and not _has_hooks(vars(each))
        and _OWN_CALLS.isdisjoint(vars(each))
        and {*map(type, each._parameters.values())} <= {nn.Parameter, type(None)}
        for each in module.modules()
    )


def plain_weight(layer: nn.Module) -> Tensor | None:
    """Return the weight of an untouched nn.Linear without bias; None for a layer that does more and must be called.

    Hooks of all modules aside. Takes half of the time of `layer.weight`, which nn.Module looks up in Python.
    """
    values = layer.__dict__
    if type(layer) is not nn.Linear or len(values) != _NUM_ATTRIBUTES or _has_hooks(values):
        return None
    parameters = values["_parameters"]
    weight = parameters.get("weight") if parameters["bias"] is None else None
    return weight if type(weight) in _PLAIN_TENSORS else None


def project(
    layer: Any, x: Tensor, total: Tensor | None = None, factor: Tensor | None = None, *, scales_input: bool = False
) -> Tensor:
    """Return total + factor * layer(x) [B, D] for x [B, F], total 0-d or [B, D] and factor 0-d.

    Of an untouched linear layer the weight or, with `scales_input`, the input is scaled: one gemm with the sum inside.
    """
    matrix = None if _has_any_global_hook() else plain_weight(layer)
    if matrix is None:
        y = layer(x) if factor is None else layer(x) * factor
        return y if total is None else total + y
    if factor is not None:
        x, matrix = (x * factor, matrix) if scales_input else (x, matrix * factor)
    if total is None or (isinstance(total, Tensor) and not total.dim()):  # no proxy of torch.fx
        return F.linear(x, matrix, total)
    return torch.addmm(total, x, matrix.t())


def scaled_matrices(layers: Sequence[nn.Module], factors: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the weight of each layer times its factor, of equal sizes, by one product; None where one is touched."""
    # No named expression in a comprehension: torch.compile cannot trace the variable's cell.
    matrices = [weight for weight in map(plain_weight, layers) if weight is not None]
    if len(matrices) < len(layers) or _has_any_global_hook():
        return [None] * len(layers)
    return (torch.stack(matrices) * torch.stack(tuple(factors))[:, None, None]).unbind()


def gru_sequence(layer: nn.GRUCell, x: Tensor, hidden: Tensor) -> Tensor:
    """Return the outputs [T B, D] on x [T B, D] from a state [B, D]."""
    if not len(hidden):
        return x
    outputs = []
    for moment in x.view(-1, *hidden.shape).unbind(0):
        hidden = layer(moment, hidden)
        outputs.append(hidden)
    return torch.cat(outputs)


def lstm_sequence(layer: nn.LSTMCell, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [T B, D] on x [T B, D] from a state of two [B, D], and the last memory cell [B, D]."""
    if not len(hidden):
        return x, cell
    outputs = []
    for moment in x.view(-1, *hidden.shape).unbind(0):
        hidden, cell = layer(moment, (hidden, cell))
        outputs.append(hidden)
    return torch.cat(outputs), cell


def rhn_sequence(block: RHNBlock, x: Tensor, hidden: Tensor, token: Tensor) -> Tensor:
    """Return the outputs [T B, D] on x [T B, D] from a state [B, D], which rows with token [B, 1] = 0 do not have."""
    if not len(hidden):
        return x
    moments = x.view(-1, *hidden.shape)
    if _runs_by_token(block, x):
        return block(moments.transpose(0, 1), hidden, token)[0].transpose(0, 1).flatten(0, 1)
    first = block.step(moments[0], hidden, token)
    if len(moments) == 1:
        return first
    later, _ = along_wavefront([block], moments[1:].transpose(0, 1), first.unsqueeze(0))
    return torch.cat([first, later.transpose(0, 1).flatten(0, 1)])


def _runs_by_token(block: RHNBlock, x: Tensor) -> bool:
    """Return whether the definition computes a block: for programs, empty tensors, and modules that must be called."""
    return x.is_meta or torch.compiler.is_compiling() or not len(x) or not is_untouched(block, _OF_RHN.__contains__)


class RHNLayer(nn.Module):
    """A layer of a Recurrent Hyper Network over sequences [B, T, D] that start without a state."""

    def __init__(self, config: RHNConfig) -> None:
        super().__init__()
        self.block = RHNBlock(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states of all tokens [B, T, D]."""
        if _runs_by_token(self.block, x):
            return self.block(x)[0]
        return along_wavefront([self.block], x, None)[0]


class CarriedRHNLayer(RHNLayer):
    """An RHN layer that continues from the state of the call before."""

    def forward(self, x: Tensor, hidden: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states of all tokens [B, T, D], the last of them, and ones [B, 1]: the next call has a state.

        `hidden` [B, D] is the state of the token before x [B, T, D], where `token` is 1.
        """
        if _runs_by_token(self.block, x):
            y = self.block(x, hidden, token)[0]
        else:
            rows = x.transpose(0, 1).flatten(0, 1)
            y = rhn_sequence(self.block, rows, hidden, token).unflatten(0, (-1, len(x))).transpose(0, 1)
        return y, y[:, -1], torch.ones_like(token)
