"""Any nn.Module as an operation, named module:Class.

Its settings are the arguments of its constructor, its ports those of `forward`. Shape, parameters and multiply-adds are
found on tensors without data.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar, get_overloads

from gflownet.operations.neuron_code import outside_name
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT, Operation, Setting, category_of, is_port
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.values import hashable, is_finite, shown, thawed
from gflownet.operations.vocabulary import Parameter

_MIN_BATCH = 13  # examples of a run without data; no other axis has this size, so that it shows where the batch is
BATCH_FIRST = "batch_first"
OUTPUT, LAYOUT = "output", "layout"  # settings besides the arguments of the constructor


def _channels(inputs: Mapping[str, Shape]) -> int:
    """Return the size of the axis after the batch, which layers with channels read."""
    shape = next(iter(inputs.values()))
    if shape.layout in (Layout.SEQUENCE, Layout.TOKENS):
        raise ShapeError(f"expected channels before positions, got {shape}; to_signal moves them")
    return shape.channels


def _features(port: str = "") -> Callable[[Mapping[str, Shape]], int | None]:
    """Return a function of the inputs: the size of the last axis at a port or, without a name, at the first one."""

    def size(inputs: Mapping[str, Shape]) -> int | None:
        shape = inputs.get(port) if port else next(iter(inputs.values()))
        return None if shape is None or shape.layout is Layout.TOKENS else shape.sizes[-1]

    return size


def _normalised(inputs: Mapping[str, Shape]) -> tuple[int, ...]:
    """Return the features of a vector or a sequence, all axes of a signal or an image: as torch.nn.LayerNorm's docs."""
    shape = next(iter(inputs.values()))
    return shape.sizes if shape.layout in (Layout.SIGNAL, Layout.IMAGE) else shape.sizes[-1:]


# Arguments of constructors that are filled from the shapes of the inputs unless they are given.
FILLED: Mapping[str, Callable[[Mapping[str, Shape]], Any]] = MappingProxyType(
    {
        **dict.fromkeys(("in_channels", "num_features", "num_channels", "input_channels", "in_chans"), _channels),
        **dict.fromkeys(("in_features", "input_size", "input_dim", "in_dim", "embed_dim", "d_model"), _features()),
        **{"in1_features": _features("input1"), "in2_features": _features("input2")},
        **{"kdim": _features("key"), "vdim": _features("value"), "normalized_shape": _normalised},
        BATCH_FIRST: lambda inputs: True,
    }
)
_FIRST = Parameter("true: the batch is the first axis", lambda value: value in (None, True))
_PART = Parameter(
    "an index or a key of the result, or a list of them",
    lambda value: all(type(each) in (int, str) for each in (value if isinstance(value, list | tuple) else [value])),
)
_LAYOUTS = tuple(each.value for each in Layout if each is not Layout.TOKENS)
_LAYOUT = Parameter(f"one of {', '.join(_LAYOUTS)}", lambda value: value in _LAYOUTS)


@dataclass(frozen=True)
class _Result:
    """A module run without data."""

    sizes: tuple[int, ...]  # of the output, without the batch
    num_parameters: int  # trainable
    weight: tuple[int, ...]  # sizes of its `weight`; empty: none


