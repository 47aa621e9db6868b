"""Functions of generated code: parameters with first values, linear layers, recurrent cells over whole sequences.

B is the batch, T the number of time steps, D the width. A sequence [T B, D] is ordered by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from gflownet.operations.activations import Cell
from gflownet.operations.parameters import QUERY_STD, Initial, ParameterPlan
from gflownet.operations.vocabulary import activation

# A forward of its own, a compiled call or a weight that is no parameter is one more.
_NUM_ATTRIBUTES = len(vars(nn.Linear(1, 1, bias=False)))
_PLAIN_TENSORS = {Tensor, nn.Parameter}
_OWN_CALLS = {"forward", "_compiled_call_impl", "_is_replica"}


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


def add_parameters(
    model: nn.Module,
    parameters: Sequence[ParameterPlan],
    values: Iterable[float],
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Add parameters to `model`; `values`: first values of those that are 0-d, in this order, taken one by one.

    Without a dtype, layers draw float32 numbers and 0-d parameters stay exact in float64. The dicts of nn.Module are
    filled directly: registration and initialisation by nn.Linear would take three quarters of the time of a
    construction.
    """
    remaining = iter(values)
    for parameter in parameters:
        shape = parameter.shape
        if shape == ():
            data = torch.scalar_tensor(next(remaining), dtype=dtype or torch.float64, device=device)
        else:
            data = _random_values(parameter, torch.empty(shape, dtype=dtype, device=device))
        holder = _layer(model, parameter)._parameters if parameter.module else model._parameters
        holder[parameter.leaf] = Tensor._make_subclass(nn.Parameter, data, True)


def _random_values(parameter: ParameterPlan, data: Tensor) -> Tensor:
    """Fill `data` with the first values of a layer or query; layers draw the same numbers as in PyTorch."""
    if parameter.initial is Initial.QUERY:
        return data.normal_(std=QUERY_STD)
    if parameter.initial is Initial.NORMAL:
        return data.normal_(std=parameter.bound)
    if parameter.initial in (Initial.ZERO, Initial.ONE):
        return data.fill_(float(parameter.initial is Initial.ONE))
    return data.uniform_(-parameter.bound, parameter.bound)


def _layer(model: nn.Module, parameter: ParameterPlan) -> nn.Module:
    """Return the submodule of a parameter, created on first use."""
    name, _, inner = parameter.module.partition(".")
    if name not in model._modules:
        kind = name.partition("_")[0]
        is_linear = kind in ("proj", "post")
        model._modules[name] = _linear(parameter) if is_linear else _cell(kind).build(parameter.shape[-1])
    layer = model._modules[name]
    assert layer is not None
    return layer.get_submodule(inner) if inner else layer


def _linear(parameter: ParameterPlan) -> nn.Module:
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = parameter.shape
    layer._parameters.update(weight=None, bias=None)
    return layer


def _cell(kind: str) -> type[Cell]:
    cell_class = activation(kind)
    assert issubclass(cell_class, Cell)
    return cell_class


def pad_copies(num_copies: int, value: Tensor, missing: int) -> Tensor:
    """Return K copies side by side, [B, K C, ...], with zeros for the missing channels of each copy."""
    return F.pad(_by_copy(num_copies, value), (0, missing)).flatten(-2).movedim(-1, 1)


def concat_copies(num_copies: int, *values: Tensor) -> Tensor:
    """Return the channels of several values [B, K C, ...], those of each copy next to each other."""
    return torch.cat([_by_copy(num_copies, each) for each in values], -1).flatten(-2).movedim(-1, 1)


def _by_copy(num_copies: int, value: Tensor) -> Tensor:
    """Return a value as [B, ..., K, C]."""
    return value.movedim(1, -1).unflatten(-1, (num_copies, -1))
