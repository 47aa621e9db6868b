"""Any nn.Module as an operation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gflownet.graphs.operation import Example, Operation, Setting, single_input
from gflownet.graphs.tensor_shape import Layout, Shape, ShapeError
from gflownet.graphs.vocabulary import Parameter
from gflownet.plugins import is_module_class, load_class

if TYPE_CHECKING:
    from torch import nn

MODULE = Parameter("module:Class of an nn.Module", is_module_class)
ARGUMENTS = Parameter("an object of keyword arguments", lambda value: value == () or isinstance(value, Mapping))


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
        sizes = _output_sizes(settings["module"], settings["arguments"], shape)
        if len(sizes) == len(shape.sizes) and shape.layout is not Layout.TOKENS:
            return Shape(sizes, shape.layout)
        return Shape.of(sizes)

    @classmethod
    def build(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> nn.Module:
        return _module_class(settings["module"])(**dict(settings["arguments"]))


def _module_class(name: str) -> Any:
    return load_class("operation.module", name, {}, contract=import_module("torch").nn.Module)


@lru_cache(maxsize=1024)
def _output_sizes(name: str, arguments: tuple[tuple[str, Any], ...], shape: Shape) -> tuple[int, ...]:
    module_class = _module_class(name)
    try:
        if hasattr(module_class, "infer_shape"):
            return tuple(module_class.infer_shape(shape.sizes, **dict(arguments)))
        torch = import_module("torch")
        dtype = torch.long if shape.layout is Layout.TOKENS else torch.get_default_dtype()
        with torch.device("meta"), torch.no_grad():
            output = module_class(**dict(arguments))(torch.empty(2, *shape.sizes, dtype=dtype))
        return tuple(output.shape[1:])
    except Exception as error:  # raised by the user's own module
        reason = " ".join(str(error).split())
        raise ShapeError(f"expected {name} to accept {shape}, got {type(error).__name__}: {reason}") from error
