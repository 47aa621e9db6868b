"""First values of a model's parameters: biases and weights of the graph, PyTorch's defaults for layers."""

from collections.abc import Iterable, Sequence
from importlib import import_module

import torch
from torch import Tensor, nn

from gflownet.operations.activations import Cell, rhn_config
from gflownet.operations.parameters import QUERY_STD, Initial, ParameterPlan
from gflownet.operations.vocabulary import activation
from gflownet.rhn.layers import RHNBlock


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
            data = random_values(parameter, torch.empty(shape, dtype=dtype, device=device))
        holder = _layer(model, parameter)._parameters if parameter.module else model._parameters
        holder[parameter.leaf] = torch.Tensor._make_subclass(nn.Parameter, data, True)


def random_values(parameter: ParameterPlan, data: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill `data` with the first values of a layer or query; layers draw the same numbers as in PyTorch."""
    if parameter.initial is Initial.QUERY:
        return data.normal_(std=QUERY_STD, generator=generator)
    if parameter.initial is Initial.NORMAL:
        return data.normal_(std=parameter.bound, generator=generator)
    if parameter.initial in (Initial.ZERO, Initial.ONE):
        return data.fill_(float(parameter.initial is Initial.ONE))
    return data.uniform_(-parameter.bound, parameter.bound, generator=generator)


def _layer(model: nn.Module, parameter: ParameterPlan) -> nn.Module:
    """Return the submodule of a parameter, created on first use."""
    name, _, inner = parameter.module.partition(".")
    if name not in model._modules:
        kind = name.partition("_")[0]
        model._modules[name] = _linear(parameter) if kind in ("proj", "post") else _cell(kind, parameter)
    layer = model._modules[name]
    assert layer is not None
    return layer.get_submodule(inner) if inner else layer


def _linear(parameter: ParameterPlan) -> nn.Module:
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = parameter.shape
    layer._parameters.update(weight=None, bias=None)
    return layer


def _cell(kind: str, parameter: ParameterPlan) -> nn.Module:
    """Return the empty module of a recurrent cell, from the first of its parameters."""
    cell_class = activation(kind)
    assert issubclass(cell_class, Cell)
    module, _, name = cell_class.module.partition(":")
    layer_class = getattr(import_module(module), name)
    if layer_class is RHNBlock:
        # Not on the meta device: first values there would import torch._dynamo, which takes seconds.
        with torch.random.fork_rng(devices=[]):
            return RHNBlock(rhn_config(parameter.shape[0]))  # of its norm
    layer = layer_class.__new__(layer_class)
    nn.Module.__init__(layer)
    layer.input_size = layer.hidden_size = parameter.shape[1]
    layer.bias = False
    layer._parameters.update(weight_ih=None, weight_hh=None, bias_ih=None, bias_hh=None)
    return layer
