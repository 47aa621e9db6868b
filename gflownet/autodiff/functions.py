"""Functions of one variable, as expressions: applied to every entry, differentiated, composed, read and written.

An expression is the variable, a constant, a sum, a product, a power, or a primitive of the table called on another
expression. Equal expressions are one object, so they are compared and hashed by identity. The builders simplify
lightly: constants are folded, 0 * f is 0, f / f is 1, equal terms and equal factors are merged.

Kinks: the derivative of relu at 0 is 0 (as in torch), that of abs at 0 is sign(0) = 0, and the derivatives of sign and
step are 0 everywhere. sqrt has an infinite derivative at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from gflownet.autodiff.tokens import read_function


@dataclass(frozen=True)
class Primitive:
    """A row of the table."""

    value: Callable[[Tensor], Tensor]
    derivative: str  # formula in x, read by Function.parse
    code: str  # torch call of generated programs, {0} the operand
    in_place: str = ""  # statement that overwrites the operand, where torch has one


def _step(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _in_torch(name: str, derivative: str) -> Primitive:
    """Return the row of a function that torch has under its name and, in place, with an underscore."""
    return Primitive(getattr(torch, name), derivative, f"torch.{name}({{0}})", f"{{0}}.{name}_()")


_NORMAL_DENSITY = "0.3989422804014327*exp(-0.5*x**2)"

PRIMITIVES: dict[str, Primitive] = {
    "exp": _in_torch("exp", "exp(x)"),
    "log": _in_torch("log", "1/x"),
    "sin": _in_torch("sin", "cos(x)"),
    "cos": _in_torch("cos", "-sin(x)"),
    "tanh": _in_torch("tanh", "1 - tanh(x)**2"),
    "sigmoid": _in_torch("sigmoid", "sigmoid(x)*sigmoid(-x)"),
    "relu": _in_torch("relu", "step(x)"),
    "gelu": Primitive(torch.nn.functional.gelu, f"ndtr(x) + x*{_NORMAL_DENSITY}", "torch._C._nn.gelu({0})"),
    # torch's own softplus is x above 20, which is off by 2e-9
    "softplus": Primitive(
        lambda x: torch.logaddexp(x, torch.zeros_like(x)), "sigmoid(x)", "torch.logaddexp({0}, torch.zeros_like({0}))"
    ),
    "silu": Primitive(torch.nn.functional.silu, "sigmoid(x) + x*sigmoid(x)*sigmoid(-x)", "torch._C._nn.silu({0})"),
    "abs": _in_torch("abs", "sign(x)"),
    "erf": _in_torch("erf", "1.1283791670955126*exp(-x**2)"),
    "ndtr": Primitive(torch.special.ndtr, _NORMAL_DENSITY, "torch.special.ndtr({0})"),
    "sign": _in_torch("sign", "0"),
    "step": Primitive(_step, "0", ""),  # written as sign(relu(x)), see entrywise.py
}
# Powers of x with a name.
POWERS = {"square": 2.0, "cube": 3.0, "reciprocal": -1.0, "sqrt": 0.5}


Number = int | float
Result = TypeVar("Result")
_FAST_POWERS = {2.0: torch.square, -1.0: torch.reciprocal, 0.5: torch.sqrt, -0.5: torch.rsqrt}
_POWER_NAMES = {exponent: name for name, exponent in POWERS.items()}


class Function:
    """A function of one variable x, immutable; equal ones are the same object.

    Subclasses are frozen dataclasses whose fields are numbers, texts and functions.
    """

    _known: ClassVar[WeakValueDictionary[tuple[object, ...], Any]] = WeakValueDictionary()

    def __new__(cls, *parts: object) -> Self:
        """Return the existing expression of these parts, or a new one."""
        key = (cls, *(math.nan if part != part else part for part in parts))  # every NaN is the same constant
        existing = Function._known.get(key)
        if existing is None:
            existing = Function._known[key] = super().__new__(cls)
        return existing

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle to the one object, at any depth: a part is given by its place among the parts."""
        every = (*self.all_parts, self)
        places = {part: _Place(place) for place, part in enumerate(every)}
        rows = [(type(part), [_replaced(getattr(part, row.name), places) for row in fields(part)]) for part in every]  # pyright: ignore[reportArgumentType]
        return _unpickled, (rows,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: it never changes."""
        return self

    @property
    def parts(self) -> tuple[Function, ...]:
        """Return the expressions that this one is made of directly."""
        match self:
            case Sum():
                return tuple(term for _, term in self.terms)
            case Product():
                return self.factors
            case Power(inner) | Call(_, inner):
                return (inner,)
        return ()

    @cached_property
    def all_parts(self) -> tuple[Function, ...]:
        """Return all parts, direct and indirect, each after its own parts: in this order nothing recurses."""
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

    def fold(self, step: Callable[[Function, dict[Function, Result]], Result]) -> Result:
        """Return the result of a step at this expression, which gets the results at all parts."""
        results: dict[Function, Result] = {}
        for part in (*self.all_parts, self):
            results[part] = step(part, results)
        return results[self]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of every entry of a floating tensor of any shape."""
        return self.fold(lambda part, values: _value(part, x, values))

    def derivative(self) -> Function:
        """Return the derivative, again a function of x."""
        return self._cached("_derivative")

    def _cached(self, name: str) -> Any:
        """Return a cached property; its parts have it first, so that it recurses no deeper than one level."""
        if name not in self.__dict__:
            for part in self.all_parts:
                getattr(part, name)
        return getattr(self, name)

    @cached_property
    def _derivative(self) -> Function:
        return _differentiated(self)

    def compose(self, inner: Function) -> Function:
        """Return this function after another one: `x -> self(inner(x))`."""
        return self.fold(lambda part, replaced: _composed(part, replaced, inner))

    @property
    def formula(self) -> str:
        """Return the expression in x, e.g. `2*x*exp(x**2)`."""
        return self._cached("_text")

    @cached_property
    def _text(self) -> str:
        return _formula(self)

    def __str__(self) -> str:
        """Return the name if there is one (`tanh`, `power(2.5)`), else the formula; `Function.parse` reads both."""
        if isinstance(self, Call) and self.argument is X:
            return self.primitive
        if isinstance(self, Power) and self.base is X:
            return _POWER_NAMES.get(self.exponent, f"power({_number(self.exponent)})")
        return "neg" if self is -X else self.formula

    def __repr__(self) -> str:
        """Return the call that reads the name or the formula."""
        return f"Function.parse({str(self)!r})"

    @staticmethod
    def parse(text: str) -> Function:
        """Return the function written as a name or as a formula.

        Args:
            text: a name (`tanh`, `power(3)`), a composition (`exp(sin(x))`, `exp(sin)`, `exp∘sin`), or a formula
                (`0.5*x*(1 + tanh(x**3))`).

        Raises:
            ValueError: it is neither.
        """
        return read_function(text, named_functions(), Constant, add, multiply)

    def __add__(self, other: Function | Number) -> Function:
        return add([(1.0, self), (1.0, function_of(other))])

    __radd__ = __add__

    def __sub__(self, other: Function | Number) -> Function:
        return add([(1.0, self), (-1.0, function_of(other))])

    def __rsub__(self, other: Number) -> Function:
        return add([(1.0, function_of(other)), (-1.0, self)])

    def __neg__(self) -> Function:
        return multiply([self], coefficient=-1.0)

    def __mul__(self, other: Function | Number) -> Function:
        return multiply([self, function_of(other)])

    __rmul__ = __mul__

    def __truediv__(self, other: Function | Number) -> Function:
        return multiply([self, power(function_of(other), -1.0)])

    def __rtruediv__(self, other: Number) -> Function:
        return multiply([power(self, -1.0)], coefficient=float(other))

    def __pow__(self, exponent: Number) -> Function:
        return power(self, exponent)


@dataclass(frozen=True, eq=False, repr=False)
class Variable(Function):
    """x itself."""


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Function):
    """The same number everywhere."""

    value: float


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Function):
    """`constant + coefficient * expression + ...`; build with `add`."""

    constant: float
    terms: tuple[tuple[float, Function], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Product(Function):
    """`coefficient * expression * ...`; build with `multiply`."""

    coefficient: float
    factors: tuple[Function, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Power(Function):
    """`base ** exponent`, the exponent a number; build with `power`."""

    base: Function
    exponent: float


@dataclass(frozen=True, eq=False, repr=False)
class Call(Function):
    """A primitive of the table on an expression; build with `call`."""

    primitive: str
    argument: Function


class _Place(int):
    """A part of a pickled function."""


def _replaced(value: Any, by: Mapping[Any, Any]) -> Any:
    """Return a field with functions or places replaced."""
    if isinstance(value, tuple):
        return tuple(_replaced(each, by) for each in value)
    return by[value] if isinstance(value, Function | _Place) else value


def _unpickled(rows: Sequence[tuple[type[Function], Sequence[Any]]]) -> Function:
    """Return the function of `Function.__reduce__`."""
    parts: dict[int, Function] = {}
    for place, (kind, values) in enumerate(rows):
        parts[place] = kind(*(_replaced(value, parts) for value in values))
    return parts[len(rows) - 1]


ZERO, ONE, X = Constant(0.0), Constant(1.0), Variable()


def _value(function: Function, x: Tensor, values: Mapping[Function, Tensor]) -> Tensor:
    """Return a function at x, given the values of its parts."""
    match function:  # by class alone: patterns with fields take longer than a small tensor's operation
        case Call():
            return PRIMITIVES[function.primitive].value(values[function.argument])
        case Product():
            product = values[function.factors[0]]
            for factor in function.factors[1:]:
                product = product * values[factor]
            return _scaled(product, function.coefficient)
        case Sum():
            (first, term), *further_terms = function.terms
            total = _scaled(values[term], first)
            for coefficient, term in further_terms:
                total = torch.add(total, values[term], alpha=coefficient)
            return total + function.constant if function.constant else total
        case Power():
            fast = _FAST_POWERS.get(function.exponent)
            return fast(values[function.base]) if fast else torch.pow(values[function.base], function.exponent)
        case Constant():
            return torch.full_like(x, function.value)
    return x


def _differentiated(function: Function) -> Function:
    """Return the derivative, given those of the parts."""
    match function:
        case Constant():
            return ZERO
        case Sum(_, terms):
            return add((coefficient, term.derivative()) for coefficient, term in terms)
        case Product(coefficient, factors):
            slopes = [multiply([*factors[:k], f.derivative(), *factors[k + 1 :]]) for k, f in enumerate(factors)]
            return add((coefficient, slope) for slope in slopes)
        case Power(base, exponent):
            return multiply([power(base, exponent - 1.0), base.derivative()], coefficient=exponent)
        case Call(primitive, argument):
            return multiply([_slope(primitive).compose(argument), argument.derivative()])
    return ONE


def _composed(function: Function, replaced: Mapping[Function, Function], inner: Function) -> Function:
    """Return a function with x replaced, given the same of its parts."""
    match function:
        case Variable():
            return inner
        case Sum(constant, terms):
            return add(((coefficient, replaced[term]) for coefficient, term in terms), constant=constant)
        case Product(coefficient, factors):
            return multiply((replaced[factor] for factor in factors), coefficient=coefficient)
        case Power(base, exponent):
            return power(replaced[base], exponent)
        case Call(primitive, argument):
            return call(primitive, replaced[argument])
    return function


def _formula(function: Function) -> str:
    """Return the expression in x."""
    match function:
        case Constant(value):
            return _number(value)
        case Sum(constant, terms):
            pieces = [multiply([term], coefficient=coefficient).formula for coefficient, term in terms]
            if constant:
                pieces.insert(0 if constant > 0 else len(pieces), _number(constant))
            return pieces[0] + "".join(f" - {p[1:]}" if p.startswith("-") else f" + {p}" for p in pieces[1:])
        case Product(coefficient, factors):
            scale = {1.0: "", -1.0: "-"}.get(coefficient, f"{_number(coefficient)}*")
            return scale + "*".join(f"({f.formula})" if isinstance(f, Sum) else f.formula for f in factors)
        case Power(base, exponent):
            text = base.formula if isinstance(base, Variable | Call) else f"({base.formula})"
            return f"{text}**{_number(exponent)}"
        case Call(primitive, argument):
            return f"{primitive}({argument.formula})"
    return "x"


@cache
def named_functions() -> dict[str, Function]:
    """Return the named functions of `Function.parse`."""
    primitives = {name: Call(name, X) for name in PRIMITIVES}
    powers = {name: power(X, exponent) for name, exponent in POWERS.items()}
    return primitives | powers | {"x": X, "neg": -X, "inf": Constant(math.inf), "nan": Constant(math.nan)}


@cache
def _slope(primitive: str) -> Function:
    """Return the derivative of a primitive."""
    return Function.parse(PRIMITIVES[primitive].derivative)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _scaled(value: Tensor, coefficient: float) -> Tensor:
    return value if coefficient == 1.0 else value * coefficient


def function_of(value: Function | Number) -> Function:
    """Return a number as a constant function, a function as it is."""
    return value if isinstance(value, Function) else Constant(float(value))


def _split(expression: Function) -> tuple[float, Function]:
    if isinstance(expression, Constant):
        return expression.value, ONE
    if isinstance(expression, Product) and expression.coefficient != 1.0:
        return expression.coefficient, multiply(expression.factors)
    return 1.0, expression


def add(terms: Iterable[tuple[float, Function]], *, constant: float = 0.0) -> Function:
    """Return `constant + coefficient * expression + ...`; nested sums are dissolved, equal terms merged."""
    coefficients: dict[Function, float] = {}
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
            coefficients[expression] = coefficients.get(expression, 0.0) + coefficient
    if math.isnan(constant) or any(math.isnan(c) for c in coefficients.values()):
        return Constant(math.nan)
    left = [(c, term) for term, c in coefficients.items() if c]
    if not left:
        return Constant(constant)
    if len(left) == 1 and not constant:
        return multiply([left[0][1]], coefficient=left[0][0])
    return Sum(constant, tuple(sorted(left, key=lambda pair: pair[1].formula)))


def multiply(factors: Iterable[Function], *, coefficient: float = 1.0) -> Function:
    """Return `coefficient * factor * ...`; nested products are dissolved, integer powers of equal factors merged."""
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
    """Return `base ** exponent`, NaN for a negative base and a fractional exponent; multiply integer powers out."""
    exponent = float(exponent)
    if exponent in (0.0, 1.0):
        return base if exponent else ONE
    if isinstance(base, Constant):
        return Constant(torch.tensor(base.value, dtype=torch.float64).pow(exponent).item())
    if exponent.is_integer():
        if isinstance(base, Power) and base.exponent.is_integer():
            return power(base.base, base.exponent * exponent)
        if isinstance(base, Product):
            scale = power(Constant(base.coefficient), exponent)
            return multiply([scale, *(power(factor, exponent) for factor in base.factors)])
    if exponent < 0 and (pair := _two_exponentials(base)):
        (first, inner), (second, outer) = pair  # first * exp(inner) + second * exp(outer)
        inverse = call("exp", -inner) * call("sigmoid", inner - outer - math.log(second / first)) * (1.0 / first)
        return power(inverse, -exponent)
    return Power(base, exponent)


def _two_exponentials(total: Function) -> list[tuple[float, Function]] | None:
    """Return coefficients and exponents of a sum of two positive multiples of exponentials, such as `1 + exp(x)`.

    Its logarithm and its inverse are a softplus and a sigmoid, whose derivatives do not overflow.
    """
    if not isinstance(total, Sum):
        return None
    pairs = [(total.constant, ZERO)] if total.constant else []
    pairs += [(c, term.argument) for c, term in total.terms if isinstance(term, Call) and term.primitive == "exp"]
    num_terms = len(total.terms) + bool(total.constant)
    is_pair = len(pairs) == num_terms == 2 and all(0.0 < c < math.inf for c, _ in pairs)
    return pairs if is_pair and 0.0 < pairs[1][0] / pairs[0][0] < math.inf else None


def call(primitive: str, argument: Function) -> Function:
    """Return a primitive of the table at an expression.

    log undoes exp, and the logs of a sigmoid and of a sum of two exponentials neither overflow nor underflow.
    """
    if isinstance(argument, Constant):
        return Constant(PRIMITIVES[primitive].value(torch.tensor(argument.value, dtype=torch.float64)).item())
    if primitive == "log" and isinstance(argument, Call):
        if argument.primitive == "exp":
            return argument.argument
        if argument.primitive == "sigmoid":
            return -call("softplus", -argument.argument)
    if primitive == "log" and (pair := _two_exponentials(argument)):
        (first, inner), (second, outer) = pair
        return inner + math.log(first) + call("softplus", outer - inner + math.log(second / first))
    return Call(primitive, argument)
