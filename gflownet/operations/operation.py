"""The contract of an operation: settings, shapes, costs and code of a node that maps tensors to a tensor.

An operation is a class, named in a node's attribute `operation: {"name": "conv2d", "features": 16}`. From its class
attributes and methods derive validation, the search space, generated code, costs, export, drawings and docs. A name is
a short one out of OPERATIONS, or `module:Class` for a user's own class. Classes are imported on first use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from gflownet.errors import UserError
from gflownet.operations.rows import BUILT_IN
from gflownet.operations.tensor_shape import Shape, ShapeError
from gflownet.operations.values import hashable, shown, thawed
from gflownet.operations.vocabulary import Parameter
from gflownet.plugins import ExtensionPoint

if TYPE_CHECKING:
    from torch import nn

REQUIRED = object()  # default of a setting that has none
INPUT_PORT = "input"
WEIGHT_PORT = "weight"  # an edge into this port carries the weight of its source's module: tied weights


class Category(StrEnum):
    """The kind of an operation: its colour in drawings."""

    CONVOLUTION = "convolution"
    LINEAR = "linear"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    POOLING = "pooling"
    NORMALISATION = "normalisation"
    TOKENS = "tokens"
    RESHAPING = "reshaping"
    OTHER = "other"


@dataclass(frozen=True)
class Setting:
    """A typed parameter of an operation."""

    parameter: Parameter  # the expected value in words, and the test of a value
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()  # values that a search offers unless its config names others
    # Younger than stored graphs with the operation: left out of their identity where it has its default.
    is_later: bool = False


@dataclass(frozen=True)
class Example:
    """A small use of an operation: a case of the contract suite."""

    inputs: tuple[Shape, ...]  # in the order of the ports
    settings: Mapping[str, Any] = field(default_factory=dict)


class Operation:
    """Contract of an operation. It is used as a class, never as an instance.

    A user's subclass defines `infer_shape` and `build`; parameters and multiply-adds are then counted on the module.
    Letters: shapes are without the batch axis.
    """

    settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({})
    ports: ClassVar[tuple[str, ...]] = (INPUT_PORT,)  # names of the inputs, in the order of the module's arguments
    category: ClassVar[Category] = Category.OTHER
    has_products: ClassVar[bool] = True  # of matrices, or convolutions: False for 0 multiply-adds
    examples: ClassVar[tuple[Example, ...]] = ()

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        """Return the output shape for one input shape per port and complete settings.

        Raises:
            ShapeError: the operation cannot be applied to these shapes; the message says why.
        """
        raise NotImplementedError(f"{cls.__name__}: expected infer_shape to be defined")

    @classmethod
    def constructor(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        """Return the Python expression that makes the module; empty: no module.

        Names in reach: nn, torch and the classes of gflownet.operations.layers. None of a user's class: `build` is
        called.
        """
        return ""

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        """Return the Python expression of the output: {module} and the ports' names in braces are replaced.

        Names in reach: torch, F and nn.
        """
        return "{module}(" + ", ".join(f"{{{name}}}" for name in (*cls.ports, *cls.state(inputs, settings))) + ")"

    @classmethod
    def state(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
        """Return the sizes, without the batch, of the tensors that a call hands to the next one, by name.

        None by default. With state, the placeholders of `call` include the names, and its expression returns a tuple:
        the output, then the new tensors. They are zeros at the start of a sequence.
        """
        return {}

    @classmethod
    def build(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> nn.Module | None:
        """Return a new module with random first values from torch's global generator; None for no module."""
        source = cls.constructor(inputs, settings)
        if not source:
            return None
        torch = import_module("torch")
        layers = vars(import_module("gflownet.operations.layers"))
        return eval(source, {**layers, "torch": torch, "nn": torch.nn})

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        """Return the number of trainable parameters, by default counted on a module without memory."""
        if _is_inherited(cls, "build") and not cls.constructor(inputs, settings):
            return 0
        return _counted(cls, inputs, settings)[0]

    @classmethod
    def weight_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        """Return the shape of the module's `weight`, for edges into a port `weight`. Raises ShapeError without one."""
        raise ShapeError(f"expected an operation with a weight to share, got {cls.__name__}")

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        """Return the multiply-adds of one example, as torch.utils.flop_counter counts them (half its FLOPs).

        By default counted on tensors without memory.
        """
        return _counted(cls, inputs, settings)[1] if cls.has_products else 0

    @classmethod
    def check(cls, name: str) -> None:
        """Raise ValueError for a user's class that violates the contract; its examples are run without data."""
        _check_class(cls, name)
        if _is_inherited(cls, "infer_shape"):
            raise ValueError(f"operation: expected {name} to define infer_shape")
        if all(_is_inherited(cls, method) for method in ("build", "constructor", "call")):
            raise ValueError(f"operation: expected {name} to define build, constructor or call")
        for position, example in enumerate(cls.examples):
            import_module("gflownet.operations.standalone").check_example(cls, example, f"{name}.examples[{position}]")


