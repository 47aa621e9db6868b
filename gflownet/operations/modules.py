"""Any nn.Module or function of tensors as an operation, named module:Class or module:function.

The settings of a module are the arguments of its constructor and the values of `forward`, its ports the tensors of
`forward`; a function's tensors are ports, its other arguments settings. Shape, parameters and multiply-adds are found
on tensors without data.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar

from gflownet.errors import UserError
from gflownet.operations.neuron_code import outside_name
from gflownet.operations.operation import INPUT_PORT, Operation, Setting, category_of
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
from gflownet.operations.values import hashable, thawed
from gflownet.operations.vocabulary import Parameter, depends_on_batch
from gflownet.plugins import load_function

_SMALL = 2**16  # numbers in a module of torch.nn and its inputs: with data it runs 10 times as fast as without
_HAS_RUN = "_has_run_without_data"  # attribute of a module
# Examples of a run without data, a size of no other axis and in no setting; a second run with others shows that the
# first axis of the output is that of the batch.
_MIN_BATCH, _OTHER_BATCH = 13, 101
BATCH_FIRST = "batch_first"
OUTPUT, LAYOUT = "output", "layout"  # settings besides the arguments
_COMPLEX = {"real": ".real", "imag": ".imag", "abs": ".abs()", "angle": ".angle()"}  # parts of complex numbers
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


_CHANNELS = ("in_channels", "in_chans", "in_chs", "in_planes", "inplanes")
_CHANNELS += ("num_features", "num_channels", "input_channels")
_FEATURES = ("in_features", "input_size", "input_dim", "in_dim", "d_in", "embed_dim", "d_model")
# Arguments of constructors that are filled from the shapes of the inputs unless they are given.
FILLED: Mapping[str, Callable[[Mapping[str, Shape]], Any]] = MappingProxyType(
    {
        **dict.fromkeys(_CHANNELS, _channels),
        **dict.fromkeys(_FEATURES, _features()),
        **{"in1_features": _features("input1"), "in2_features": _features("input2")},
        **{"kdim": _features("key"), "vdim": _features("value"), "normalized_shape": _normalised},
        BATCH_FIRST: lambda inputs: True,
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
_LAYOUT = Parameter(f"one of {', '.join(_LAYOUTS)}", lambda value: value in _LAYOUTS)
_OF_OUTPUT = {OUTPUT: Setting(_PART, None), LAYOUT: Setting(_LAYOUT, None)}


@dataclass(frozen=True)
class _Result:
    """A module run without data."""

    sizes: tuple[int, ...]  # of the output, without the batch
    part: str  # code that takes the output out of the result
    written: tuple[str, ...]  # ports whose tensors the module changes in place: it gets copies
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
    filled: ClassVar[Mapping[str, Callable[[Mapping[str, Shape]], Any]]]  # arguments from the shapes of the inputs
    form: ClassVar[Form]  # of a call
    callee: ClassVar[str] = "{module}"  # code of the callable

    @classmethod
    def keywords(
        cls, arguments: Mapping[str, inspect.Parameter], inputs: Mapping[str, Shape], settings: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the source of those arguments that differ from their defaults."""
        ordered = {port: inputs[port] for port in (*cls.ports, *cls.optional_ports) if port in inputs}
        keywords = {}
        for key, argument in arguments.items():
            value, default = settings[key], cls.settings[key].default
            if value is None and key in cls.filled:
                value = cls.filled[key](ordered)
            if (value != default or is_required(argument)) and repr(value) != repr(argument.default):
                is_list = bool(cls.outside) and "uple" not in f"{argument.annotation} {type(argument.default)}"
                keywords[key] = source_of(argument, value, is_list=is_list)
        return keywords

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        words = [
            f"*{word}" if cls.arguments[key].kind is inspect.Parameter.VAR_POSITIONAL else f"{key}={word}"
            for key, word in cls.keywords(cls.arguments, inputs, settings).items()
        ]
        module, _, leaf = cls.name.partition(":")
        return f"{f'nn.{leaf}' if module == 'torch.nn' else outside_name(cls.name)}({', '.join(words)})"

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        result = _run(cls, *_key(inputs, settings))
        return f"{cls.whole(inputs, settings, result.written)}{result.part}"

    @classmethod
    def whole(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any], written: Sequence[str] = ()) -> str:
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
    def value(cls, port: str, inputs: Mapping[str, Shape]) -> str:
        """Return the tensor of a port; the layers are the first axis of a first state of torch's recurrent modules."""
        if not port.startswith("hx") or not _is_recurrent(cls):
            return f"{{{port}}}"
        is_vector = inputs[port].layout is Layout.VECTOR
        return f"{{{port}}}[None]" if is_vector else f"{{{port}}}.transpose(0, 1).contiguous()"

    @classmethod
    def outside_homes(cls, settings: Mapping[str, Any]) -> Mapping[str, str]:
        values = [(key, value) for key, value in settings.items() if isinstance(value, str | tuple | Mapping)]
        arguments = {**cls.arguments, **cls.form.values} if values else {}
        names = (name for key, value in values if key in arguments for name in names_in(arguments[key], value))
        return {**cls.outside, **{outside_name(name): name for name in names if not is_of_torch(name)}}

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        shape, sizes = inputs[cls.ports[0]], _run(cls, *_key(inputs, settings)).sizes or (1,)
        if cls.settings[LAYOUT] is _OF_OUTPUT[LAYOUT] and settings[LAYOUT] is not None:
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
    def required_ports(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the tensors of the first form with these settings: torch:mul with a number `other` has one."""
        present = {key for key in cls.form.values if settings.get(key) is not None}
        fitting = (form.ports for form in cls.forms if form.required <= present <= form.values.keys())
        ports = next(fitting, cls.ports) if len(cls.forms) > 1 else cls.ports
        if isinstance(equation := settings.get("equation"), str):  # of einsum
            return next(iter(cls.form.tensors.values()))[: equation.count(",") + 1]
        return ports

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
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


def _is_recurrent(row: type[ModuleOperation]) -> bool:
    kind = row.module_class
    return isinstance(kind, type) and issubclass(kind, import_module("torch").nn.RNNBase)


def _key(inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> tuple[tuple[tuple[str, Shape], ...], str]:
    """Return the key of a run; 2 and 2.0 differ in the JSON text."""
    return tuple(inputs.items()), json.dumps(thawed(settings), sort_keys=True)


def _settings(text: str) -> dict[str, Any]:
    """Return the settings of a key."""
    return {key: hashable(value) for key, value in json.loads(text).items()}


def _names(homes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the objects named in the code of an operation."""
    torch = import_module("torch")
    classes = {name: load_function("operation", home) for name, home in homes}
    return {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, **classes}


def _built(row: type[ModuleOperation], shapes: Mapping[str, Shape], settings: Mapping[str, Any], device: str) -> Any:
    """Return the module, or the exception of its constructor; one of torch.nn serves all shapes; None of a function."""
    build = _build if row.name.startswith("torch.nn") else _build.__wrapped__
    return build(row.constructor(shapes, settings), tuple(row.outside_homes(settings).items()), device)


@lru_cache(maxsize=2**12)
def _build(source: str, homes: tuple[tuple[str, str], ...], device: str) -> Any:
    try:
        with import_module("torch").device(device):
            return eval(source, _names(homes)) if source else None
    except Exception as error:  # raised by the module
        return error


def _result_of(
    row: type[ModuleOperation],
    module: Any,
    shapes: Mapping[str, Shape],
    settings: Mapping[str, Any],
    tensors: Any,
    part: str = "",
) -> Any:
    """Return the result of a call, or a part of it."""
    code = f"{row.whole(shapes, settings)}{part}"
    code = code.format(module="module", **{key: f"tensors[{key!r}]" for key in shapes})
    names = _names(row.outside_homes(settings).items())
    return eval(_compiled(code), {**names, "module": module, "tensors": tensors})


@lru_cache(maxsize=2**12)
def _compiled(code: str) -> Any:
    return compile(code, "<operation>", "eval")  # takes as long as a run


@lru_cache(maxsize=2**16)
def _run(row: type[ModuleOperation], inputs: tuple[tuple[str, Shape], ...], text: str) -> _Result:
    """Return what a run without data shows. Raises ShapeError with the call and torch's own reason."""
    shapes, settings = dict(inputs), _settings(text)
    if BATCH_FIRST in row.arguments and len(shapes[row.ports[0]].sizes) < 2:
        raise ShapeError(f"expected a sequence, got {shapes[row.ports[0]]}")  # would be one sequence of the batch
    words = row.keywords(row.arguments, shapes, settings)
    module = _built(row, shapes, settings, "meta")
    try:
        if isinstance(module, Exception):
            raise module
        if (declared := getattr(row.module_class, "infer_shape", None)) is not None:
            names = _names(row.outside_homes(settings).items())
            sizes = tuple(
                declared(shapes[row.ports[0]].sizes, **{key: eval(word, names) for key, word in words.items()})
            )
            part, written = "".join(f"[{each!r}]" for each in _path(row, settings)) + "[:, None]" * (not sizes), ()
        else:
            sizes, part, written = _output(row, module, shapes, settings)
    except (ShapeError, UserError):
        raise
    except Exception as error:  # raised by the module
        words |= row.keywords(row.form.values, shapes, settings)
        call = f"{row.__name__}({', '.join(f'{key}={word}' for key, word in words.items())})"
        reason = f"got {type(error).__name__}: {' '.join(str(error).split())}"
        raise ShapeError(f"expected {call} to accept {' and '.join(map(str, shapes.values()))}, {reason}") from error
    key = row, text, *(len(shape.sizes) for _, shape in inputs)
    if key not in _mixing:
        is_declared = getattr(row.module_class, "infer_shape", None) is not None
        is_other = not is_declared and _output(row, module, shapes, settings, batch=_OTHER_BATCH)[0] != sizes
        _mixing[key] = is_other or _is_mixing(row, module, shapes, settings, part)
    if _mixing[key]:
        raise ShapeError("expected an output for each example alone, got one that depends on the others of the batch")
    num_parameters = sum(each.numel() for each in _parameters(module) if each.requires_grad)
    return _Result(sizes, part, written, num_parameters, tuple(getattr(getattr(module, "weight", None), "shape", ())))


def _parameters(module: Any) -> Iterable[Any]:
    """Return the parameters of a module; of a function there are none."""
    return () if module is None else module.parameters()


@lru_cache(maxsize=2**16)
def _multiply_adds(row: type[ModuleOperation], inputs: tuple[tuple[str, Shape], ...], text: str) -> int:
    """Return the multiply-adds of one example, by the formulas of torch.utils.flop_counter."""
    from gflownet.operations.standalone import MultiplyAdds  # imports torch

    shapes, settings = dict(inputs), _settings(text)
    module = _built(row, shapes, settings, "meta")

    def counted(batch: int | None) -> int:
        with MultiplyAdds() as counter:
            _, num_examples, num_steps, _ = _called(row, module, shapes, settings, "meta", batch)
        return num_steps * counter.total // num_examples

    with suppress(Exception):  # a batch norm refuses one example in training
        return counted(1)
    return counted(None)


def _called(
    row: type[ModuleOperation],
    module: Any,
    shapes: Mapping[str, Shape],
    settings: Mapping[str, Any],
    device: str,
    batch: int | None = None,
) -> tuple[Any, int, int, tuple[str, ...]]:
    """Return the result of a call, the size of its batch, the time steps it stands for, and the changed inputs."""
    torch = import_module("torch")
    used = {size for shape in shapes.values() for size in shape.sizes} | _integers(settings.values())
    batch = batch or next(n for n in count(_MIN_BATCH) if n not in used)
    tensors = {port: _tensor(shape, batch, device).clone() for port, shape in shapes.items()}
    num_steps = 1
    if _is_recurrent(row):  # slow without data
        num_steps = tensors[INPUT_PORT].shape[1]
        tensors[INPUT_PORT] = tensors[INPUT_PORT][:, :1]
    with torch.device(device), torch.no_grad():
        try:
            result = _result_of(row, module, shapes, settings, tensors)
        except Exception:
            if module is None or device != "meta" or not module.training:
                raise
            try:  # in training some layers read numbers of their state, such as the batches that they have seen
                result = _result_of(row, module.eval(), shapes, settings, tensors)
            finally:
                module.train()
    return result, batch, num_steps, tuple(port for port, tensor in tensors.items() if tensor._version)


def _integers(values: Iterable[Any]) -> set[int]:
    """Return the integers in settings."""
    nested = [each for each in values if isinstance(each, list | tuple)]
    inner = [each.values() for each in values if isinstance(each, Mapping)]
    return {each for each in values if type(each) is int}.union(*map(_integers, (*nested, *inner)))


def _is_mixing(
    row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape], settings: Mapping[str, Any], part: str
) -> bool:
    """Return whether the output of an example changes with another one, found on data in eval mode.

    Not run, and false: a layer of torch.nn with weights, which has none that mixes; one above `_MAX_RUN`; one with
    statistics of the batch; one that needs a GPU or other data.
    """
    torch = import_module("torch")
    num_weights = sum(each.numel() for each in _parameters(module))
    size = num_weights + sum(2 * shape.num_elements for shape in shapes.values())
    has_parts = any(any(names_in(argument, settings[key])) for key, argument in row.arguments.items())
    if size > _MAX_RUN or (num_weights and row.name.startswith("torch.nn:") and not has_parts):
        return False
    inner = () if module is None else module.modules()
    if any(getattr(each, "track_running_stats", None) is False for each in inner):
        return False
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)  # of the CPU alone
            module = row.build(shapes, settings)
            if module is not None:
                module.eval()
            for each in _parameters(module):  # a gate that starts at zero hides what is behind it
                if each.is_floating_point() and bool((each == each.flatten()[:1]).all()):
                    each.normal_()
            inputs = {port: _three(shape) for port, shape in shapes.items()}
            return depends_on_batch(partial(_result_of, row, module, shapes, settings, part=part), inputs)
    except Exception:  # raised by the module
        return False


