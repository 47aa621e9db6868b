"""Any nn.Module or function of tensors as an operation, named module:Class or module:function.

The settings of a module are the arguments of its constructor and the values of `forward`, its ports the tensors of
`forward`; a function's tensors are ports, its other arguments settings. Shape, parameters and multiply-adds are found
on tensors without data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar

from gflownet.operations.code import outside_name
from gflownet.operations.operation import Operation, Setting, Settings, Shapes, category_of
from gflownet.operations.signatures import (
    Form,
    constructor_arguments,
    enum_of,
    form_of,
    forms_of_function,
    is_of_torch,
    is_required,
    names_in,
    setting_of,
    signature_of,
    source_of,
)
from gflownet.operations.tensor_shape import CHANNELS_FIRST, FLOATS, Layout, Shape, ShapeError
from gflownet.operations.vocabulary import Parameter, one_of

BATCH_FIRST = "batch_first"
OUTPUT, LAYOUT = "output", "layout"  # settings besides the arguments


def _channels(shape: Shape) -> int:
    """Return the size of the axis after the batch, which layers with channels read."""
    if shape.layout in (Layout.SEQUENCE, Layout.TOKENS):
        raise ShapeError(f"expected channels before positions, got {shape}; to_signal moves them")
    return shape.channels


def _width(shape: Shape) -> int | None:
    """Return the channels of images and the like, the last axis of others."""
    return None if shape.layout is Layout.TOKENS else shape.channels


def _features(shape: Shape) -> int | None:
    """Return the size of the last axis."""
    return None if shape.layout is Layout.TOKENS else shape.sizes[-1]


def _normalised(shape: Shape) -> tuple[int, ...]:
    """Return the features of a vector or a sequence, all axes of other inputs: as torch.nn.LayerNorm's docs."""
    return shape.sizes if shape.layout in CHANNELS_FIRST else shape.sizes[-1:]


_CHANNELS = ("in_channels", "in_chans", "in_chs", "in_planes", "inplanes")
_CHANNELS += ("num_features", "num_channels", "input_channels")
_FEATURES = ("in_features", "input_size", "input_dim", "in_dim", "d_in", "embed_dim", "d_model")
_PORTS = {"in1_features": "input1", "in2_features": "input2", "kdim": "key", "vdim": "value"}
# Arguments of constructors that are filled from the shape of the first input, or of _PORTS, unless they are given.
FILLED: Mapping[str, Callable[[Shape], Any]] = MappingProxyType(
    {
        **dict.fromkeys(_CHANNELS, _channels),
        **dict.fromkeys((*_FEATURES, *_PORTS), _features),
        **{"normalized_shape": _normalised, BATCH_FIRST: lambda shape: True},
    }
)
# Required arguments of classes outside of torch, of which the first is the width; in torch `dim` is an axis.
_WIDTHS = ("dim", "channels", "n_embd")
_FIRST = Parameter("true: the batch is the first axis", lambda value: value in (None, True))
_PART = Parameter(
    "an index or a key of the result, or a list of them",
    lambda value: all(type(each) in (int, str) for each in (value if isinstance(value, list | tuple) else [value])),
)
_LAYOUTS = tuple(each.value for each in FLOATS)
_OF_OUTPUT = {OUTPUT: Setting(_PART, None), LAYOUT: Setting(one_of(*_LAYOUTS), None)}