class ModuleOperation(Operation):
    """Base of the operations of modules; `module_operation` makes one for each class.

    The class may define `infer_shape(sizes, **arguments)`, a static method that returns the sizes of the output without
    the batch: where its forward needs data.
    """

    name: ClassVar[str]  # module:Class
    module_class: ClassVar[Any]
    arguments: ClassVar[Mapping[str, inspect.Parameter]]  # of the constructor

    @classmethod
    def keywords(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the constructor that differ from its defaults."""
        ordered = {port: inputs[port] for port in (*cls.ports, *cls.optional_ports) if port in inputs}
        keywords = {}
        for key, argument in cls.arguments.items():
            value, default = settings[key], cls.settings[key].default
            if value is None and key in FILLED:
                value = FILLED[key](ordered)
            if (value != default or argument.default is argument.empty) and repr(value) != repr(argument.default):
                keywords[key] = _python(value)
        return keywords

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        words = (f"{key}={value!r}" for key, value in cls.keywords(inputs, settings).items())
        module, _, leaf = cls.name.partition(":")
        return f"{f'nn.{leaf}' if module == 'torch.nn' else outside_name(cls.name)}({', '.join(words)})"

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        words = [f"{{{port}}}" for port in cls.ports]
        words += [f"{port}={{{port}}}" for port in cls.optional_ports if port in inputs]
        return "{module}(" + ", ".join(words) + ")" + "".join(f"[{part!r}]" for part in cls.path(settings))

    @classmethod
    def path(cls, settings: Mapping[str, Any]) -> tuple[int | str, ...]:
        """Return the indices and keys that lead to the output in the result of the module."""
        part = None if OUTPUT in cls.arguments else settings[OUTPUT]
        return () if part is None else part if isinstance(part, tuple) else (part,)

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, sizes = inputs[cls.ports[0]], _run(cls, *_key(inputs, settings)).sizes
        if LAYOUT not in cls.arguments and settings[LAYOUT] is not None:
            return Shape(sizes, Layout(settings[LAYOUT]))
        if len(sizes) == len(shape.sizes) and shape.layout is not Layout.TOKENS:
            return Shape(sizes, shape.layout)
        # Channels stay before positions.
        return Shape.of(sizes, Layout.SIGNAL if shape.layout is Layout.IMAGE and len(sizes) == 2 else None)

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return _run(cls, *_key(inputs, settings)).num_parameters

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return _multiply_adds(cls, *_key(inputs, settings))

    @classmethod
    def weight_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        sizes = _run(cls, *_key(inputs, settings)).weight
        return Shape.of(sizes) if sizes else super().weight_shape(inputs, settings)


def module_operation(name: str, module_class: Any) -> type[ModuleOperation]:
    """Return the operation of a subclass of nn.Module.

    Raises:
        ValueError: a lazy class, one without forward, or one with an argument of forward that cannot be a port.
    """
    nn = import_module("torch").nn
    if module_class.forward is nn.Module.forward:
        raise ValueError(f"operation: expected {name} to define forward")
    if issubclass(module_class, nn.modules.lazy.LazyModuleMixin):
        raise ValueError(f"operation: expected a class whose sizes are filled from the input, got the lazy {name}")
    arguments = _arguments(module_class)
    words = (str(each.replace(annotation=each.empty)) for each in arguments.values())
    signature = f"{module_class.__name__}({', '.join(words)})"
    settings = {OUTPUT: Setting(_PART, None, is_later=True), LAYOUT: Setting(_LAYOUT, None, is_later=True)}
    ports, optional_ports = _ports(name, module_class)
    fields = {"name": name, "module_class": module_class, "arguments": arguments, "signature": signature}
    fields |= {"ports": ports, "optional_ports": optional_ports, "category": category_of(module_class.__name__)}
    fields["settings"] = {
        **{key: _setting(each, signature) for key, each in arguments.items()},
        **{key: each for key, each in settings.items() if key not in arguments},
    }
    is_torch = name.startswith("torch.nn")
    fields["outside"] = {} if is_torch and name.startswith("torch.nn:") else {outside_name(name): name}
    return type(module_class.__name__, (ModuleOperation,), {"__doc__": module_class.__doc__, **fields})


def _arguments(module_class: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments of a constructor by name; those behind **kwargs are the arguments of its base class."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in module_class.__mro__[:-1]:  # without `object`
        if "__init__" in vars(base):
            initial: Any = (get_overloads(base.__init__) or [base.__init__])[0]
            _, *parameters = inspect.signature(initial).parameters.values()
            named = (each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
            arguments = {**{each.name: each for each in named}, **arguments}
            if not any(each.kind is each.VAR_KEYWORD for each in parameters):
                break
    # Device and dtype are chosen by the translation.
    return {key: each for key, each in arguments.items() if key not in ("device", "dtype")}


def _ports(name: str, module_class: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arguments of forward that an edge must feed, and those that one may feed; a single one is `input`."""
    _, *parameters = inspect.signature(module_class.forward).parameters.values()
    named = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    required = tuple(each.name for each in named if each.default is each.empty)
    optional = tuple(each.name for each in named if each.default is None)
    ports = required if len(required) > 1 else (INPUT_PORT,)
    for port in (*ports, *optional):
        if not is_port(port) or port == WEIGHT_PORT:
            raise ValueError(f"operation: expected {name}.forward without an argument {port}")
    return ports, tuple(port for port in optional if port not in ports)


def _setting(argument: inspect.Parameter, signature: str) -> Setting:
    """Return the setting of an argument: required, its default or, where that is no JSON value or filled, null."""
    if argument.name == BATCH_FIRST:
        return Setting(_FIRST, None, is_later=True)
    parameter, default = Parameter(f"a value as in {signature}", _is_json), argument.default
    if argument.name in FILLED:
        return Setting(parameter, None, is_later=True)
    if default is argument.empty:
        return Setting(parameter)
    return Setting(parameter, hashable(default) if _is_json(default) else None, is_later=True)


def _is_json(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, bool | str) or is_finite(value)


def _python(value: Any) -> Any:
    """Return a frozen value with dicts in place of frozen objects; lists remain tuples."""
    if isinstance(value, Mapping):
        return {key: _python(item) for key, item in value.items()}
    return tuple(map(_python, value)) if isinstance(value, tuple) else value


def _key(inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> tuple[tuple[tuple[str, Shape], ...], str]:
    """Return the key of a run; 2 and 2.0 differ in the JSON text."""
    return tuple(inputs.items()), json.dumps(thawed(settings), sort_keys=True)


def _built(row: type[ModuleOperation], keywords: Mapping[str, Any]) -> Any:
    """Return the module without data, or the exception of its constructor; one of torch.nn serves all shapes."""
    build = _build if row.name.startswith("torch.nn") else _build.__wrapped__
    return build(row, json.dumps(thawed(keywords)))


@lru_cache(maxsize=2**12)
def _build(row: type[ModuleOperation], text: str) -> Any:
    keywords = {key: _python(hashable(value)) for key, value in json.loads(text).items()}
    try:
        with import_module("torch").device("meta"):
            return row.module_class(**keywords)
    except Exception as error:  # raised by the module
        return error


@lru_cache(maxsize=2**16)
def _run(row: type[ModuleOperation], inputs: tuple[tuple[str, Shape], ...], text: str) -> _Result:
    """Return what a run without data shows. Raises ShapeError with the call and torch's own reason."""
    shapes = dict(inputs)
    settings = {key: hashable(value) for key, value in json.loads(text).items()}
    keywords = row.keywords(shapes, settings)
    if BATCH_FIRST in keywords and len(shapes[row.ports[0]].sizes) < 2:
        raise ShapeError(f"expected a sequence, got {shapes[row.ports[0]]}")  # would be one sequence of the batch
    module = _built(row, keywords)
    try:
        if isinstance(module, Exception):
            raise module
        if (declared := getattr(row.module_class, "infer_shape", None)) is not None:
            sizes = tuple(declared(shapes[row.ports[0]].sizes, **keywords))
        else:
            sizes = _output_sizes(row, module, shapes, settings)
    except ShapeError:
        raise
    except Exception as error:  # raised by the module
        words = ", ".join(f"{key}={shown(value)}" for key, value in keywords.items())
        expected = f"expected {row.module_class.__name__}({words}) to accept {' and '.join(map(str, shapes.values()))}"
        reason = " ".join(str(error).split())
        raise ShapeError(f"{expected}, got {type(error).__name__}: {reason}") from error
    weight = tuple(getattr(getattr(module, "weight", None), "shape", ()))
    return _Result(sizes, sum(each.numel() for each in module.parameters() if each.requires_grad), weight)


@lru_cache(maxsize=2**16)
def _multiply_adds(row: type[ModuleOperation], inputs: tuple[tuple[str, Shape], ...], text: str) -> int:
    """Return the multiply-adds of one example, by the formulas of torch.utils.flop_counter."""
    from gflownet.operations.standalone import MultiplyAdds  # imports torch

    shapes = dict(inputs)
    settings = {key: hashable(value) for key, value in json.loads(text).items()}
    module = _built(row, row.keywords(shapes, settings))
    with MultiplyAdds() as counter:
        _, batch, num_steps = _called(row, module, shapes)
    return num_steps * counter.total // batch


def _called(row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape]) -> tuple[Any, int, int]:
    """Return the result of a call without data, the size of its batch, and the number of time steps it stands for."""
    torch = import_module("torch")
    batch = next(n for n in count(_MIN_BATCH) if all(n not in shape.sizes for shape in shapes.values()))
    tensors = {port: _tensor(shape, batch) for port, shape in shapes.items()}
    num_steps = 1
    if isinstance(module, torch.nn.RNNBase):  # slow without data
        num_steps = tensors[INPUT_PORT].shape[1]
        tensors[INPUT_PORT] = tensors[INPUT_PORT][:, :1]
    required = [tensors.pop(port) for port in row.ports]
    with torch.device("meta"), torch.no_grad():
        return module(*required, **tensors), batch, num_steps


@lru_cache(maxsize=2**12)
def _tensor(shape: Shape, batch: int) -> Any:
    from gflownet.operations.standalone import meta_input  # imports torch

    return meta_input(INPUT_PORT, shape, batch)


def _output_sizes(
    row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape], settings: Mapping[str, Any]
) -> tuple[int, ...]:
    """Return the sizes of the output without the batch. Raises ShapeError unless it is one floating tensor [B, ...]."""
    output, batch, num_steps = _called(row, module, shapes)
    for part in row.path(settings):
        output = output[part]
    if not hasattr(output, "is_floating_point"):
        keys = list(output) if isinstance(output, Mapping) else range(len(output)) if isinstance(output, tuple) else ()
        parts = ", ".join(map(repr, keys)) or "no parts"
        raise ShapeError(f"expected a tensor, got a {type(output).__name__} of {parts}; {OUTPUT} names one of them")
    if not output.is_floating_point():
        raise ShapeError(f"expected an output of floating numbers, got {output.dtype}")
    if output.shape[:1] != (batch,):
        raise ShapeError(f"expected an output with the batch of {batch} first, got {list(output.shape)}")
    return tuple(output.shape[1:]) if num_steps == 1 else (num_steps, *output.shape[2:])
