"""Base of node classes outside the package: one class with settings, shape, `forward_` and `backward_`.

Validation, JSON, drawings, compiled programs and derivatives of any order follow from the class:

    class Clip(CustomNode):
        '''Entries limited to an interval.'''

        low: float = 0.0
        high: float = 1.0

        def forward_(self, source):
            return source.clamp(self.low, self.high)

        def backward_(self, gradient, value, source):
            return (gradient * ((source >= self.low) & (source <= self.high)),)

    y = Clip(x, high=2.0)

The parameters of `forward_` are the operands, annotated attributes are settings. The first derivative is `backward_`;
further ones differentiate it with torch, so both use torch operations. H are the axes of gflownet/autodiff/rules.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any, Self, get_type_hints

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gflownet.autodiff.functions import named_functions
from gflownet.autodiff.nodes import LeafNode, Node, is_continuous
from gflownet.autodiff.rules import Algebra, Call, Form, Shape
from gflownet.autodiff.tensor_algebra import owned
from gflownet.autodiff.tokens import shortened

Specification = tuple[Shape, torch.dtype]
TYPES = ("leaf", "transform", "elementwise", "linear", "nonlinear", "cast")  # of the package's nodes
FIELDS = ("id", "type", "name", "shape", "src")  # of every custom node in JSON


class CustomNode(Node):
    """A node of a user's class; see the module docstring."""

    argument_name = "function"

    def __init__(self, *operands: Node, name: str | None = None, **settings: Any) -> None:
        """Describe the operation.

        Args:
            operands: one for each parameter of `forward_`.
            name: shown in messages and drawings.
            settings: values of annotated attributes; the others keep the value of the class.

        Raises:
            ValueError: a setting is unknown, missing or of another type, or operands do not fit `forward_` or `shape_`.
        """
        kind = type(self)
        owner = f"{kind.__name__} {name!r}" if name else kind.__name__
        self.settings = kind.checked_settings(settings, owner)
        self.__dict__.update(self.settings)
        try:
            inspect.signature(kind.forward_).bind(self, *operands)
        except TypeError:
            names = inspect.signature(self.forward_).parameters.values()
            message = f"expected operands {', '.join(map(str, names))}, got {len(operands)}"
            raise ValueError(f"{owner}: {message}") from None
        try:
            shape = [int(extent) for extent in self.shape_(*(node.shape for node in operands))]
            dtype = self.dtype_(*(node.dtype for node in operands))
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from error
        super().__init__(operands, shape=shape, dtype=dtype, name=name)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the class: `forward_`, the types of its settings and its name; raise ValueError for the first fault."""
        super().__init_subclass__(**kwargs)
        if cls.forward_ is Node.forward_ or cls.__init__ is not CustomNode.__init__:
            raise ValueError(f"{cls.__name__}: expected a method forward_ and no __init__ (settings are annotations)")
        is_dtype = isinstance(getattr(torch, cls.type_name(), None), torch.dtype)
        if is_dtype or cls.type_name() in {*TYPES, *named_functions()}:
            raise ValueError(f"{cls.__name__}: expected a name that no node, function or dtype has")

    @classmethod
    def setting_types(cls) -> Mapping[str, Any]:
        """Return the type of each setting: the annotated attributes of the class and its bases up to this one."""
        return _setting_types(cls)

    @classmethod
    def checked_settings(cls, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
        """Return the values of all settings, numbers as their type; raise ValueError for one that does not fit."""
        types = cls.setting_types()
        unknown = next((name for name in values if name not in types), None)
        if unknown is not None:
            raise ValueError(
                f"{owner}: {shortened(unknown)}: expected one of the settings {', '.join(types) or '(none)'}"
            )
        settings = {}
        for name, kind in types.items():
            if name not in values and not hasattr(cls, name):
                raise ValueError(f"{owner}: {name}: expected a value, got none")
            value = values[name] if name in values else getattr(cls, name)
            settings[name] = _converted(value, kind)
            if settings[name] is None:
                raise ValueError(f"{owner}: {name}: expected {_TYPE_NAMES[kind]}, got {shortened(value)}")
        return settings

    def shape_(self, *shapes: Shape) -> Sequence[int]:
        """Return the shape of the result, by default the shape of the first operand.

        Raises:
            ValueError: the shapes or the settings do not fit.
        """
        return shapes[0]

    def dtype_(self, *dtypes: torch.dtype) -> torch.dtype:
        """Return the dtype of the result, by default the dtype of the first operand; raise ValueError for one unfit."""
        return dtypes[0]

    def backward_(self, gradient: Tensor, value: Tensor, *values: Tensor) -> Sequence[Tensor | None]:
        """Return the contribution to the gradient of each operand; by default torch differentiates `forward_`.

        Args:
            gradient: of the node, of its shape.
            value: of the node.
            values: of the operands, in order.

        Returns:
            A tensor of the operand's shape for each operand, None for a contribution of 0.
        """
        places = [place for place, operand in enumerate(values) if is_continuous(operand.dtype)]
        parts = dict(zip(places, _vjp(self.forward_, values, places)(gradient), strict=True))
        return [parts.get(place) for place in range(len(values))]

    @classmethod
    def reversed_(
        cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int, adjoint: Any, extra: Shape
    ) -> Any:
        """Return `Applied.reversed`, by default of `backward_`; the package's nodes return other nodes."""
        return algebra.call(function.pullback(which, extra), [adjoint, *inputs])

    @classmethod
    def pushed_(
        cls, algebra: Algebra[Any], function: Applied, inputs: Sequence[Any], which: int, tangent: Any, extra: Shape
    ) -> Any:
        """Return `Applied.pushed`, by default the transpose of `backward_`."""
        return algebra.call(function.pushforward(which, extra), [tangent, *inputs])

    def computed(self, values: Sequence[Tensor]) -> Tensor:
        """Return the value of `forward_`; raise ValueError for a shape or dtype other than the declared one."""
        return self.function(*values)

    def pulled_back(self, gradient: Tensor, values: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the contributions of `backward_`; raise ValueError for shapes that differ from the operands'."""
        return self.function.gradients(gradient, self.value(), *values)

    @cached_property
    def function(self) -> Applied:
        """Return the operation of the node without its operands."""
        operands = tuple((source.shape, source.dtype) for source in self.inputs)
        return Applied(type(self), tuple(self.settings.items()), operands)

    def _form(self) -> Form:
        return Call(self.function)


@dataclass(frozen=True)
class Applied:
    """A node class with settings, for operands of given shapes and dtypes: a hashable function of tensors."""

    kind: type[CustomNode]
    settings: tuple[tuple[str, Any], ...]
    operands: tuple[Specification, ...]

    @cached_property
    def _prototype(self) -> Node:
        return self.node([LeafNode(shape, dtype=dtype) for shape, dtype in self.operands])

    @property
    def shape(self) -> Shape:
        """Return the shape of the result."""
        return self._prototype.shape

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the result."""
        return self._prototype.dtype

    def node(self, inputs: Sequence[Node]) -> Node:
        """Return the node that applies the function to inputs."""
        return self.kind(*inputs, **dict(self.settings))

    def reversed(self, algebra: Algebra[Any], inputs: Sequence[Any], which: int, adjoint: Any, extra: Shape) -> Any:
        """Return the contribution of the adjoint `[result..., H]` to that of an operand, `[operand..., H]`."""
        return self.kind.reversed_(algebra, self, inputs, which, adjoint, extra)

    def pushed(self, algebra: Algebra[Any], inputs: Sequence[Any], which: int, tangent: Any, extra: Shape) -> Any:
        """Return the contribution of an operand's tangent `[operand..., H]` to that of the result, `[result..., H]`."""
        return self.kind.pushed_(algebra, self, inputs, which, tangent, extra)

    def pullback(self, which: int, extra: Shape) -> Self:
        """Return the function of adjoint and operands, see `reversed`."""
        return self._derived(PullbackNode, which, extra, (self.shape, self.dtype))

    def pushforward(self, which: int, extra: Shape) -> Self:
        """Return the function of tangent and operands, see `pushed`."""
        return self._derived(PushforwardNode, which, extra, self.operands[which])

    def _derived(self, kind: type[CustomNode], which: int, extra: Shape, first: Specification) -> Self:
        settings = (("of", self), ("operand", which), ("free", extra))
        return type(self)(kind, settings, (((*first[0], *extra), first[1]), *self.operands))

    def __call__(self, *values: Tensor) -> Tensor:
        """Return the value, in memory that no operand shares; torch differentiates it by `backward_`.

        Raises:
            ValueError: `forward_` returns another shape or dtype than `shape_` and `dtype_`.
        """
        if torch.compiler.is_compiling():
            return self._prototype.forward_(*values)
        if self.kind.backward_ is CustomNode.backward_:
            return self.value(*values)
        return _Recorded.apply(self, *values)  # pyright: ignore[reportReturnType]  # typed as anything

    def value(self, *values: Tensor) -> Tensor:
        """Return the value of `forward_`, checked."""
        result = self._prototype.forward_(*values)
        self._check("forward_", result, self.shape, self.dtype)
        return owned(result, values)

    def gradients(self, gradient: Tensor, value: Tensor, *values: Tensor) -> list[Tensor | None]:
        """Return the result of `backward_`, checked; raise ValueError for other shapes, dtypes or another count."""
        parts = self._prototype.backward_(gradient, value, *values)
        if not isinstance(parts, list | tuple) or len(parts) != len(self.operands):
            message = f"expected a gradient or None for each of {len(self.operands)} operands, got {shortened(parts)}"
            raise ValueError(f"{self.kind.__name__}: backward_: {message}")
        for part, specification in zip(parts, self.operands, strict=True):
            if part is not None:
                self._check("backward_", part, *specification)
        return list(parts)

    def _check(self, method: str, result: Any, shape: Shape, dtype: torch.dtype) -> None:
        is_tensor = isinstance(result, Tensor)
        if is_tensor and tuple(result.shape) == shape and result.dtype == dtype:
            return
        got = f"{list(result.shape)} of {result.dtype}" if is_tensor else shortened(result)
        raise ValueError(f"{self.kind.__name__}: {method}: expected a tensor {list(shape)} of {dtype}, got {got}")


class _Recorded(torch.autograd.Function):
    """A call of a user's node with its own derivative, for torch.autograd and torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Applied, *values: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the value."""
        return function.value(*values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep function, operands and value."""
        ctx.function, *values = inputs
        ctx.save_for_backward(*values, output)
        ctx.save_for_forward(*values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of `backward_`."""
        *values, value = ctx.saved_tensors
        return (None, *ctx.function.gradients(gradient, value, *values))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangent of the value: the transpose of `backward_`, applied to the tangents."""
        pairs = [(place, tangent) for place, tangent in enumerate(tangents[1:]) if tangent is not None]
        values = [forward_ad.unpack_dual(value).primal for value in ctx.saved_tensors]
        parts = [_pushed(ctx.function, values, place, tangent) for place, tangent in pairs]
        return sum(parts[1:], parts[0])


class PullbackNode(CustomNode):
    """Reverse mode: the operands are the adjoint `[result..., H]`, then the operands of the function."""

    of: Applied
    operand: int
    free: tuple[int, ...]

    def shape_(self, *shapes: Shape) -> Sequence[int]:
        """Return `[operand..., H]`; raise ValueError for an adjoint of another shape."""
        _check_shape("adjoint", (*self.of.shape, *self.free), shapes[0])
        return (*shapes[1 + self.operand], *self.free)

    def dtype_(self, *dtypes: torch.dtype) -> torch.dtype:
        """Return the dtype of the operand."""
        return dtypes[1 + self.operand]

    def forward_(self, adjoint: Tensor, *values: Tensor) -> Tensor:
        """Return the adjoint of the operand."""
        vjp = _vjp(self.of, values, [self.operand])
        return _over_free_axes(lambda row: vjp(row)[0], adjoint, self.free)


class PushforwardNode(CustomNode):
    """Forward mode: the operands are the tangent `[operand..., H]`, then the operands of the function."""

    of: Applied
    operand: int
    free: tuple[int, ...]

    def shape_(self, *shapes: Shape) -> Sequence[int]:
        """Return `[result..., H]`; raise ValueError for a tangent of another shape."""
        _check_shape("tangent", (*shapes[1 + self.operand], *self.free), shapes[0])
        return (*self.of.shape, *self.free)

    def dtype_(self, *dtypes: torch.dtype) -> torch.dtype:
        """Return the dtype of the result."""
        return self.of.dtype

    def forward_(self, tangent: Tensor, *values: Tensor) -> Tensor:
        """Return the tangent of the result by the operand."""
        return _over_free_axes(lambda row: _pushed(self.of, values, self.operand, row), tangent, self.free)


DERIVATIVES: tuple[type[CustomNode], ...] = (PullbackNode, PushforwardNode)
_TYPE_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    tuple[int, ...]: "a list of integers",
    Applied: "a custom node",
}


@cache
def _setting_types(kind: type[CustomNode]) -> dict[str, Any]:
    own = [base for base in reversed(kind.__mro__) if issubclass(base, CustomNode) and base is not CustomNode]
    hints = get_type_hints(kind)
    types = {name: hints[name] for base in own for name in inspect.get_annotations(base)}
    for name, expected in types.items():
        if expected not in _TYPE_NAMES or name in FIELDS:
            message = f"expected a setting of type {', '.join(map(_type_text, list(_TYPE_NAMES)[:-1]))}"
            raise ValueError(f"{kind.__name__}: {name}: {message}, got {_type_text(expected)}")
    return types


def _type_text(kind: Any) -> str:
    return kind.__name__ if type(kind) is type else str(kind)


def _converted(value: Any, kind: Any) -> Any:
    """Return a value as its type, None for a value of another type."""
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind == tuple[int, ...] and isinstance(value, list | tuple):
        return tuple(value) if all(type(each) is int for each in value) else None
    return value if type(value) is kind else None


def _check_shape(name: str, expected: Shape, shape: Shape) -> None:
    if shape != expected:
        raise ValueError(f"expected {name} of shape {list(expected)}, got {list(shape)}")


def _over_free_axes(linear: Callable[[Tensor], Tensor], tensor: Tensor, free: Shape) -> Tensor:
    """Return a linear function of every tensor along the free axes, which stay the last ones."""
    if not free:
        return linear(tensor)
    rows = tensor.reshape(*tensor.shape[: tensor.dim() - len(free)], -1).movedim(-1, 0)
    return torch.vmap(linear)(rows).movedim(0, -1).unflatten(-1, free)


def _vjp(function: Callable[..., Tensor], values: Sequence[Tensor], places: Sequence[int]) -> Callable[..., Any]:
    """Return the map from an adjoint of a function to those of some operands, one tensor each."""

    def of_some(*some: Tensor) -> Tensor:
        every = dict(enumerate(values)) | dict(zip(places, some, strict=True))
        return function(*every.values())

    return torch.func.vjp(of_some, *(values[place] for place in places))[1]


def _pushed(function: Applied, values: Sequence[Tensor], place: int, tangent: Tensor) -> Tensor:
    """Return the tangent of a function's result: the transpose of the linear map from adjoint to adjoint."""
    vjp = _vjp(function, values, [place])
    zero = torch.zeros(function.shape, dtype=function.dtype, device=tangent.device)
    return torch.func.vjp(lambda adjoint: vjp(adjoint)[0], zero)[1](tangent)[0]


Classes = Mapping[str, type[CustomNode]]


def classes_by_name(classes: Iterable[type[CustomNode]]) -> Classes:
    """Return classes and derivatives by their names in JSON; raise ValueError for two of one name."""
    named: dict[str, type[CustomNode]] = {}
    for kind in (*DERIVATIVES, *classes):
        if named.setdefault(kind.type_name(), kind) is not kind:
            raise ValueError(f"classes: expected one class named {kind.type_name()}, got two")
    return named


def described(function: Applied) -> dict[str, Any]:
    """Return the settings of a function as JSON values."""
    return {name: _json(value) for name, value in function.settings}


def _json(value: Any) -> Any:
    if isinstance(value, Applied):
        return {"type": value.kind.type_name(), **described(value)}
    return list(value) if isinstance(value, tuple) else value


def settings_of(
    kind: type[CustomNode], settings: Mapping[str, Any], operands: Sequence[Specification], classes: Classes
) -> dict[str, Any]:
    """Return settings as Python values; the function of a derivative has all operands but the first."""
    types = kind.setting_types()
    return {
        name: _function(value, operands[1:], classes) if types.get(name) is Applied else value
        for name, value in settings.items()
    }


def _function(value: Any, operands: Sequence[Specification], classes: Classes) -> Applied:
    name = str(value.get("type")) if isinstance(value, Mapping) else ""
    if name not in classes:
        nearest = get_close_matches(name, classes, n=1)
        hint = f", perhaps {nearest[0]}" if nearest else ""
        raise ValueError(f"of: expected the type of a custom node{hint}, got {shortened(value)}")
    kind = classes[name]
    settings = settings_of(kind, {key: item for key, item in value.items() if key != "type"}, operands, classes)
    return Applied(kind, tuple(kind.checked_settings(settings, name).items()), tuple(operands))
