"""Any nn.Module or function of tensors as an operation, named module:Class or module:function.

The settings of a module are the arguments of its constructor, its ports those of `forward`; a function's tensors are
ports, its other arguments settings. Shape, parameters and multiply-adds are found on tensors without data.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from importlib import import_module
from itertools import count
from operator import getitem
from types import MappingProxyType
from typing import Any, ClassVar, get_overloads

from gflownet.operations.neuron_code import outside_name
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT, Operation, Setting, category_of, is_port
from gflownet.operations.tensor_shape import CHANNELS_FIRST, FLOATS, Layout, Shape, ShapeError
from gflownet.operations.values import hashable, is_finite, shown, thawed
from gflownet.operations.vocabulary import Parameter
from gflownet.plugins import is_module_class, load_function

_SMALL = 2**16  # numbers in a module of torch.nn and its inputs: with data it runs 10 times as fast as without
_HAS_RUN = "_has_run_without_data"  # attribute of a module
_MIN_BATCH = 13  # examples of a run without data; no other axis has this size, so that it shows where the batch is
BATCH_FIRST = "batch_first"
OUTPUT, LAYOUT = "output", "layout"  # settings besides the arguments of the constructor
_MAX_RUN = 10**7  # weights and input elements of a module that is run with data
_mixing: dict[tuple[Any, ...], bool] = {}  # whether examples are mixed, by class, settings and numbers of axes


def _channels(inputs: Mapping[str, Shape]) -> int:
    """Return the size of the axis after the batch, which layers with channels read."""
    shape = next(iter(inputs.values()))
    if shape.layout in (Layout.SEQUENCE, Layout.TOKENS):
        raise ShapeError(f"expected channels before positions, got {shape}; to_signal moves them")
    return shape.channels


def _width(inputs: Mapping[str, Shape]) -> int | None:
    """Return the features of the first input: the channels of images and the like, the last axis of others."""
    shape = next(iter(inputs.values()))
    return None if shape.layout is Layout.TOKENS else shape.channels


def _features(port: str = "") -> Callable[[Mapping[str, Shape]], int | None]:
    """Return a function of the inputs: the size of the last axis at a port or, without a name, at the first one."""

    def size(inputs: Mapping[str, Shape]) -> int | None:
        shape = inputs.get(port) if port else next(iter(inputs.values()))
        return None if shape is None or shape.layout is Layout.TOKENS else shape.sizes[-1]

    return size


def _normalised(inputs: Mapping[str, Shape]) -> tuple[int, ...]:
    """Return the features of a vector or a sequence, all axes of other inputs: as torch.nn.LayerNorm's docs."""
    shape = next(iter(inputs.values()))
    return shape.sizes if shape.layout in CHANNELS_FIRST else shape.sizes[-1:]


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
# Required arguments of classes outside of torch, of which the first is the width; in torch `dim` is an axis.
_WIDTHS = ("dim", "channels", "inplanes", "in_planes", "n_embd")
_FIRST = Parameter("true: the batch is the first axis", lambda value: value in (None, True))
_PART = Parameter(
    "an index or a key of the result, or a list of them",
    lambda value: all(type(each) in (int, str) for each in (value if isinstance(value, list | tuple) else [value])),
)
_LAYOUTS = tuple(each.value for each in FLOATS)
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
    filled: ClassVar[Mapping[str, Callable[[Mapping[str, Shape]], Any]]] = FILLED

    @classmethod
    def keywords(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the constructor that differ from its defaults."""
        ordered = {port: inputs[port] for port in (*cls.ports, *cls.optional_ports) if port in inputs}
        keywords = {}
        for key, argument in cls.arguments.items():
            value, default = settings[key], cls.settings[key].default
            if value is None and key in cls.filled:
                value = cls.filled[key](ordered)
            if (value != default or argument.default is argument.empty) and repr(value) != repr(argument.default):
                keywords[key] = _python(value)
        return keywords

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"{_expression(cls.name)}({', '.join(cls.words(inputs, settings))})"

    @classmethod
    def words(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> list[str]:
        """Return the arguments of the constructor as Python."""
        keywords = cls.keywords(inputs, settings)
        return [f"{key}={_code(value, cls.arguments[key])}" for key, value in keywords.items()]

    @classmethod
    def built(cls, keywords: Mapping[str, Any]) -> Any:
        """Return the module with the arguments of the constructor, names in place of classes and functions."""
        return cls.module_class(**{key: _object(value, cls.arguments[key]) for key, value in keywords.items()})

    @classmethod
    def named(cls, settings: Mapping[str, Any]) -> list[str]:
        """Return the classes and functions that the arguments name."""
        return sorted({each for key, argument in cls.arguments.items() for each in _names(settings[key], argument)})

    @classmethod
    def outside_names(cls, settings: Mapping[str, Any]) -> dict[str, str]:
        return {**cls.outside, **_outside(cls.named(settings))}

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return f"{{module}}({cls.passed(inputs)}){cls.part(inputs, settings)}"

    @classmethod
    def passed(cls, inputs: Mapping[str, Shape]) -> str:
        """Return the tensors of a call: the first one by its place, the others by their names."""
        first, *further = (port for port in (*cls.ports, *cls.optional_ports) if port in inputs)
        return ", ".join([f"{{{first}}}", *(f"{port}={{{port}}}" for port in further)])

    @classmethod
    def part(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        """Return the indices that take the output out of the result; one number per example is a vector of one."""
        indices = [repr(part) for part in cls.path(settings)]
        return "".join(
            f"[{each}]" for each in (*indices, *([] if _run(cls, *_key(inputs, settings)).sizes else [":, None"]))
        )

    @classmethod
    def path(cls, settings: Mapping[str, Any]) -> tuple[int | str, ...]:
        """Return the indices and keys that lead to the output in the result of the module."""
        part = None if OUTPUT in cls.arguments else settings[OUTPUT]
        return () if part is None else part if isinstance(part, tuple) else (part,)

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, sizes = inputs[cls.ports[0]], _run(cls, *_key(inputs, settings)).sizes or (1,)
        if LAYOUT not in cls.arguments and settings[LAYOUT] is not None:
            return Shape(sizes, Layout(settings[LAYOUT]))
        if len(sizes) == len(shape.sizes) and shape.layout is not Layout.TOKENS:
            return Shape(sizes, shape.layout)
        # Channels stay before positions.
        return Shape.of(sizes, Layout.SIGNAL if shape.layout in CHANNELS_FIRST and len(sizes) == 2 else None)

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
    widths = () if name.startswith("torch.") else _WIDTHS
    arguments = _arguments(module_class, {*FILLED, *widths})
    own = [key for key, each in arguments.items() if key in FILLED or (key in widths and _is_required(each))]
    filled = FILLED if not own or own[0] in FILLED else {**FILLED, own[0]: _width}
    words = (str(each.replace(annotation=each.empty)) for each in arguments.values())
    signature = f"{module_class.__name__}({', '.join(words)})"
    _, *of_forward = inspect.signature(module_class.forward).parameters.values()
    named = [each for each in of_forward if each.kind is each.POSITIONAL_OR_KEYWORD]
    fields = {"name": name, "module_class": module_class, "signature": signature, "filled": filled}
    fields |= {
        **_settings(arguments, signature, filled),
        **_ports(f"{name}.forward", named),
        "category": category_of(module_class.__name__),
    }
    fields["outside"] = _outside([name])
    return type(module_class.__name__, (ModuleOperation,), {"__doc__": module_class.__doc__, **fields})


class FunctionOperation(ModuleOperation):
    """Base of the operations of functions; `function_operation` makes one for each function."""

    forms: ClassVar[Sequence[_Form]]

    @classmethod
    def required_ports(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the tensors of the first form with these settings: torch:mul with a number `other` has one."""
        present = {key for key in cls.arguments if settings.get(key) is not None}
        fitting = (form.ports for form in cls.forms if form.required <= present <= form.values.keys())
        return next(fitting, cls.ports) if len(cls.forms) > 1 else cls.ports

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return ""

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        words = "".join(f", {each}" for each in cls.words(inputs, settings)).replace("{", "{{").replace("}", "}}")
        return f"{_expression(cls.name)}({cls.passed(inputs)}{words}){cls.part(inputs, settings)}"


_FUNCTIONAL = "torch.nn.functional"
_IMPORTED = {"torch": "torch", "torch.nn": "nn", _FUNCTIONAL: "F"}  # modules in generated code
_OF_TORCH = ("torch", _FUNCTIONAL, "torch.linalg", "torch.fft", "torch.special")  # others do more than calculate
# Arguments that the translation chooses.
_OF_TENSORS = ("device", "dtype", "out", "layout", "memory_format", "generator", "pin_memory")


@dataclass(frozen=True)
class _Form:
    """One of the lists of arguments that a function accepts."""

    ports: tuple[str, ...]
    optional_ports: tuple[str, ...]
    values: Mapping[str, inspect.Parameter]  # arguments other than tensors

    @property
    def required(self) -> set[str]:
        """The names of the values without a default."""
        return {key for key, each in self.values.items() if _is_required(each)}


def function_operation(name: str, function: Callable[..., Any]) -> type[FunctionOperation]:
    """Return the operation of a function: its tensors are ports, its other arguments settings.

    Raises:
        ValueError: a function whose first argument is no tensor, of a list of tensors or the weight of a layer, or with
            an argument `training`.
    """
    module, _, leaf = name.partition(":")
    if module.startswith("torch.") and module not in _OF_TORCH:
        raise ValueError(f"operation: expected a function of {', '.join(_OF_TORCH)}, got {name}")
    forms = [*_forms(name, function)]
    if not forms:
        reason = "no list of tensors, no weight and no argument training; a module of torch.nn may do it"
        raise ValueError(f"operation: expected a function with a tensor first, {reason}, got {name}")
    ports = forms[0].ports
    optional = {port for form in forms for port in (*form.ports, *form.optional_ports)} - {*ports}
    arguments = {key: each for form in forms for key, each in form.values.items()}
    if len(forms) > 1:  # null: not given
        arguments = {key: each.replace(default=None) for key, each in arguments.items()}
    signature = f"{leaf}({', '.join({**dict.fromkeys((*ports, *sorted(optional))), **arguments})})"
    fields = {"name": name, "module_class": staticmethod(partial(partial, function)), "signature": signature}
    fields |= {"forms": forms, "ports": ports, "optional_ports": (*sorted(optional),), "category": category_of(leaf)}
    fields["outside"] = _outside([name])
    fields |= _settings(arguments, signature, FILLED)
    return type(leaf, (FunctionOperation,), {"__doc__": function.__doc__, **fields})


def _forms(name: str, function: Callable[..., Any]) -> Iterator[_Form]:
    """Yield the forms of a function that can be an operation; those of a built-in one of torch are its schemas."""
    if inspect.isbuiltin(function):
        operator, read = f"aten::{function.__name__}", import_module("torch")._C._jit_get_schemas_for_operator
        schemas = read(operator) if name.partition(":")[0] in _OF_TORCH else []
        lists = [[*map(_parameter, each.arguments)] for each in schemas if "!" not in str(each)]  # !: writes into one
    else:
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        lists = [[each for each in inspect.signature(function).parameters.values() if each.kind in named]]
    for arguments in lists:
        tensors = [each for each in arguments if _is_tensor(each) and each.name not in _OF_TENSORS]
        values = {each.name: each for each in arguments if not (_is_tensor(each) or each.name.startswith("_"))}
        is_weighted = any(each.name == WEIGHT_PORT and each.default is each.empty for each in tensors)
        is_list = any(re.match("(typing.)?(list|sequence|tuple)", str(each.annotation), re.I) for each in tensors)
        if tensors and tensors[0] is arguments[0] and not (is_weighted or is_list or "training" in values):
            ports = _ports(name, [each for each in tensors if each.name != WEIGHT_PORT])
            values = {key: each for key, each in values.items() if key not in _OF_TENSORS}
            yield _Form(ports["ports"], ports["optional_ports"], values)


def _parameter(argument: Any) -> inspect.Parameter:
    """Return an argument of a schema as one of a signature."""
    name, default = argument.name, argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    name = INPUT_PORT if name == "self" else name
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=str(argument.type))