def _three(shape: Shape) -> Any:
    """Return a batch of three examples; tokens are 0 and 1."""
    torch = import_module("torch")
    is_tokens = shape.layout is Layout.TOKENS
    return torch.randint(0, 2, (3, *shape.sizes)) if is_tokens else torch.rand(3, *shape.sizes)


@lru_cache(maxsize=2**12)
def _tensor(shape: Shape, batch: int, device: str) -> Any:
    from gflownet.operations.standalone import meta_input  # imports torch

    tensor = meta_input(INPUT_PORT, shape, batch)
    return tensor if device == "meta" else import_module("torch").zeros_like(tensor, device=device)


def _small_call(
    row: type[ModuleOperation], module: Any, shapes: Mapping[str, Shape], settings: Mapping[str, Any]
) -> tuple[Any, int, int, tuple[str, ...]] | None:
    """Return the result of `_called` with data of a small module of torch.nn that has run without; None otherwise."""
    size = sum(each.numel() for each in _parameters(module))
    size += _MIN_BATCH * sum(shape.num_elements for shape in shapes.values())
    if not getattr(module, _HAS_RUN, False) or size > _SMALL:
        return None
    try:
        with import_module("torch").random.fork_rng(devices=[]):
            return _called(row, _built(row, shapes, settings, "cpu"), shapes, settings, "cpu")
    except Exception:  # the call without data says why
        return None


