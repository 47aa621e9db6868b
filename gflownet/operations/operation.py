"""The contract of an operation: settings, shapes, state, costs and code of a node that maps tensors to a tensor.

An operation is a class, named in a node's attribute `operation: {"name": "conv2d", "features": 16}`. From its class
attributes and methods derive validation, the search space, generated code, costs, export, drawings and docs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from gflownet.errors import did_you_mean
from gflownet.operations.parameters import ParameterPlan
from gflownet.operations.tensor_shape import FLOATS, Layout, Shape, ShapeError
from gflownet.operations.values import SCALARS, hashable, shown, thawed
from gflownet.operations.vocabulary import Parameter
from gflownet.plugins import load_function

if TYPE_CHECKING:
    from torch import nn

Shapes = Mapping[str, Shape]  # of the inputs, by port
Settings = Mapping[str, Any]  # by name
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


# Words in the names of operations; the first match decides.
_CATEGORY_WORDS: Mapping[Category, tuple[str, ...]] = {
    Category.POOLING: ("pool",),
    Category.CONVOLUTION: ("conv",),
    Category.ATTENTION: ("attention", "transformer"),
    Category.NORMALISATION: ("norm", "dropout"),
    Category.RECURRENT: ("lstm", "gru", "rnn", "rhn"),
    Category.LINEAR: ("linear", "dense"),
    Category.TOKENS: ("embed",),
    Category.RESHAPING: ("flatten", "shuffle", "upsampl", "pad"),
}


def category_of(name: str) -> Category:
    """Return the category of an operation by the words in its name."""
    matches = (each for each, words in _CATEGORY_WORDS.items() if any(word in name.lower() for word in words))
    return next(matches, Category.OTHER)


@dataclass(frozen=True)
class Setting:
    """A typed parameter of an operation."""

    parameter: Parameter  # the expected value in words, and the test of a value
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()  # values that a search offers unless its config names others


@dataclass(frozen=True)
class Example:
    """A small use of an operation: a case of the contract suite."""

    inputs: tuple[Shape, ...]  # in the order of the ports
    settings: Settings = field(default_factory=dict)


class Operation:
    """Contract of an operation. It is used as a class, never as an instance.

    A user's subclass defines `infer_shape` and `build`; parameters and multiply-adds are then counted on the module.
    Letters: shapes are without the batch axis.
    """

    settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({})
    ports: ClassVar[tuple[str, ...]] = (INPUT_PORT,)  # names of the inputs, in the order of the module's arguments
    optional_ports: ClassVar[tuple[str, ...]] = ()  # names of inputs that no edge has to feed
    outside: ClassVar[Mapping[str, str]] = MappingProxyType({})  # module:Class by the name in `constructor`
    signature: ClassVar[str] = ""  # of a module's constructor, for errors
    category: ClassVar[Category] = Category.OTHER
    has_products: ClassVar[bool] = True  # of matrices, or convolutions: False for 0 multiply-adds
    is_layer: ClassVar[bool] = False  # whether its matrices are applied once at each position of the output
    layouts: ClassVar[tuple[Layout, ...]] = FLOATS  # that the input may have, where `infer_shape` is not defined
    layer: ClassVar[str] = ""  # template of `constructor`: {features} is a setting, {input.channels} of the port input
    code: ClassVar[str | Mapping[Layout, str]] = ""  # of `call`, or by the layout of the input
    examples: ClassVar[tuple[Example, ...]] = ()

    @classmethod
    def required_ports(cls, settings: Settings) -> tuple[str, ...]:
        """Return the ports that an edge must feed with these settings."""
        return cls.ports

    @classmethod
    def infer_shape(cls, inputs: Shapes, settings: Settings) -> Shape:
        """Return the output shape for one input shape per port and complete settings.

        By default for a class with `layouts`: the shape of the input, with as many channels as a setting `features`.

        Raises:
            ShapeError: the operation cannot be applied to these shapes; the message says why.
        """
        shape = single_input(inputs, *cls.layouts)
        return shape.with_channels(settings["features"]) if "features" in cls.settings else shape

    @classmethod
    def constructor(cls, inputs: Shapes, settings: Settings) -> str:
        """Return the Python expression that makes the module; empty: no module.

        Names in reach: nn, torch and the classes of gflownet.operations.layers. None of a user's class: `build` is
        called.
        """
        return cls.layer.format(**inputs, **settings) if cls.layer else ""

    @classmethod
    def call(cls, inputs: Shapes, settings: Settings) -> str:
        """Return the Python expression of the output: {module} and the ports' names in braces are replaced.

        Names in reach: torch, F and nn.
        """
        names = (f"{{{name}}}" for name in (*cls.ports, *cls.state(inputs, settings)))
        code = cls.code if isinstance(cls.code, str) else cls.code[single_input(inputs).layout]
        return code or f"{{module}}({', '.join(names)})"

    @classmethod
    def state(cls, inputs: Shapes, settings: Settings) -> Mapping[str, tuple[int, ...]]:
        """Return the sizes, without the batch, of the tensors that a call hands to the next one, by name.

        None by default. With state, the placeholders of `call` include the names, and its expression returns a tuple:
        the output, then the new tensors. They are zeros at the start of a sequence.
        """
        return {}

    @classmethod
    def build(cls, inputs: Shapes, settings: Settings) -> nn.Module | None:
        """Return a new module with random first values from torch's global generator; None for no module."""
        source = cls.constructor(inputs, settings)
        return cls.evaluated(source, settings) if source else None

    @classmethod
    def whole(cls, inputs: Shapes, settings: Settings) -> str:
        """Return the expression of a result of which `call` may take a part."""
        return cls.call(inputs, settings)

    @classmethod
    def evaluated(cls, source: str, settings: Settings, **values: Any) -> Any:
        """Return the value of an expression of generated code, with `values` by name."""
        import torch

        from gflownet.operations import layers

        of_torch = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
        return eval(_compiled(source), {**vars(layers), **of_torch, **cls.outside_classes(settings), **values})

    @classmethod
    def outside_homes(cls, settings: Settings) -> Mapping[str, str]:
        """Return module:Class by the name in `constructor` and `call`, with these settings."""
        return cls.outside

    @classmethod
    def outside_classes(cls, settings: Settings) -> dict[str, Any]:
        """Return the classes that code names, by these names."""
        return {name: load_function("operation", home) for name, home in cls.outside_homes(settings).items()}

    @classmethod
    def num_parameters(cls, inputs: Shapes, settings: Settings) -> int | None:
        """Return the number of trainable parameters; None: counted on a meta module."""
        return 0 if is_inherited(cls, "build") and not cls.constructor(inputs, settings) else None

    @classmethod
    def weight_shape(cls, inputs: Shapes, settings: Settings) -> Shape | None:
        """Return the shape of the module's `weight`, for edges into a port `weight`; None: read on a meta module."""
        return None

    @classmethod
    def multiply_adds(cls, inputs: Shapes, settings: Settings) -> int | None:
        """Return the multiply-adds of one example, as torch.utils.flop_counter counts them (half its FLOPs).

        None: counted on tensors without memory.
        """
        return None if cls.has_products else 0

    @classmethod
    def parameters(cls, inputs: Shapes, settings: Settings) -> Iterable[ParameterPlan]:
        """Yield the parameters besides those of a module; names are completed by the id of the node or in-edge."""
        return ()

    @classmethod
    def sizes(cls, inputs: Shapes, settings: Settings) -> Any:
        """Return the widths inside of a neuron; None of others."""
        return None

    @classmethod
    def statements(cls, code: Any) -> list[str]:
        """Return the statements from the values at the ports to the variable of the node, from its NodeCode."""
        return code.called()

    @classmethod
    def typed_body(cls, name: str, inputs: Shapes, settings: Settings, projection: str) -> Any:
        """Return the typed graph of an operation made of others, by the name of a node; None of others."""
        return None

    @classmethod
    def check(cls, name: str) -> None:
        """Raise ValueError for a user's class that violates the contract; `check_row` runs its examples."""
        check_class(cls, name)
        if is_inherited(cls, "infer_shape") and cls.layouts is Operation.layouts:
            raise ValueError(f"operation: expected {name} to define infer_shape")
        if not has_code(cls):
            raise ValueError(f"operation: expected {name} to define build, constructor or call")


