"""Arguments of modules and functions: which are tensors, and so ports, which are settings, and their Python source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from itertools import takewhile
from typing import Any, get_overloads, get_type_hints

from gflownet.operations.code import outside_name
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT, Setting, is_port
from gflownet.operations.values import hashable, is_finite, texts_in
from gflownet.operations.vocabulary import Parameter
from gflownet.plugins import is_module_class

_FUNCTIONAL = "torch.nn.functional"
_OF_TORCH = ("torch", _FUNCTIONAL, "torch.linalg", "torch.fft", "torch.special")  # others do more than calculate
# Arguments that the translation chooses.
_CHOSEN = ("device", "dtype")
_OF_TENSORS = (*_CHOSEN, "out", "layout", "memory_format", "generator", "pin_memory")
_MAX_LIST = 16  # tensors of one list
_TUPLE = "({},)"
_PARTIAL = "functools:partial"
_LIST = re.compile(r"(?i)\b(list|sequence|tuple)\[")


@dataclass(frozen=True)
class Form:
    """One of the lists of arguments that a call accepts."""

    tensors: Mapping[str, tuple[str, ...]]  # ports by argument; of a list of tensors one per place
    lists: Mapping[str, str]  # templates of the arguments that are lists
    ports: tuple[str, ...]
    optional_ports: tuple[str, ...]
    values: Mapping[str, inspect.Parameter]  # other arguments
    leading: tuple[str, ...]  # values before the first tensor

    @property
    def required(self) -> set[str]:
        """The names of the values without a default."""
        return {key for key, each in self.values.items() if each.default is each.empty}


def form_of(name: str, arguments: Sequence[inspect.Parameter], *, is_forward: bool = False) -> Form:
    """Return the ports and values of a call; a single tensor is the port `input`.

    Args:
        name: of the function or method, for errors.
        arguments: of the call.
        is_forward: of a module: the first argument is a tensor, and one whose default is None without annotation.

    Raises:
        ValueError: an argument that cannot be a port.
    """
    arguments = [each for each in arguments if each.kind is not each.VAR_KEYWORD]
    tensors = [each for n, each in enumerate(arguments) if (is_forward and n == 0) or _is_tensor(each, is_forward)]
    if not tensors:
        raise ValueError(f"operation: expected {name} with a tensor, got no argument that is one")
    required = [each for each in tensors if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    lists = {each.name: template for each in tensors if (template := _template(each))}
    named = {each.name: _names_of(each) if each.name in lists else (each.name,) for each in tensors}
    if tensors[0].name not in lists and len(required) < 2:
        named[tensors[0].name] = (INPUT_PORT,)
    elif tensors[0].kind is inspect.Parameter.VAR_POSITIONAL:
        named[tensors[0].name] = (INPUT_PORT, *named[tensors[0].name][1:])
    ports = [port for each in required or tensors[:1] for port in named[each.name][: 2 if required else 1]]
    optional = tuple(port for each in named.values() for port in each if port not in ports)
    for port in (*ports, *optional):
        if not is_port(port) or port == WEIGHT_PORT:
            raise ValueError(f"operation: expected {name} without an argument {port}")
    values = {each.name: each for each in arguments if each.name not in named and _is_value(each)}
    leading = tuple(each.name for each in takewhile(lambda each: each is not tensors[0], arguments))
    return Form(named, lists, tuple(ports), optional, values, leading)


def _is_value(argument: inspect.Parameter) -> bool:
    return argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)


def _is_tensor(argument: inspect.Parameter, is_forward: bool) -> bool:
    """Return whether an argument is a tensor: by its annotation; without one, if it has no default, or *arguments."""
    if argument.annotation is argument.empty:
        return argument.default is argument.empty or (is_forward and argument.default is None)
    return "Tensor" in str(argument.annotation) and "Callable" not in str(argument.annotation)


def _template(argument: inspect.Parameter) -> str:
    """Return the source of an argument that is a list of tensors; empty for one tensor."""
    if argument.kind is argument.VAR_POSITIONAL:
        return "{}"
    found = _LIST.search(str(argument.annotation))
    return "" if found is None else _TUPLE if found[1].lower() == "tuple" else "[{}]"


def _names_of(argument: inspect.Parameter) -> tuple[str, ...]:
    """Return the ports of a list of tensors: two of a pair."""
    text = str(argument.annotation)
    num = text.count("Tensor") if _template(argument) == _TUPLE and "..." not in text else _MAX_LIST
    return tuple(f"{argument.name}{place}" for place in range(num))


def forms_of_function(name: str, function: Callable[..., Any]) -> list[Form]:
    """Return the forms of a function that can be an operation; a built-in one of torch has its schemas.

    Raises:
        ValueError: a function without tensors, of the weight of a layer, or with an argument `training`.
    """
    module, _, leaf = name.partition(":")
    if module.startswith("torch.") and module not in _OF_TORCH:
        raise ValueError(f"operation: expected a function of {', '.join(_OF_TORCH)}, got {name}")
    lists = [] if inspect.ismethoddescriptor(function) or inspect.isbuiltin(function) else [signature_of(function)]
    if module in _OF_TORCH and [each.name for each in (*lists, [])[0]] in ([], ["args"]):
        # !: writes into an argument; ...: of any number of arguments
        operator = f"aten::{getattr(function, '__name__', leaf)}"
        schemas = import_module("torch")._C._jit_get_schemas_for_operator(operator)
        lists = [[*map(_parameter, each.arguments)] for each in schemas if not re.search(r"!|\.\.\.", str(each))]
    forms = []
    for arguments in lists:
        arguments = [each for each in arguments if each.name not in _OF_TENSORS and not each.name.startswith("_")]
        tensors = [each for each in arguments if _is_tensor(each, False)]
        is_weighted = any(each.name == WEIGHT_PORT and each.default is each.empty for each in tensors)
        if tensors and not (is_weighted or any(each.name == "training" for each in arguments)):
            forms.append(form_of(name, [each for each in arguments if each not in tensors or each.name != WEIGHT_PORT]))
    forms = [each for each in forms if INPUT_PORT in each.tensors] or forms  # torch.repeat_interleave has one without
    if not forms:
        reason = "no weight of a layer and no argument training, that changes none of them"
        raise ValueError(f"operation: expected a function of tensors, {reason}, got {name}")
    return forms


def named_function(name: str, function: Any) -> Any:
    """Return a function, or the method of a tensor that torch has no function for; None for anything else."""
    module, _, leaf = name.partition(":")
    method = getattr(import_module("torch").Tensor, leaf, None) if module == "torch" and function is None else function
    return method if inspect.isroutine(method) else None


def _parameter(argument: Any) -> inspect.Parameter:
    """Return an argument of a schema as one of a signature."""
    name, default = argument.name, argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    name = INPUT_PORT if name == "self" else name
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=str(argument.type))


def signature_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the arguments of a function, of its first overload; annotations that are texts are read."""
    function = (get_overloads(function) or [function])[0]
    parameters, hints = inspect.signature(function).parameters, {}
    with suppress(Exception):  # a name that is imported for type checkers only
        hints = get_type_hints(function)
    return [each.replace(annotation=hints.get(key, each.annotation)) for key, each in parameters.items()]


