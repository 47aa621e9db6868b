"""One operation as a module, and its costs counted on tensors without data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from gflownet.operations import layers
from gflownet.operations.operation import (
    WEIGHT_PORT,
    Example,
    Operation,
    complete_settings,
    example_inputs,
    is_inherited,
)
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.values import hashable, thawed

_NAMES = {**vars(layers), "torch": torch, "F": F, "nn": nn}


class StandaloneOperation(nn.Module):
    """The module of an operation and its call: forward maps a tensor [B, *sizes] per port to the output.

    The tensor at the port `weight` has no batch axis.
    """

    def __init__(self, row: type[Operation], inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.node = row.build(inputs, settings)
        self.inputs = dict(inputs)
        self.state = dict(row.state(inputs, settings))
        names = {name: f"values[{name!r}]" for name in (*inputs, *self.state)}
        call = row.call(inputs, settings).format(module="module", **names)
        self._code = compile(call, f"<{row.__name__}>", "eval")
        self._names = {**_NAMES, **row.outside_classes(settings)}

    def forward(self, *values: Tensor) -> Tensor:
        """Return the output [B, *sizes], of an operation with state for zeros."""
        zeros = {name: values[0].new_zeros(values[0].shape[0], *sizes) for name, sizes in self.state.items()}
        names = {"module": self.node, "values": {**dict(zip(self.inputs, values, strict=True)), **zeros}}
        result = eval(self._code, {**self._names, **names})
        return result[0] if self.state else result

    def meta_inputs(self, batch: int) -> list[Tensor]:
        """Return tensors without data, one per port."""
        return [meta_input(port, shape, batch) for port, shape in self.inputs.items()]


class MultiplyAdds(TorchDispatchMode):
    """Count multiply-adds by the formulas of torch.utils.flop_counter, without its slow count of each module."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, in parts where it has no formula."""
        kwargs = kwargs or {}
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result) // 2
        return result


def meta_input(port: str, shape: Shape, batch: int) -> Tensor:
    """Return a tensor without data for a port."""
    dtype = torch.long if shape.layout is Layout.TOKENS else torch.get_default_dtype()
    sizes = shape.sizes if port == WEIGHT_PORT else (batch, *shape.sizes)
    return torch.empty(sizes, dtype=dtype, device="meta")


def check_row(row: type[Operation], name: str) -> None:
    """Raise ValueError for a user's class that violates the contract; its examples are run without data."""
    row.check(name)
    if not all(is_inherited(row, method) for method in ("build", "constructor", "call")):
        for position, example in enumerate(row.examples):
            check_example(row, example, f"{name}.examples[{position}]")


def check_example(row: type[Operation], example: Example, name: str) -> None:
    """Run an example without data. Raises ValueError unless the output has the shape that infer_shape returns."""
    settings = dict(complete_settings(row, name, example.settings))
    inputs = example_inputs(row, example, name)
    try:
        expected = row.infer_shape(inputs, settings)
        with torch.device("meta"), torch.no_grad():
            module = StandaloneOperation(row, inputs, settings)
            sizes = list(module(*module.meta_inputs(2)).shape)
    except Exception as error:  # raised by the user's own class
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}: expected an output, got {type(error).__name__}: {reason}") from error
    if sizes != [2, *expected.sizes]:
        raise ValueError(f"{name}: expected {[2, *expected.sizes]} as from infer_shape, got {sizes}")


def cost_of(row: type[Operation], inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return parameters and multiply-adds of one example: those of the class, where it has none counted."""
    num_parameters, multiply_adds = row.num_parameters(inputs, settings), row.multiply_adds(inputs, settings)
    if num_parameters is None or multiply_adds is None:
        key = row, tuple(inputs.items()), json.dumps(thawed(settings), sort_keys=True)
        counts = _counted(*key, is_run=multiply_adds is None)
        num_parameters = counts[0] if num_parameters is None else num_parameters
        multiply_adds = counts[1] if multiply_adds is None else multiply_adds
    return num_parameters, multiply_adds


@lru_cache(maxsize=2**16)
def _counted(
    row: type[Operation], inputs: tuple[tuple[str, Shape], ...], settings: str, *, is_run: bool
) -> tuple[int, int]:
    """Return trainable parameters, and with `is_run` multiply-adds of one example, by torch.utils.flop_counter.

    `settings` are a JSON text, in which 2 and 2.0 differ.
    """
    values = {key: hashable(value) for key, value in json.loads(settings).items()}
    with torch.device("meta"), torch.no_grad(), MultiplyAdds() if is_run else nullcontext() as counter:
        module = StandaloneOperation(row, dict(inputs), values)
        if is_run:  # two examples, because some layers refuse a batch of one in training
            module(*module.meta_inputs(2))
    num_parameters = sum(each.numel() for each in module.parameters() if each.requires_grad)
    return num_parameters, 0 if counter is None else counter.total // 2