def _is_tensor(argument: inspect.Parameter) -> bool:
    """Return whether an argument is a tensor by its annotation, or required and without one."""
    if argument.annotation is argument.empty:
        return argument.default is argument.empty
    return "Tensor" in str(argument.annotation)


def _is_required(argument: inspect.Parameter) -> bool:
    return argument.default is argument.empty


def _arguments(module_class: Any, filled: Set[str]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a constructor by name; those behind **kwargs are the arguments of its base class.

    A class that has a size of the input as its own argument passes on what its base class requires.
    """
    arguments: dict[str, inspect.Parameter] = {}
    for base in module_class.__mro__[:-1]:  # without `object`
        if "__init__" in vars(base):
            initial: Any = (get_overloads(base.__init__) or [base.__init__])[0]
            _, *parameters = inspect.signature(initial).parameters.values()
            named = (each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
            is_passed = not filled.isdisjoint(arguments)
            named = (each for each in named if not (is_passed and _is_required(each)))
            arguments = {**{each.name: each for each in named}, **arguments}
            if not any(each.kind is each.VAR_KEYWORD for each in parameters):
                break
    # Device and dtype are chosen by the translation.
    return {key: each for key, each in arguments.items() if key not in ("device", "dtype")}


def _ports(name: str, tensors: Sequence[inspect.Parameter]) -> dict[str, tuple[str, ...]]:
    """Return the tensors that an edge must feed, and those that one may feed; a single one is `input`."""
    required = tuple(each.name for each in tensors if each.default is each.empty)
    optional = tuple(each.name for each in tensors if each.default is None)
    ports = required if len(required) > 1 else (INPUT_PORT,)
    for port in (*ports, *optional):
        if not is_port(port) or port == WEIGHT_PORT:
            raise ValueError(f"operation: expected {name} without an argument {port}")
    return {"ports": ports, "optional_ports": tuple(port for port in optional if port not in ports)}


def _settings(arguments: Mapping[str, inspect.Parameter], signature: str, filled: Container[str]) -> dict[str, Any]:
    """Return the arguments, and the settings of them, of the output's part and of its layout."""
    of_output = {OUTPUT: Setting(_PART, None, is_later=True), LAYOUT: Setting(_LAYOUT, None, is_later=True)}
    settings = {key: _setting(each, signature, is_filled=key in filled) for key, each in arguments.items()}
    return {"arguments": arguments, "settings": {**of_output, **settings}}


def _setting(argument: inspect.Parameter, signature: str, *, is_filled: bool) -> Setting:
    """Return the setting of an argument: required, its default or, where that is no JSON value or filled, null."""
    if argument.name == BATCH_FIRST:
        return Setting(_FIRST, None, is_later=True)
    parameter, default = Parameter(f"a value as in {signature}", _is_json), argument.default
    if is_filled:
        return Setting(parameter, None, is_later=True)
    if default is argument.empty:
        return Setting(parameter)
    named = f"{getattr(default, '__module__', '')}:{getattr(default, '__qualname__', '')}"
    named = re.sub(r"^torch\.nn\.modules\.\w+:", "torch.nn:", named)
    other = named if callable(default) and is_module_class(named) else None
    return Setting(parameter, hashable(default) if _is_json(default) else other, is_later=True)


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


_PARTIAL = "functools:partial"


def _expression(name: str) -> str:
    """Return the expression of a class or function module:Class in generated code."""
    module, _, leaf = name.partition(":")
    return f"{_IMPORTED[module]}.{leaf}" if module in _IMPORTED else outside_name(name)


def _outside(names: Iterable[str]) -> dict[str, str]:
    """Return the classes and functions that generated code has to import, by their names in it."""
    return {outside_name(each): each for each in names if each.partition(":")[0] not in _IMPORTED}


def _is_name(value: Any, argument: inspect.Parameter) -> bool:
    """Return whether a text names a class or function that an argument expects."""
    is_text = argument.annotation in (str, "str") or isinstance(argument.default, str)
    return is_module_class(value) and not is_text


def _is_call(value: Any, argument: inspect.Parameter) -> bool:
    """Return whether an object names a class or function in `name`, and its arguments."""
    return isinstance(value, Mapping) and _is_name(value.get("name"), argument)


def _is_instance(argument: inspect.Parameter) -> bool:
    """Return whether an argument is a module, by its annotation or its default, not a function that makes one."""
    default, annotation = argument.default, str(argument.annotation)
    if inspect.isroutine(default) or (isinstance(default, type) and default is not argument.empty):
        return False
    return "Callable" not in annotation and "type[" not in annotation.lower()


def _names(value: Any, argument: inspect.Parameter) -> Iterator[str]:
    """Yield the classes and functions that a setting names."""
    if _is_name(value, argument):
        yield value
    elif isinstance(value, Mapping):
        if _is_call(value, argument) and not _is_instance(argument):
            yield _PARTIAL
        for each in value.values():
            yield from _names(each, argument)
    elif isinstance(value, tuple):
        for each in value:
            yield from _names(each, argument)


def _code(value: Any, argument: inspect.Parameter) -> str:
    """Return the Python expression of a value."""
    if _is_name(value, argument):
        return _expression(value)
    if _is_call(value, argument):
        function = _expression(value["name"])
        words = [f"{key}={_code(each, argument)}" for key, each in value.items() if key != "name"]
        head, first = (function, []) if _is_instance(argument) else (_expression(_PARTIAL), [function])
        return f"{head}({', '.join([*first, *words])})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_code(each, argument)}' for key, each in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(_code(each, argument) for each in value)}{',' if len(value) == 1 else ''})"
    return repr(value)


def _object(value: Any, argument: inspect.Parameter) -> Any:
    """Return a value with classes and functions in place of their names, as its expression has."""
    if _is_name(value, argument):
        return load_function("operation", value)
    if isinstance(value, Mapping):
        words = {key: _object(each, argument) for key, each in value.items()}
        if not _is_call(value, argument):
            return words
        function = words.pop("name")
        return function(**words) if _is_instance(argument) else partial(function, **words)
    return tuple(_object(each, argument) for each in value) if isinstance(value, tuple) else value


def _key(inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> tuple[tuple[tuple[str, Shape], ...], str]:
    """Return the key of a run; 2 and 2.0 differ in the JSON text."""
    return tuple(inputs.items()), json.dumps(thawed(settings), sort_keys=True)


def _built(row: type[ModuleOperation], keywords: Mapping[str, Any]) -> Any:
    """Return the module without data, or the exception of its constructor; one of torch.nn serves all shapes."""
    build = _build if row.name.startswith("torch.nn") else _build.__wrapped__
    return build(row, json.dumps(thawed(keywords)))


@lru_cache(maxsize=2**12)
def _build(row: type[ModuleOperation], text: str, device: str = "meta") -> Any:
    keywords = {key: _python(hashable(value)) for key, value in json.loads(text).items()}
    try:
        with import_module("torch").device(device):
            return row.built(keywords)
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
        expected = f"expected {row.__name__}({words}) to accept {' and '.join(map(str, shapes.values()))}"
        reason = " ".join(str(error).split())
        raise ShapeError(f"{expected}, got {type(error).__name__}: {reason}") from error
    weight = tuple(getattr(getattr(module, "weight", None), "shape", ()))
    key = row, text, *(len(shape.sizes) for _, shape in inputs)
    if key not in _mixing:
        _mixing[key] = _is_mixing(row, module, shapes, settings)
    if _mixing[key]:
        raise ShapeError("expected an output for each example alone, got one that depends on the others of the batch")
    parameters = getattr(module, "parameters", tuple)()  # of a function: none
    return _Result(sizes, sum(each.numel() for each in parameters if each.requires_grad), weight)


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


def _called(
    row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape], device: str = "meta"
) -> tuple[Any, int, int]:
    """Return the result of a call without data, the size of its batch, and the number of time steps it stands for."""
    torch = import_module("torch")
    batch = next(n for n in count(_MIN_BATCH) if all(n not in shape.sizes for shape in shapes.values()))
    tensors = {port: _tensor(shape, batch, device) for port, shape in shapes.items()}
    num_steps = 1
    if isinstance(module, torch.nn.RNNBase):  # slow without data
        num_steps = tensors[INPUT_PORT].shape[1]
        tensors[INPUT_PORT] = tensors[INPUT_PORT][:, :1]
    first = tensors.pop(row.ports[0])
    with torch.device(device), torch.no_grad():
        return module(first, **tensors), batch, num_steps


def _is_mixing(
    row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape], settings: Mapping[str, Any]
) -> bool:
    """Return whether the output of an example changes with another one, found on data in eval mode.

    Not run, and false: a layer of torch.nn with weights, which has none that mixes; one above `_MAX_RUN`; one with
    statistics of the batch; one that needs a GPU or other data.
    """
    torch = import_module("torch")
    is_module = isinstance(module, torch.nn.Module)
    num_weights = sum(each.numel() for each in module.parameters()) if is_module else 0
    size = num_weights + sum(2 * shape.num_elements for shape in shapes.values())
    is_layer = num_weights and row.name.startswith("torch.nn:") and not row.named(settings)
    if size > _MAX_RUN or is_layer:
        return False
    if is_module and any(getattr(each, "track_running_stats", None) is False for each in module.modules()):
        return False
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)  # of the CPU alone
            module = row.built(row.keywords(shapes, settings))
            if is_module:
                module.eval()
            pairs, outputs = {port: _pair(shape) for port, shape in shapes.items()}, []
            for place in range(2):
                torch.default_generator.manual_seed(0)
                tensors = {port: pair[place] for port, pair in pairs.items()}
                output = module(tensors.pop(row.ports[0]), **tensors)
                outputs.append(reduce(getitem, row.path(settings), output)[0])
            return not torch.allclose(*outputs, rtol=1e-3, equal_nan=True)
    except Exception:  # raised by the module
        return False