class ModuleOperation(Operation):
    """Base of the operations of modules; `module_operation` makes one for each class.

    The class may define `infer_shape(sizes, **arguments)`, a static method that returns the sizes of the output without
    the batch: where its forward needs data.
    """

    name: ClassVar[str]  # module:Class
    module_class: ClassVar[Any]
    arguments: ClassVar[Mapping[str, inspect.Parameter]]  # of the constructor
    filled: ClassVar[Mapping[str, Callable[[Shape], Any]]]  # arguments from the shape of an input
    form: ClassVar[Form]  # of a call
    callee: ClassVar[str] = "{module}"  # code of the callable

    @classmethod
    def keywords(cls, arguments: Mapping[str, inspect.Parameter], inputs: Shapes, settings: Settings) -> dict[str, str]:
        """Return the source of those arguments that differ from their defaults."""
        ordered = {port: inputs[port] for port in (*cls.ports, *cls.optional_ports) if port in inputs}
        keywords = {}
        for key, argument in arguments.items():
            value, default = settings[key], cls.settings[key].default
            if value is None and key in cls.filled:
                shape = ordered.get(_PORTS[key]) if key in _PORTS else next(iter(ordered.values()))
                value = None if shape is None else cls.filled[key](shape)
            if (value != default or is_required(argument)) and repr(value) != repr(argument.default):
                is_list = bool(cls.outside) and "uple" not in f"{argument.annotation} {type(argument.default)}"
                keywords[key] = source_of(argument, value, is_list=is_list)
        return keywords

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        words = [
            f"*{word}" if cls.arguments[key].kind is inspect.Parameter.VAR_POSITIONAL else f"{key}={word}"
            for key, word in cls.keywords(cls.arguments, inputs, settings).items()
        ]
        module, _, leaf = cls.name.partition(":")
        return f"{f'nn.{leaf}' if module == 'torch.nn' else outside_name(cls.name)}({', '.join(words)})"

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        result = _probe(cls, inputs, settings).result
        return f"{cls.whole(inputs, settings, result.written)}{result.part}"

    @classmethod
    def whole(cls, inputs: Shapes, settings: Settings, written: Sequence[str] = ()) -> str:
        """Return the call with the whole result; copies of the inputs `written` are passed."""
        form, words = cls.form, cls.keywords(cls.form.values, inputs, settings)
        words = {key: word.replace("{", "{{").replace("}", "}}") for key, word in words.items()}
        passed = [word for key, word in words.items() if key in form.leading]
        for key, ports in form.tensors.items():
            values = [f"{cls.value(port, inputs)}{'.clone()' * (port in written)}" for port in ports if port in inputs]
            if values:
                template = form.lists.get(key, "{}")
                is_named = key != next(iter(form.tensors)) and not (key in form.lists and template == "{}")
                passed.append(f"{f'{key}=' * is_named}{template.format(', '.join(values))}")
        passed += [f"{key}={word}" for key, word in words.items() if key not in form.leading]
        return f"{cls.callee}({', '.join(passed)})"

    @classmethod
    def path(cls, settings: Settings) -> tuple[int | str, ...]:
        """Return the indices and keys that lead to the output in the result."""
        part = settings[OUTPUT] if cls.settings[OUTPUT] is _OF_OUTPUT[OUTPUT] else None
        return () if part is None else part if isinstance(part, tuple) else (part,)

    @classmethod
    def value(cls, port: str, inputs: Shapes) -> str:
        """Return the tensor of a port; the layers are the first axis of a first state of torch's recurrent modules."""
        kind = cls.module_class
        is_recurrent = isinstance(kind, type) and issubclass(kind, import_module("torch").nn.RNNBase)
        if not (is_recurrent and port.startswith("hx")):
            return f"{{{port}}}"
        is_vector = inputs[port].layout is Layout.VECTOR
        return f"{{{port}}}[None]" if is_vector else f"{{{port}}}.transpose(0, 1).contiguous()"

    @classmethod
    def outside_homes(cls, settings: Settings) -> Mapping[str, str]:
        values = [(key, value) for key, value in settings.items() if isinstance(value, str | tuple | Mapping)]
        arguments = {**cls.arguments, **cls.form.values} if values else {}
        names = (name for key, value in values if key in arguments for name in names_in(arguments[key], value))
        return {**cls.outside, **{outside_name(name): name for name in names if not is_of_torch(name)}}

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        shape, sizes = inputs[cls.ports[0]], _probe(cls, inputs, settings).result.sizes or (1,)
        if cls.settings[LAYOUT] is _OF_OUTPUT[LAYOUT] and settings[LAYOUT] is not None:
            return Shape(sizes, Layout(settings[LAYOUT]))
        if len(sizes) == len(shape.sizes) and shape.layout is not Layout.TOKENS:
            return Shape(sizes, shape.layout)
        # Channels stay before positions.
        return Shape.of(sizes, Layout.SIGNAL if shape.layout in CHANNELS_FIRST and len(sizes) == 2 else None)