@lru_cache(maxsize=2**12)
def _compiled(source: str) -> Any:
    return compile(source, "<operation>", "eval")  # takes as long as a run


def is_inherited(row: type[Operation], method: str) -> bool:
    """Return whether a class has a method of the contract unchanged."""
    return getattr(row, method).__func__ is getattr(Operation, method).__func__


def has_code(row: type[Operation]) -> bool:
    """Return whether a class defines its module or the code of its output."""
    methods = ("build", "constructor", "call")
    return bool(row.layer or row.code) or not all(is_inherited(row, method) for method in methods)


def check_class(row: type[Operation], name: str) -> None:
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
    if not isinstance(row.ports, list | tuple) or not row.ports or not all(map(is_port, row.ports)):
        raise ValueError(f"{name}.ports: expected at least one name of an input, got {shown(row.ports)}")
    if row.category not in tuple(Category):
        raise ValueError(f"{name}.category: expected one of {', '.join(Category)}, got {shown(row.category)}")


def is_port(port: object) -> bool:
    """Return whether a name can stand for an input in the code of a call, which has the name `module`, too."""
    return isinstance(port, str) and port.isidentifier() and port != "module"


def example_inputs(row: type[Operation], example: Example, name: str) -> dict[str, Shape]:
    """Return the input shapes of an example by port. Raises ValueError for another number of them."""
    if len(example.inputs) != len(row.ports):
        raise ValueError(f"{name}: expected a shape for each of {', '.join(row.ports)}, got {len(example.inputs)}")
    return dict(zip(row.ports, example.inputs, strict=True))