def _is_inherited(row: type[Operation], method: str) -> bool:
    return getattr(row, method).__func__ is getattr(Operation, method).__func__


def _check_class(row: type[Operation], name: str) -> None:
    """Raise ValueError for class attributes of wrong types."""
    if not isinstance(row.settings, Mapping):
        raise ValueError(f"{name}.settings: expected Settings by name, got {shown(row.settings)}")
    for key, setting in row.settings.items():
        if not (isinstance(key, str) and isinstance(setting, Setting)):
            raise ValueError(f"{name}.settings: expected Settings by name, got {key}: {shown(setting)}")
        defaults = () if setting.default is REQUIRED else (setting.default,)
        for value in (*defaults, *setting.choices):
            if not setting.parameter.accepts(value):
                raise ValueError(f"{name}.settings: expected {setting.parameter.expected} for {key}, got {value!r}")
    if not isinstance(row.ports, list | tuple) or not row.ports or not all(map(_is_port, row.ports)):
        raise ValueError(f"{name}.ports: expected at least one name of an input, got {shown(row.ports)}")
    if row.category not in tuple(Category):
        raise ValueError(f"{name}.category: expected one of {', '.join(Category)}, got {shown(row.category)}")


def _is_port(port: object) -> bool:
    """Return whether a name can stand for an input in the code of a call, which has the name `module`, too."""
    return isinstance(port, str) and port.isidentifier() and port != "module"


