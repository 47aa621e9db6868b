"""One module for K copies of a model, such as its seeds: grouped convolutions in place of K small ones.

Calls take half of the time of a small convolutional model, and its few channels do not fill the vectors of a core: four
seeds of networks of mnist1d took .36 to .7 of the time of one by one (scripts/bench_candidates.py), in channels_last.
In contiguous memory grouped convolutions are slow.

B: batch, C: channels of one copy, O: outputs of one copy.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gflownet.graphs.typed import TypedGraph, TypedNode
from gflownet.operations.activations import CodeActivation, Softmax
from gflownet.operations.code import FAST
from gflownet.operations.convolution import (
    AvgPool1d,
    AvgPool2d,
    Conv1d,
    Conv2d,
    DepthwiseConv1d,
    DepthwiseConv2d,
    GlobalPool,
    MaxPool1d,
    MaxPool2d,
)
from gflownet.operations.elementary import BatchNorm, Identity
from gflownet.operations.linear import Head, Linear
from gflownet.operations.sequences import is_untouched
from gflownet.operations.tensor_shape import Layout
from gflownet.operations.vocabulary import activation
from gflownet.training.precision import SignalBatchNorm, SignalConvolution
from gflownet.translation.model import TranslatedModel, module_class

# Operations that treat channels alike, or whose module is replaced by one of all copies.
_OPERATIONS = {Conv1d, Conv2d, DepthwiseConv1d, DepthwiseConv2d, BatchNorm, Linear, Head, Identity}
_OPERATIONS |= {AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d, GlobalPool}
_LAYOUTS = (Layout.VECTOR, Layout.SIGNAL, Layout.IMAGE)
_MODULES = {nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ModuleList}
_MODULES |= {SignalConvolution, SignalBatchNorm}


def can_stack(*models: nn.Module) -> bool:
    """Return whether StackedModel holds these models: of one plan, so that ids of nodes and names are equal."""
    plans = [model.plan for model in models if isinstance(model, TranslatedModel)]
    if len(plans) < len(models) or len({plan.key for plan in plans}) != 1:
        return False
    plan = plans[0]
    is_plain = not (
        plan.takes_columns or plan.slots or plan.autocast or plan.memory_format == "channels_last" or plan.is_padded
    )
    has_one = len(plan.inputs) == len(plan.outputs) == 1
    is_plain = is_plain and all(map(_is_as_translated, models))
    return is_plain and has_one and plan.outputs[0][1].layout is Layout.VECTOR and _has_known_steps(plan)


def _is_as_translated(model: nn.Module) -> bool:
    is_trained = all(each.requires_grad for each in model.parameters())
    return is_trained and is_untouched(model, lambda kind: kind in _MODULES or issubclass(kind, TranslatedModel))


def _has_known_steps(plan: TypedGraph) -> bool:
    shapes = [shape for _, shape in plan.arguments]
    return all(shape.layout in _LAYOUTS for shape in shapes) and all(map(_is_known, plan.live_steps))


def _is_known(step: TypedNode) -> bool:
    kind = activation(step.node.activation_function)
    has_known_activation = issubclass(kind, CodeActivation) and kind is not Softmax
    merges = step.inputs.values()
    has_known_merges = all(
        (merge.merge != "concat" or merge.concat_axis == merge.shape.channel_axis)
        and not any(adapter.is_broadcast and adapter.source != adapter.target for adapter in merge.adapters)
        for merge in merges
    )
    if step.is_neuron or step.has_edge_weights or step.tied_to or step.slots:
        return False
    if not (has_known_activation and has_known_merges and step.output.layout in _LAYOUTS):
        return False
    if step.bodies:
        return all(map(_has_known_steps, step.bodies))
    return step.operation is not None and step.operation.row in _OPERATIONS


class StackedModel(nn.Module):
    """K models of one plan (`can_stack`). Each parameter and buffer holds those of the copies along its first axis."""

    def __init__(self, models: Sequence[TranslatedModel]) -> None:
        super().__init__()
        if not can_stack(*models):
            raise ValueError("expected models of one plan that can be stacked (can_stack)")
        self.num_copies = len(models)
        self.model = _stacked(models)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [B, K, O] of the copies for their inputs [B, K C, ...], see `join_copies`."""
        return self.model(inputs).unflatten(1, (self.num_copies, -1))

    @torch.no_grad()
    def copy_to(self, models: Sequence[nn.Module]) -> None:
        """Give each model the values of its copy."""
        targets = [model.state_dict() for model in models]
        for name, value in self.model.state_dict().items():
            parts = value.chunk(self.num_copies) if value.ndim else [value] * self.num_copies
            for target, part in zip(targets, parts, strict=True):
                target[name].copy_(part)


def join_copies(values: Sequence[Tensor]) -> Tensor:
    """Return one value [B, K C, ...] of K values [B, C, ...]."""
    return torch.stack([each.movedim(1, -1) for each in values], -2).flatten(-2).movedim(-1, 1)


def _stacked(models: Sequence[Any]) -> Any:
    """Return one module for the same module of each copy."""
    first = models[0]
    if isinstance(first, nn.Linear):
        return LinearOfCopies(models)
    stacked = copy.copy(first)
    stacked._parameters, stacked._buffers, stacked._modules = (
        {**each} for each in (first._parameters, first._buffers, {})
    )
    for name, parameter in first._parameters.items():
        if parameter is not None:
            stacked._parameters[name] = joined([each._parameters[name] for each in models])
    for name, buffer in first._buffers.items():
        if buffer is not None and buffer.ndim:
            stacked._buffers[name] = torch.cat([each._buffers[name] for each in models])
        elif buffer is not None:  # a count
            stacked._buffers[name] = buffer.clone()
    for name in first._modules:
        stacked._modules[name] = _stacked([each._modules[name] for each in models])
    match stacked:
        case TranslatedModel():
            stacked.__class__ = module_class(first.plan, replace(FAST, num_copies=len(models)))
        case nn.Conv1d() | nn.Conv2d():
            stacked.groups *= len(models)
            stacked.in_channels *= len(models)  # more than one, see SignalConvolution
        case nn.BatchNorm1d() | nn.BatchNorm2d() | nn.ModuleList():
            pass
        case _:
            raise AssertionError(f"no copies of {type(first).__name__}")
    return stacked


class LinearOfCopies(nn.Module):
    """K linear layers: vectors [B, K C] to [B, K O]."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.num_copies = len(layers)
        self.weight = joined([each.weight for each in layers])  # [K O, C]
        self.bias = None if layers[0].bias is None else joined([each.bias for each in layers])

    def forward(self, input: Tensor) -> Tensor:
        """Return the product of each copy's vectors with its matrix."""
        vectors = input.unflatten(1, (self.num_copies, -1)).transpose(0, 1)
        matrices = self.weight.unflatten(0, (self.num_copies, -1)).mT
        if self.bias is None:
            products = torch.bmm(vectors, matrices)
        else:
            products = torch.baddbmm(self.bias.view(self.num_copies, 1, -1), vectors, matrices)
        return products.transpose(0, 1).flatten(1)


def joined(parameters: Sequence[Tensor]) -> nn.Parameter:
    """Return the parameters of K copies as one, along the first axis."""
    return nn.Parameter(torch.cat([each.detach() for each in parameters]))
