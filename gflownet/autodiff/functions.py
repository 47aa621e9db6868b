"""Functions of one variable, as expressions: applied entry by entry, differentiated by a table, composed, written out.

An expression is the variable, a constant, a sum, a product, a power, or a primitive of the table called on another.
Equal ones are one object, so they are compared and hashed by identity. What builds them simplifies lightly: constants
are folded, 0 * f is 0 and f / f is 1 wherever f is defined, equal terms and equal factors are merged.

Kinks: the derivative of relu at 0 is 0 (as in torch), that of abs at 0 is sign(0) = 0, and the derivatives of sign and
step are 0 everywhere. sqrt has an infinite derivative at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor

Number = int | float


class Function:
    """A function of one variable x, immutable; equal ones are the same object."""

    _known: ClassVar[WeakValueDictionary[tuple[object, ...], Function]] = WeakValueDictionary()

    def __new__(cls, *parts: object) -> Self:
        """Return the expression of these parts that there is, else a new one."""
        key = (cls, *(math.nan if part != part else part for part in parts))  # every NaN is the same constant
        found = Function._known.get(key)
        if found is None:
            found = Function._known[key] = super().__new__(cls)
        return found  # pyright: ignore[reportReturnType]  # the key holds the class

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and unpickle to the one object."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # pyright: ignore[reportArgumentType]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of every entry.

        Args:
            x: of any shape and a floating dtype.
        """
        known: dict[Function, Tensor] = {}
        for part in self._inner:
            part._value(x, known)
        return self._value(x, known)

    @cached_property
    def _inner(self) -> tuple[Function, ...]:
        """Return all that this expression is made of, each after its own parts: in this order nothing recurses."""
        order: dict[Function, None] = {}
        stack: list[tuple[Function, bool]] = [(part, False) for part in self.parts]
        while stack:
            part, parts_done = stack.pop()
            if parts_done:
                order[part] = None
            elif part not in order:
                stack.append((part, True))
                stack.extend((inner, False) for inner in part.parts)
        return tuple(order)

    def _value(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        if self not in known:
            known[self] = self._compute(x, known)
        return known[self]

    def _compute(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        raise NotImplementedError

    def derivative(self) -> Function:
        """Return the derivative, again a function of x."""
        if "_derivative" not in self.__dict__:
            for part in self._inner:
                part._derivative  # noqa: B018  (kept there, for that of what it is a part of)
        return self._derivative

    @cached_property
    def _derivative(self) -> Function:
        return self._differentiate()

    def _differentiate(self) -> Function:
        raise NotImplementedError

    def compose(self, inner: Function) -> Function:
        """Return this function after another one: `x -> self(inner(x))`."""
        known: dict[Function, Function] = {}
        for part in self._inner:
            part._replace(inner, known)
        return self._replace(inner, known)

    def _replace(self, inner: Function, known: dict[Function, Function]) -> Function:
        if self not in known:
            known[self] = self._rebuild(lambda part: part._replace(inner, known), inner)
        return known[self]

    def _rebuild(self, replaced: Callable[[Function], Function], inner: Function) -> Function:
        raise NotImplementedError

    @property
    def parts(self) -> tuple[Function, ...]:
        """Return the expressions that this one is made of directly."""
        return ()

    @cached_property
    def formula(self) -> str:
        """Return the expression in x, e.g. `2*x*exp(x**2)`."""
        for part in self._inner:
            part.formula  # noqa: B018  (kept there)
        return _text().formula(self)

    def __str__(self) -> str:
        """Return the name where there is one (`tanh`, `power(2.5)`), else the formula; `Function.parse` reads both."""
        return _text().name(self) or self.formula

    def __repr__(self) -> str:
        """Return the name or the formula."""
        return f"Function.parse({str(self)!r})"

    @staticmethod
    def parse(text: str) -> Function:
        """Return the function written as a name or as a formula.

        Args:
            text: a name (`tanh`, `power(3)`), names within each other (`exp(sin(x))`, `exp(sin)`, `exp∘sin`), or an
                arithmetic expression of them (`0.5*x*(1 + tanh(x**3))`).

        Raises:
            ValueError: it is neither.
        """
        return _text().parse(text)

    def __add__(self, other: Function | Number) -> Function:
        """Return the sum."""
        return add([(1.0, self), (1.0, function_of(other))])

    __radd__ = __add__

    def __sub__(self, other: Function | Number) -> Function:
        """Return the difference."""
        return add([(1.0, self), (-1.0, function_of(other))])

    def __rsub__(self, other: Number) -> Function:
        """Return the difference."""
        return add([(1.0, function_of(other)), (-1.0, self)])

    def __neg__(self) -> Function:
        """Return the negative."""
        return multiply([self], coefficient=-1.0)

    def __mul__(self, other: Function | Number) -> Function:
        """Return the product."""
        return multiply([self, function_of(other)])

    __rmul__ = __mul__

    def __truediv__(self, other: Function | Number) -> Function:
        """Return the quotient."""
        return multiply([self, power(function_of(other), -1.0)])

    def __rtruediv__(self, other: Number) -> Function:
        """Return the quotient."""
        return multiply([power(self, -1.0)], coefficient=float(other))

    def __pow__(self, exponent: Number) -> Function:
        """Return the power."""
        return power(self, exponent)


def _text() -> ModuleType:
    """Return what reads and writes functions; that module needs this one."""
    from gflownet.autodiff import function_text

    return function_text


@dataclass(frozen=True, eq=False, repr=False)
class Variable(Function):
    """x itself."""

    def _compute(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        return x

    def _differentiate(self) -> Function:
        return ONE

    def _rebuild(self, replaced: Callable[[Function], Function], inner: Function) -> Function:
        return inner


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Function):
    """The same number everywhere."""

    value: float

    def _compute(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        return torch.full_like(x, self.value)

    def _differentiate(self) -> Function:
        return ZERO

    def _rebuild(self, replaced: Callable[[Function], Function], inner: Function) -> Function:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Function):
    """`constant + coefficient * expression + ...`; build with `add`."""

    constant: float
    terms: tuple[tuple[float, Function], ...]

    @property
    def parts(self) -> tuple[Function, ...]:
        """Return the expressions of the terms."""
        return tuple(term for _, term in self.terms)

    def _compute(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        (first, term), *rest = self.terms
        total = _scaled(term._value(x, known), first)
        for coefficient, term in rest:
            total = torch.add(total, term._value(x, known), alpha=coefficient)
        return total + self.constant if self.constant else total

    def _differentiate(self) -> Function:
        return add((coefficient, term.derivative()) for coefficient, term in self.terms)

    def _rebuild(self, replaced: Callable[[Function], Function], inner: Function) -> Function:
        return add(((c, replaced(term)) for c, term in self.terms), constant=self.constant)


@dataclass(frozen=True, eq=False, repr=False)
class Product(Function):
    """`coefficient * expression * ...`; build with `multiply`."""

    coefficient: float
    factors: tuple[Function, ...]

    @property
    def parts(self) -> tuple[Function, ...]:
        """Return the factors."""
        return self.factors

    def _compute(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        product = self.factors[0]._value(x, known)
        for factor in self.factors[1:]:
            product = product * factor._value(x, known)
        return _scaled(product, self.coefficient)

    def _differentiate(self) -> Function:
        def term(k: int) -> Function:
            return multiply([*self.factors[:k], self.factors[k].derivative(), *self.factors[k + 1 :]])

        return add((self.coefficient, term(k)) for k in range(len(self.factors)))

    def _rebuild(self, replaced: Callable[[Function], Function], inner: Function) -> Function:
        return multiply((replaced(factor) for factor in self.factors), coefficient=self.coefficient)


@dataclass(frozen=True, eq=False, repr=False)
class Power(Function):
    """`base ** exponent`, the exponent a number; build with `power`."""

    base: Function
    exponent: float

    @property
    def parts(self) -> tuple[Function, ...]:
        """Return the base."""
        return (self.base,)

    def _compute(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        base = self.base._value(x, known)
        fast = {2.0: torch.square, -1.0: torch.reciprocal, 0.5: torch.sqrt, -0.5: torch.rsqrt}.get(self.exponent)
        return fast(base) if fast else torch.pow(base, self.exponent)

    def _differentiate(self) -> Function:
        outer = power(self.base, self.exponent - 1.0)
        return multiply([outer, self.base.derivative()], coefficient=self.exponent)

    def _rebuild(self, replaced: Callable[[Function], Function], inner: Function) -> Function:
        return power(replaced(self.base), self.exponent)


@dataclass(frozen=True, eq=False, repr=False)
class Call(Function):
    """A primitive of the table on an expression; build with `call`."""

    primitive: str
    argument: Function

    @property
    def parts(self) -> tuple[Function, ...]:
        """Return the argument."""
        return (self.argument,)

    def _compute(self, x: Tensor, known: dict[Function, Tensor]) -> Tensor:
        return PRIMITIVES[self.primitive].value(self.argument._value(x, known))

    def _differentiate(self) -> Function:
        return multiply([PRIMITIVES[self.primitive].derivative(self.argument), self.argument.derivative()])

    def _rebuild(self, replaced: Callable[[Function], Function], inner: Function) -> Function:
        return call(self.primitive, replaced(self.argument))


ZERO, ONE, X = Constant(0.0), Constant(1.0), Variable()


def _scaled(value: Tensor, coefficient: float) -> Tensor:
    return value if coefficient == 1.0 else value * coefficient


def function_of(value: Function | Number) -> Function:
    """Return a number as a constant function, a function as it is."""
    return value if isinstance(value, Function) else constant(value)


def constant(value: Number) -> Function:
    """Return the constant function."""
    return Constant(float(value))


def _split(expression: Function) -> tuple[float, Function]:
    if isinstance(expression, Constant):
        return expression.value, ONE
    if isinstance(expression, Product) and expression.coefficient != 1.0:
        return expression.coefficient, multiply(expression.factors)
    return 1.0, expression


def add(terms: Iterable[tuple[float, Function]], *, constant: float = 0.0) -> Function:
    """Return `constant + coefficient * expression + ...`, sums within it dissolved and equal terms merged.

    Args:
        terms: coefficient and expression.
        constant: a number to add.
    """
    found: dict[Function, float] = {}
    waiting = list(terms)
    while waiting:
        outer, expression = waiting.pop()
        inner, expression = _split(expression)
        coefficient = outer * inner
        if expression is ONE:
            constant += coefficient
        elif isinstance(expression, Sum):
            constant += coefficient * expression.constant
            waiting.extend((coefficient * c, term) for c, term in expression.terms)
        else:
            found[expression] = found.get(expression, 0.0) + coefficient
    if math.isnan(constant) or any(math.isnan(c) for c in found.values()):
        return Constant(math.nan)
    left = [(c, term) for term, c in found.items() if c]
    if not left:
        return Constant(constant)
    if len(left) == 1 and not constant:
        return multiply([left[0][1]], coefficient=left[0][0])
    return Sum(constant, tuple(sorted(left, key=lambda pair: pair[1].formula)))


def multiply(factors: Iterable[Function], *, coefficient: float = 1.0) -> Function:
    """Return `coefficient * factor * ...`, products within it dissolved and whole powers of equal factors merged.

    Args:
        factors: expressions.
        coefficient: a number to multiply by.
    """
    exponents: dict[Function, float] = {}
    waiting = list(factors)
    while waiting:
        factor = waiting.pop()
        if isinstance(factor, Constant):
            coefficient *= factor.value
        elif isinstance(factor, Product):
            coefficient *= factor.coefficient
            waiting.extend(factor.factors)
        else:
            base, exponent = factor, 1.0
            if isinstance(factor, Power) and factor.exponent.is_integer():
                base, exponent = factor.base, factor.exponent
            exponents[base] = exponents.get(base, 0.0) + exponent
    if coefficient == 0.0 or math.isnan(coefficient):
        return ZERO if coefficient == 0.0 else Constant(math.nan)
    left = [base if n == 1.0 else Power(base, n) for base, n in exponents.items() if n]
    if not left:
        return Constant(coefficient)
    if len(left) == 1 and coefficient == 1.0:
        return left[0]
    return Product(coefficient, tuple(sorted(left, key=lambda factor: factor.formula)))


def power(base: Function, exponent: Number) -> Function:
    """Return `base ** exponent`; whole powers of powers and of products are multiplied out.

    Args:
        base: an expression.
        exponent: a number; a base below 0 gives NaN where it is not whole, as in torch.
    """
    exponent = float(exponent)
    if exponent in (0.0, 1.0):
        return base if exponent else ONE
    if isinstance(base, Constant):
        return constant(torch.tensor(base.value, dtype=torch.float64).pow(exponent).item())
    if exponent.is_integer():
        if isinstance(base, Power) and base.exponent.is_integer():
            return power(base.base, base.exponent * exponent)
        if isinstance(base, Product):
            scale = power(Constant(base.coefficient), exponent)
            return multiply([scale, *(power(factor, exponent) for factor in base.factors)])
    return Power(base, exponent)


def call(primitive: str, argument: Function) -> Function:
    """Return a primitive of an expression; log undoes exp, and the log of a sigmoid does not underflow.

    Args:
        primitive: a name of the table.
        argument: the expression it is called on.
    """
    if isinstance(argument, Constant):
        return constant(PRIMITIVES[primitive].value(torch.tensor(argument.value, dtype=torch.float64)).item())
    if primitive == "log" and isinstance(argument, Call):
        if argument.primitive == "exp":
            return argument.argument
        if argument.primitive == "sigmoid":
            return -call("softplus", -argument.argument)
    return Call(primitive, argument)


@dataclass(frozen=True)
class Primitive:
    """A row of the table: what torch computes, and the derivative at an expression."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Function], Function]


def _softplus(x: Tensor) -> Tensor:
    # torch's own softplus is x above 20, which is off by 2e-9
    return torch.logaddexp(x, torch.zeros_like(x))


def _step(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _normal_density(x: Function) -> Function:
    return call("exp", -0.5 * x**2) * (1.0 / math.sqrt(2.0 * math.pi))


def _gelu_derivative(x: Function) -> Function:
    return call("ndtr", x) + x * _normal_density(x)


def _silu_derivative(x: Function) -> Function:
    sigmoid = call("sigmoid", x)
    return sigmoid + x * sigmoid * (1.0 - sigmoid)


PRIMITIVES: dict[str, Primitive] = {
    "exp": Primitive(torch.exp, lambda x: call("exp", x)),
    "log": Primitive(torch.log, lambda x: 1.0 / x),
    "sin": Primitive(torch.sin, lambda x: call("cos", x)),
    "cos": Primitive(torch.cos, lambda x: -call("sin", x)),
    "tanh": Primitive(torch.tanh, lambda x: 1.0 - call("tanh", x) ** 2),
    "sigmoid": Primitive(torch.sigmoid, lambda x: call("sigmoid", x) * (1.0 - call("sigmoid", x))),
    "relu": Primitive(torch.relu, lambda x: call("step", x)),
    "gelu": Primitive(torch.nn.functional.gelu, _gelu_derivative),
    "softplus": Primitive(_softplus, lambda x: call("sigmoid", x)),
    "silu": Primitive(torch.nn.functional.silu, _silu_derivative),
    "abs": Primitive(torch.abs, lambda x: call("sign", x)),
    "erf": Primitive(torch.erf, lambda x: call("exp", -(x**2)) * (2.0 / math.sqrt(math.pi))),
    "ndtr": Primitive(torch.special.ndtr, _normal_density),
    "sign": Primitive(torch.sign, lambda x: ZERO),
    "step": Primitive(_step, lambda x: ZERO),
}