def _counted(row: type[Operation], inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> tuple[int, int]:
    standalone = import_module("gflownet.operations.standalone")
    return standalone.counted(row, tuple(inputs.items()), json.dumps(thawed(settings), sort_keys=True))


OPERATIONS = ExtensionPoint(
    "operation", contract="gflownet.operations.operation:Operation", built_in=BUILT_IN, group="gflownet.operations"
)


@cache
def operation(name: str) -> type[Operation]:
    """Return the class of an operation.

    Raises:
        ValueError: unknown name, a class that is not a subclass of Operation, or one that fails its check.
    """
    loaded = OPERATIONS.load(name)
    if name not in OPERATIONS:
        loaded.check(name)
    return loaded


def graph_name(name: str) -> str:
    """Return the name of an operation in graphs: module:Class for an entry point of a package. Imports nothing.

    Raises:
        ValueError: several packages have this entry point.
    """
    return name if name in OPERATIONS else OPERATIONS.home(name)


@dataclass(frozen=True)
class AppliedOperation:
    """An operation with complete settings: equal for equal operations."""

    name: str
    items: tuple[tuple[str, Any], ...]  # name and value of every setting, sorted

    @property
    def row(self) -> type[Operation]:
        """The class."""
        return operation(self.name)

    @property
    def row_home(self) -> str:
        """The class as module:Class."""
        return OPERATIONS.home(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name."""
        return dict(self.items)

    def infer_shape(self, inputs: Mapping[str, Shape]) -> Shape:
        """Return the output shape. Raises ShapeError, also for a mistake in the class."""
        shape = self._called("infer_shape", inputs)
        if not isinstance(shape, Shape) or any(type(size) is not int for size in shape.sizes):
            raise ShapeError(f"expected infer_shape to return a Shape of integers, got {shown(shape)}")
        return shape

    def weight_shape(self, inputs: Mapping[str, Shape]) -> Shape:
        """Return the shape of the module's weight. Raises ShapeError without one, also for a mistake in the class."""
        return self._called("weight_shape", inputs)

    def state(self, inputs: Mapping[str, Shape]) -> dict[str, tuple[int, ...]]:
        """Return the sizes of the state by name. Raises ShapeError for a mistake in the class."""
        state = self._called("state", inputs)
        if not isinstance(state, Mapping) or not all(
            _is_port(name) and isinstance(state[name], tuple) for name in state
        ):
            raise ShapeError(f"expected state to return tuples of sizes by name, got {shown(state)}")
        return dict(state)

    def cost(self, inputs: Mapping[str, Shape]) -> tuple[int, int]:
        """Return parameters and multiply-adds. Raises ShapeError for a mistake in the class."""
        return self._called("num_parameters", inputs), self._called("multiply_adds", inputs)

    def _called(self, method: str, inputs: Mapping[str, Shape]) -> Any:
        try:
            return getattr(self.row, method)(inputs, self.settings)
        except UserError as error:
            raise ShapeError(str(error)) from error
        except ShapeError:
            raise
        except Exception as error:  # raised by the user's own class
            reason = " ".join(str(error).split())
            raise ShapeError(f"expected a result of {method}, got {type(error).__name__}: {reason}") from error


def read_operation(value: Any) -> AppliedOperation:
    """Return the operation of a node's attribute {"name": ..., setting: value, ...}, completed by defaults.

    Raises:
        ValueError: not such a mapping, an unknown name or setting, a missing or invalid setting.
    """
    name, settings = _name_and_settings(value)
    return AppliedOperation(graph_name(name), complete_settings(operation(name), name, settings))


def operation_errors(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the code and the line of every problem of a node's attribute `operation`."""
    try:
        name, settings = _name_and_settings(value)
    except ValueError as error:
        yield "invalid_operation", str(error)
        return
    try:
        row = operation(name)
    except ValueError as error:
        yield "unknown_operation", str(error)
        return
    yield from _setting_errors(row, name, settings)


def complete_settings(row: type[Operation], name: str, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return name and value of every setting, sorted. Raises ValueError for an unknown, invalid or missing one."""
    for _, message in _setting_errors(row, name, values):
        raise ValueError(message)
    return tuple(sorted((key, hashable(values.get(key, each.default))) for key, each in row.settings.items()))


def _name_and_settings(value: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"expected an operation with a name, got {shown(thawed(value))}")
    return value["name"], {key: item for key, item in value.items() if key != "name"}


def _setting_errors(row: type[Operation], name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, item in values.items():
        if key not in row.settings:
            names = ", ".join(sorted(row.settings)) or "none"
            yield "unknown_setting", f"{name}: expected settings out of {names}, got {shown(key)}"
        elif not row.settings[key].parameter.accepts(item):
            expected = row.settings[key].parameter.expected
            yield "invalid_setting", f"{name}: expected {expected} for {key}, got {shown(thawed(item))}"
    for key, setting in row.settings.items():
        if key not in values and setting.default is REQUIRED:
            yield "missing_setting", f"{name}: expected a setting {key}, {setting.parameter.expected}, got none"


def single_input(inputs: Mapping[str, Shape], *layouts: str) -> Shape:
    """Return the shape at the input port. Raises ShapeError unless it has one of the layouts."""
    shape = inputs[INPUT_PORT]
    if layouts and shape.layout not in layouts:
        article = "an" if layouts[0] == "image" else "a"
        raise ShapeError(f"expected {article} {' or '.join(layouts)}, got {shape}")
    return shape