def _path(row: type[ModuleOperation], settings: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Return the indices and keys that lead to the output in the result of the module."""
    part = settings[OUTPUT] if row.settings[OUTPUT] is _OF_OUTPUT[OUTPUT] else None
    return () if part is None else part if isinstance(part, tuple) else (part,)


def _output(
    row: type[ModuleOperation],
    module: Any,
    shapes: Mapping[str, Shape],
    settings: Mapping[str, Any],
    *,
    batch: int | None = None,
) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
    """Return the sizes of the output without the batch, its code as a part of the result, and the changed inputs.

    `batch`: examples of the run; None: a number that shows where they are.

    Raises:
        ShapeError: not one floating tensor [B, ...].
    """
    is_tensor, path = import_module("torch").is_tensor, _path(row, settings)
    result = None if batch else _small_call(row, module, shapes, settings)
    output, batch, num_steps, written = result or _called(row, module, shapes, settings, "meta", batch)
    if row.name.startswith("torch.nn:"):
        setattr(module, _HAS_RUN, True)
    part = ""
    for each in path:
        is_complex = is_tensor(output) and output.is_complex()
        step = _COMPLEX.get(str(each), f"[{each!r}]") if is_complex else f"[{each!r}]"
        output, part = eval(f"output{step}", {"output": output}), part + step
    if not is_tensor(output):
        keys = list(output) if isinstance(output, Mapping) else range(len(output)) if hasattr(output, "__len__") else ()
        parts = ", ".join(map(repr, keys)) or "no parts"
        raise ShapeError(f"expected a tensor, got a {type(output).__name__} of {parts}; {OUTPUT} names one of them")
    if not output.is_floating_point():
        repair = (
            f"{OUTPUT} names its {', '.join(_COMPLEX)}" if output.is_complex() else "a function of yours converts it"
        )
        raise ShapeError(f"expected an output of floating numbers, got {output.dtype}; {repair}")
    if _is_recurrent(row) and output.shape[1:2] == (batch,) != output.shape[:1]:  # a state: layers first
        output, part = output.transpose(0, 1), f"{part}.transpose(0, 1)"
    if output.shape[:1] != (batch,):
        sizes = ", ".join("batch" if size == batch else f"{size}" for size in output.shape)
        raise ShapeError(f"expected an output with the batch first, got [{sizes}]")
    sizes = tuple(output.shape[1:])
    if num_steps > 1 and path == (0,):
        sizes = (num_steps, *sizes[1:])
    return sizes, part if sizes else f"{part}[:, None]", written