def complete_settings(row: type[Operation], name: str, values: Settings) -> tuple[tuple[str, Any], ...]:
    """Return name and value of every setting, sorted. Raises ValueError for an unknown, invalid or missing one."""
    for _, message in setting_errors(row, name, values):
        raise ValueError(message)
    items = []
    for key in sorted(row.settings):
        value = values.get(key, row.settings[key].default)
        items.append((key, value if type(value) in SCALARS else hashable(value)))
    return tuple(items)


def setting_errors(row: type[Operation], name: str, values: Settings) -> Iterator[tuple[str, str]]:
    """Yield the code and the line of every unknown, invalid or missing setting."""
    for key, item in values.items():
        if key not in row.settings:
            names = row.signature or ", ".join(sorted(row.settings)) or "none"
            hint = did_you_mean(key, row.settings)
            yield "unknown_setting", f"{name}: expected settings out of {names}, got {shown(key)}{hint}"
        elif not row.settings[key].parameter.accepts(item):
            expected = row.settings[key].parameter.expected
            yield "invalid_setting", f"{name}: expected {expected} for {key}, got {shown(thawed(item))}"
    for key, setting in row.settings.items():
        if key not in values and setting.default is REQUIRED:
            yield "missing_setting", f"{name}: expected a setting {key}, {setting.parameter.expected}, got none"


def single_input(inputs: Shapes, *layouts: str) -> Shape:
    """Return the shape at the input port. Raises ShapeError unless it has one of the layouts."""
    shape = inputs[INPUT_PORT]
    if layouts and shape.layout not in layouts:
        article = "an" if layouts[0] == "image" else "a"
        raise ShapeError(f"expected {article} {' or '.join(layouts)}, got {shape}")
    return shape


def words(values: Settings, **defaults: Any) -> str:
    """Return the source of further keywords of a call, those that have their default left out."""
    return "".join(f", {key}={values[key]!r}" for key, default in defaults.items() if values[key] != default)