def _probe(row: type[ModuleOperation], inputs: Shapes, settings: Settings) -> Any:
    from gflownet.operations.probe import probe  # imports torch

    return probe(row, inputs, settings)


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
    arguments = constructor_arguments(module_class, _sizes(name))
    form = form_of(f"{name}.forward", signature_of(module_class.forward)[1:], is_forward=True)
    form = replace(form, values={key: each for key, each in form.values.items() if key not in arguments})
    enums = [enum for each in {**arguments, **form.values}.values() if (enum := enum_of(each)) is not None]
    homes = [*([] if name.startswith("torch.nn:") else [name]), *(f"{e.__module__}:{e.__qualname__}" for e in enums)]
    leaf, outside = module_class.__name__, {outside_name(home): home for home in homes}
    return _row(ModuleOperation, name, leaf, module_class, arguments, form, outside)


def _sizes(name: str) -> tuple[str, ...]:
    """Return the arguments of the constructor of module:Class that are sizes of the input."""
    return (*FILLED, *(() if is_of_torch(name) else _WIDTHS))


def _row(
    base: type[ModuleOperation], name: str, leaf: str, module_class: Any, arguments: Any, form: Form, outside: Any
) -> Any:
    """Return the class of an operation."""
    every = {**arguments, **form.values}
    words = [str(each.replace(annotation=each.empty)) for each in every.values()]
    if base is FunctionOperation:
        words = [*{**dict.fromkeys(form.tensors), **every}]
    signature = f"{leaf}({', '.join(words)})"
    sizes = [key for key in arguments if key in FILLED or (key in _sizes(name) and is_required(arguments[key]))]
    filled = FILLED if not sizes or sizes[0] in FILLED else {**FILLED, sizes[0]: _width}
    settings = {key: setting_of(each, signature, is_filled=key in filled) for key, each in every.items()}
    if BATCH_FIRST in settings:
        settings[BATCH_FIRST] = Setting(_FIRST, None)
    fields = {"name": name, "module_class": module_class, "arguments": arguments, "form": form, "outside": outside}
    fields |= {"filled": filled, "ports": form.ports, "optional_ports": form.optional_ports, "signature": signature}
    fields |= {"settings": {**_OF_OUTPUT, **settings}, "category": category_of(leaf), "__doc__": module_class.__doc__}
    return type(leaf, (base,), fields)


class FunctionOperation(ModuleOperation):
    """Base of the operations of functions; `function_operation` makes one for each function."""

    forms: ClassVar[Sequence[Form]]

    @classmethod
    def required_ports(cls, settings: Settings) -> tuple[str, ...]:
        """Return the tensors of the first form with these settings: torch:mul with a number `other` has one."""
        present = {key for key in cls.form.values if settings.get(key) is not None}
        fitting = (form.ports for form in cls.forms if form.required <= present <= form.values.keys())
        ports = next(fitting, cls.ports) if len(cls.forms) > 1 else cls.ports
        if isinstance(equation := settings.get("equation"), str):  # of einsum
            return next(iter(cls.form.tensors.values()))[: equation.count(",") + 1]
        return ports

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        return ""


def function_operation(name: str, function: Callable[..., Any]) -> type[FunctionOperation]:
    """Return the operation of a function: its tensors are ports, its other arguments settings.

    Raises:
        ValueError: a function without tensors, of the weight of a layer, or with an argument `training`.
    """
    module, _, leaf = name.partition(":")
    forms = forms_of_function(name, function)
    first, *others = forms
    tensors = {key: ports for form in reversed(forms) for key, ports in form.tensors.items()}
    tensors = {key: tensors[key] for key in (*first.tensors, *sorted(tensors.keys() - first.tensors))}
    values = {key: each for form in forms for key, each in form.values.items()}
    if others:  # null: not given
        values = {key: each.replace(default=None) for key, each in values.items()}
    optional = tuple(port for ports in tensors.values() for port in ports if port not in first.ports)
    form = replace(first, tensors=tensors, values=values, optional_ports=optional)
    is_method = module == "torch" and not hasattr(import_module("torch"), leaf)
    short = {"torch.nn.functional": "F", "torch": f"torch{'.Tensor' * is_method}"}.get(module)
    outside = {} if short else {outside_name(name): name}
    row = _row(FunctionOperation, name, leaf, function, {}, form, outside)
    row.forms, row.callee = forms, f"{short}.{leaf}" if short else outside_name(name)
    return row