def _pair(shape: Shape) -> tuple[Any, Any]:
    """Return two batches of two examples with equal first ones."""
    torch = import_module("torch")
    if shape.layout is Layout.TOKENS:
        first = torch.zeros(2, *shape.sizes, dtype=torch.long)
        return first, first + torch.arange(2)[:, None]
    first = torch.rand(2, *shape.sizes)
    return first, torch.stack((first[0], 3 * first[1] + 1))


@lru_cache(maxsize=2**12)
def _tensor(shape: Shape, batch: int, device: str) -> Any:
    from gflownet.operations.standalone import meta_input  # imports torch

    tensor = meta_input(INPUT_PORT, shape, batch)
    return tensor if device == "meta" else import_module("torch").zeros_like(tensor, device=device)


def _small_call(
    row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape], settings: Mapping[str, Any]
) -> tuple[Any, int, int] | None:
    """Return the result of `_called` with data of a small module of torch.nn that has run without; None otherwise."""
    size = sum(each.numel() for each in getattr(module, "parameters", tuple)())
    size += _MIN_BATCH * sum(shape.num_elements for shape in shapes.values())
    if not getattr(module, _HAS_RUN, False) or size > _SMALL:
        return None
    try:
        with import_module("torch").random.fork_rng(devices=[]):
            small = _build(row, json.dumps(thawed(row.keywords(shapes, settings))), "cpu")
            return _called(row, small, shapes, "cpu")
    except Exception:  # the call without data says why
        return None


