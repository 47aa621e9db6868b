"""Any nn.Module as an operation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gflownet.operations.operation import Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import Parameter
from gflownet.plugins import is_module_class, load_class

if TYPE_CHECKING:
    from torch import nn

MODULE = Parameter("module:Class of an nn.Module", is_module_class)
# The device is chosen by the translation: shapes need no memory.
ARGUMENTS = Parameter(
    "an object of keyword arguments without device and dtype",
    lambda value: value == () or (isinstance(value, Mapping) and not {"device", "dtype"} & value.keys()),
)


class Opaque(Operation):
    """A module of torch.nn or of the user's: `module` is module:Class, `arguments` are its keyword arguments.

    The class may define `infer_shape(sizes, **arguments)`, a static method that returns the output sizes without the
    batch; otherwise the module runs once on tensors without data. Its input is a tensor [B, *sizes].
    """

    settings = MappingProxyType({"module": Setting(MODULE), "arguments": Setting(ARGUMENTS, ())})
    examples = (
        Example((Shape.of(3),), {"module": "torch.nn:Linear", "arguments": {"in_features": 3, "out_features": 2}}),
    )

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape = single_input(inputs)
        sizes = _output_sizes(settings["module"], json.dumps(_keywords(settings), sort_keys=True), shape)
        if len(sizes) == len(shape.sizes) and shape.layout is not Layout.TOKENS:
            return Shape(sizes, shape.layout)
        return Shape.of(sizes)

    @classmethod
    def build(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> nn.Module:
        return _module_class(settings["module"])(**_keywords(settings))


def _keywords(settings: Mapping[str, Any]) -> dict[str, Any]:
    return thawed(dict(settings["arguments"]))


def _module_class(name: str) -> Any:
    return load_class("operation.module", name, {}, contract=import_module("torch").nn.Module)


@lru_cache(maxsize=1024)
def _output_sizes(name: str, arguments: str, shape: Shape) -> tuple[int, ...]:
    """Return the output sizes for the JSON text of the arguments, in which 2 and 2.0 differ."""
    module_class, keywords = _module_class(name), json.loads(arguments)
    try:
        if (infer_shape := getattr(module_class, "infer_shape", None)) is not None:
            return tuple(infer_shape(shape.sizes, **keywords))
        torch = import_module("torch")
        dtype = torch.long if shape.layout is Layout.TOKENS else torch.get_default_dtype()
        with torch.device("meta"), torch.no_grad():
            output = module_class(**keywords)(torch.empty(2, *shape.sizes, dtype=dtype))
        batch, *sizes = output.shape
    except Exception as error:  # raised by the user's own module
        reason = " ".join(str(error).split())
        raise ShapeError(f"expected {name} to accept {shape}, got {type(error).__name__}: {reason}") from error
    if batch != 2:
        raise ShapeError(f"expected {name} to keep the batch axis of 2, got {batch}")
    return tuple(sizes)