def is_required(argument: inspect.Parameter) -> bool:
    """Return whether an argument has to be given."""
    return argument.default is argument.empty and argument.kind is not argument.VAR_POSITIONAL


def constructor_arguments(module_class: Any, sizes: Container[str]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a constructor by name; those behind **kwargs are the arguments of its base class.

    A class with one of the `sizes` of the input among its own arguments passes on what its base class requires.
    """
    arguments: dict[str, inspect.Parameter] = {}
    for base in module_class.__mro__[:-1]:  # without `object`
        if "__init__" in vars(base) and base is not import_module("torch").nn.Module:
            _, *parameters = signature_of(base.__init__)
            is_open = any(each.kind is each.VAR_KEYWORD for each in parameters)
            named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
            named = [each for each in named if not (is_open and each.kind is each.VAR_POSITIONAL)]  # passed on
            is_passed = any(key in sizes for key in arguments)
            named = [each for each in named if not (is_passed and is_required(each))]
            arguments = {**{each.name: each for each in named}, **arguments}
            if not is_open:
                break
    return {key: each for key, each in arguments.items() if key not in _CHOSEN}


def setting_of(argument: inspect.Parameter, signature: str, *, is_filled: bool) -> Setting:
    """Return the setting of an argument: required, its default or, where that is no JSON value or filled, null."""
    other = "; a function of yours that calls it takes a tensor" if argument.name == WEIGHT_PORT else ""
    parameter, default = Parameter(f"a value as in {signature}{other}", _is_json), argument.default
    if (members := enum_of(argument)) is not None:
        names = [*members.__members__, *(each.value for each in members)]
        parameter = Parameter(f"one of {', '.join(map(str, names))}", lambda value: value is None or value in names)
    if argument.kind is argument.VAR_POSITIONAL:
        return Setting(parameter, ())
    if is_filled:
        return Setting(parameter, None)
    if default is argument.empty:
        return Setting(parameter)
    home = f"{getattr(default, '__module__', '')}:{getattr(default, '__qualname__', '')}"
    home = re.sub(r"^torch\.nn\.modules\.\w+:", "torch.nn:", home)
    named = home if callable(default) and is_module_class(home) else None
    return Setting(parameter, hashable(default) if _is_json(default) else named)


def _is_json(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, bool | str) or is_finite(value)


def enum_of(argument: inspect.Parameter) -> type[Enum] | None:
    """Return the enumeration whose members an argument takes."""
    kinds = argument.annotation, type(argument.default)
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, Enum)), None)


def is_of_torch(name: str) -> bool:
    """Return whether module:Class is of torch."""
    return name.startswith(("torch:", "torch."))


def names_in(argument: inspect.Parameter, value: Any) -> Iterator[str]:
    """Yield every module:Class in the value of an argument: classes, functions and objects that it stands for."""
    if argument.annotation not in (str, "str") and not isinstance(argument.default, str):
        yield from filter(is_module_class, texts_in(value))
        values = value if isinstance(value, tuple) else (value,)
        if _is_function(argument) and any(isinstance(each, Mapping) for each in values):
            yield _PARTIAL


def _is_function(argument: inspect.Parameter) -> bool:
    """Return whether an argument is a function that makes modules, by its default or its annotation."""
    default, annotation = argument.default, str(argument.annotation)
    if inspect.isroutine(default) or (isinstance(default, type) and default is not argument.empty):
        return True
    return "Callable" in annotation or "type[" in annotation.lower()


def source_of(argument: inspect.Parameter, value: Any, *, is_list: bool) -> str:
    """Return the Python source of a value.

    A text module:Class is this class or function, an object with it as `name` an instance made with its other entries,
    or functools.partial for an argument that is a function; a text for an enumeration its member. Lists are lists if
    `is_list`, else tuples.
    """
    members = enum_of(argument)
    if members is not None and not isinstance(value, Mapping):
        member = next(each for each in members if value in (each.name, each.value))
        return f"{outside_name(f'{members.__module__}:{members.__qualname__}')}[{member.name!r}]"
    if isinstance(value, tuple):
        items = ", ".join(source_of(argument, each, is_list=is_list) for each in value)
        return f"[{items}]" if is_list else f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, Mapping):
        items = {key: source_of(argument, each, is_list=is_list) for key, each in value.items()}
        if is_module_class(value.get("name")):
            made, words = items.pop("name"), [f"*{word}" for key, word in items.items() if key == "args"]
            words += [f"{key}={word}" for key, word in items.items() if key != "args"]
            if _is_function(argument):
                made, words = outside_name(_PARTIAL), [made, *words]
            return f"{made}({', '.join(words)})"
        return f"{{{', '.join(f'{key!r}: {word}' for key, word in items.items())}}}"
    if any(names_in(argument, value)):
        return value.replace(":", ".") if is_of_torch(value) else outside_name(value)
    return repr(value)