def _output_sizes(
    row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape], settings: Mapping[str, Any]
) -> tuple[int, ...]:
    """Return the sizes of the output without the batch. Raises ShapeError unless it is one floating tensor [B, ...]."""
    output, batch, num_steps = _small_call(row, module, shapes, settings) or _called(row, module, shapes)
    if row.name.startswith("torch.nn:"):
        setattr(module, _HAS_RUN, True)
    output = reduce(getitem, row.path(settings), output)
    if not hasattr(output, "is_floating_point"):
        keys = list(output) if isinstance(output, Mapping) else range(len(output)) if isinstance(output, tuple) else ()
        parts = ", ".join(map(repr, keys)) or "no parts"
        raise ShapeError(f"expected a tensor, got a {type(output).__name__} of {parts}; {OUTPUT} names one of them")
    if not output.is_floating_point():
        raise ShapeError(f"expected an output of floating numbers, got {output.dtype}")
    if output.shape[:1] != (batch,):
        raise ShapeError(f"expected an output with the batch of {batch} first, got {list(output.shape)}")
    return tuple(output.shape[1:]) if num_steps == 1 else (num_steps, *output.shape[2:])


def _transposed(
    axes: int, features: int, kernel_size: int = 4, stride: int = 2, padding: str = "same", **others: Any
) -> dict[str, Any]:
    """Return a transposed convolution; the padding `same` gave stride * size positions."""
    excess = (kernel_size - 1) * others.get("dilation", 1) + 1 - stride
    cut = max(0, -(-excess // 2))
    pads = {"padding": cut, "output_padding": 2 * cut - excess} if padding == "same" else {}
    sizes = {"out_channels": features, "kernel_size": kernel_size, "stride": stride}
    return {"name": f"torch.nn:ConvTranspose{axes}d", **sizes, **pads, **others}


def _group_norm(groups: int = 1, epsilon: float = 1e-5, affine: bool = True) -> dict[str, Any]:
    return {"name": "torch.nn:GroupNorm", "num_groups": groups, "eps": epsilon, "affine": affine}


def _moved(name: str, key: str, values: Sequence[int], layout: str | None) -> dict[str, Any]:
    """Return a function that changes the axes; the layout followed from their number."""
    layout = layout or {1: "vector", 2: "sequence", 3: "image"}.get(len(values) - 1)
    return {"name": name, key: values, "layout": layout}


# Operations of earlier versions, each as a function of its settings: the class or function that stored graphs mean.
WITHDRAWN: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "opaque": lambda module, arguments=MappingProxyType({}): {"name": module, **arguments},
    "transposed_conv1d": partial(_transposed, 1),
    "transposed_conv2d": partial(_transposed, 2),
    "group_norm": _group_norm,
    "flatten": lambda: {"name": "torch.nn:Flatten"},
    "difference": lambda: {"name": "torch:sub"},
    "scale": lambda scale=0.5: {"name": "torch:mul", "other": scale},
    "select": lambda position=0: {"name": "torch:select", "dim": 1, "index": position},
    "reshape": lambda sizes, layout=None: _moved("torch:reshape", "shape", [-1, *sizes], layout),
    "permute": lambda order, layout=None: _moved("torch:permute", "dims", [0, *(1 + axis for axis in order)], layout),
}
# Values of their settings without a default.
_EXAMPLES: Mapping[str, Any] = {"module": "torch.nn:Mish", "features": 16, "sizes": [4, 4], "order": [1, 0]}


def successor(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Mapping[str, Any]:
    """Return the operation that covers a withdrawn one, with examples for what is required and not given."""
    parameters = inspect.signature(WITHDRAWN[name]).parameters
    examples = {key: value for key, value in _EXAMPLES.items() if key in parameters}
    try:
        return WITHDRAWN[name](**{**examples, **settings})
    except TypeError:  # settings that it never had
        return WITHDRAWN[name](**examples)
