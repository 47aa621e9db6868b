"""Functions of one variable as instructions: one call per part; common parts are computed once."""

from __future__ import annotations

from collections.abc import Mapping

from gflownet.autodiff.functions import PRIMITIVES, Call, Constant, Function, Power, Product, Sum, Variable, power
from gflownet.autodiff.instructions import Instructions, Shape, Value

_POWERS = {-1.0: "reciprocal", 0.5: "sqrt", -0.5: "rsqrt"}
_MAX_REPEATED = 4  # powers up to this are products


def _joint_shape(left: Shape, right: Shape) -> Shape:
    """Return the shape that two broadcast to; torch.broadcast_shapes takes 20 microseconds."""
    if len(left) < len(right):
        left, right = right, left
    leading = len(left) - len(right)
    return left[:leading] + tuple([m if n == 1 else n for m, n in zip(left[leading:], right, strict=True)])


def multiply(code: Instructions, left: Value, right: Value) -> Value:
    """Return the product of two values, broadcast to each other."""
    if left.number > right.number:
        left, right = right, left
    shape = _joint_shape(left.shape, right.shape)
    in_place = ((0, "{0}.mul_({1})"), (1, "{1}.mul_({0})"))
    return code.emit("torch.mul({0}, {1})", left, right, shape=shape, in_place=in_place)


def is_multiplied(code: Instructions, left: Value, right: Value) -> bool:
    """Return whether the product of two values exists."""
    first, second = (right, left) if left.number > right.number else (left, right)
    return code.has("torch.mul({0}, {1})", first, second)


def scale(code: Instructions, alpha: float, value: Value) -> Value:
    """Return a multiple of a value."""
    if alpha == 1.0:
        return value
    if alpha == -1.0:
        return code.emit("torch.neg({0})", value, shape=value.shape, in_place=((0, "{0}.neg_()"),))
    text = number(alpha)
    in_place = ((0, f"{{0}}.mul_({text})"),)
    return code.emit(f"torch.mul({{0}}, {text})", value, shape=value.shape, in_place=in_place)


def add(code: Instructions, left: Value, right: Value, alpha: float = 1.0) -> Value:
    """Return `left + alpha * right`, broadcast to each other."""
    shape = _joint_shape(left.shape, right.shape)
    in_place: tuple[tuple[int, str], ...]
    if alpha == -1.0:
        in_place = ((0, "{0}.sub_({1})"),)
        return code.emit("torch.sub({0}, {1})", left, right, shape=shape, in_place=in_place)
    if alpha == 1.0:
        left, right = (right, left) if left.number > right.number else (left, right)
        in_place = ((0, "{0}.add_({1})"), (1, "{1}.add_({0})"))
        return code.emit("torch.add({0}, {1})", left, right, shape=shape, in_place=in_place)
    text = number(alpha)
    in_place = ((0, f"{{0}}.add_({{1}}, alpha={text})"),)
    return code.emit(f"torch.add({{0}}, {{1}}, alpha={text})", left, right, shape=shape, in_place=in_place)


def shift(code: Instructions, value: Value, constant: float) -> Value:
    """Return `value + constant`."""
    if constant == 0.0:
        return value
    text = number(constant)
    in_place = ((0, f"{{0}}.add_({text})"),)
    return code.emit(f"torch.add({{0}}, {text})", value, shape=value.shape, in_place=in_place)


def number(value: float) -> str:
    """Return the Python text of a number; inf and nan are names in the namespace of programs."""
    return repr(value)


def apply(code: Instructions, function: Function, x: Value) -> Value:
    """Return a function of every entry of a value, at any depth of the expression."""
    return function.fold(lambda part, values: _applied(code, part, x, values))


def _applied(code: Instructions, function: Function, x: Value, values: Mapping[Function, Value]) -> Value:
    """Return a function, given the values of its parts."""
    match function:
        case Variable():
            return x
        case Call(primitive, argument):
            return _call(code, primitive, values[argument])
        case Power(base, exponent):
            return _power(code, values[base], exponent)
        case Product(coefficient, factors):
            product = values[factors[0]]
            for factor in factors[1:]:
                product = multiply(code, product, values[factor])
            return scale(code, coefficient, product)
        case Sum():
            return _sum(code, function, x, values)
        case Constant(value):
            return code.emit(f"torch.full_like({{0}}, {number(value)})", x, shape=x.shape)
        case _:
            raise TypeError(f"{function!r}: expected one of the forms of gflownet.autodiff.functions")


def _call(code: Instructions, primitive: str, x: Value) -> Value:
    if primitive == "step":
        # the relu is usually there already; of NaN it is 0, as the comparison
        return _call(code, "sign", _call(code, "relu", x))
    row = PRIMITIVES[primitive]
    in_place = ((0, row.in_place),) if row.in_place else ()
    return code.emit(row.code, x, shape=x.shape, in_place=in_place)


def _power(code: Instructions, base: Value, exponent: float) -> Value:
    if exponent in _POWERS:
        name = _POWERS[exponent]
        return code.emit(f"torch.{name}({{0}})", base, shape=base.shape, in_place=((0, f"{{0}}.{name}_()"),))
    if exponent.is_integer() and 2 <= abs(exponent) <= _MAX_REPEATED:
        factor = base if exponent > 0 else _power(code, base, -1.0)
        square = multiply(code, factor, factor)
        return {2: square, 3: multiply(code, square, factor), 4: multiply(code, square, square)}[abs(int(exponent))]
    text = number(exponent)
    in_place = ((0, f"{{0}}.pow_({text})"),)
    return code.emit(f"torch.pow({{0}}, {text})", base, shape=base.shape, in_place=in_place)


def factors_of(function: Function) -> list[Function]:
    """Return the factors of a function, or the function itself."""
    match function:
        case Product(1.0, factors):
            return [inner for factor in factors for inner in factors_of(factor)]
        case Power(base, exponent) if exponent.is_integer() and 2 <= abs(exponent) <= _MAX_REPEATED:
            return [base if exponent > 0 else power(base, -1.0)] * abs(int(exponent))
        case _:
            return [function]


def _sum(code: Instructions, function: Sum, x: Value, values: Mapping[Function, Value]) -> Value:
    terms = list(function.terms)
    total: Value | None = None
    if function.constant:
        total = filled(code, function.constant, x)
    else:
        # a term of coefficient 1 first needs no multiplication
        terms.sort(key=lambda pair: pair[0] != 1.0)
        coefficient, term = terms.pop(0)
        total = scale(code, coefficient, values[term])
    for coefficient, term in terms:
        total = _plus(code, total, coefficient, term, values)
    return total


def _plus(
    code: Instructions, total: Value, coefficient: float, term: Function, values: Mapping[Function, Value]
) -> Value:
    """Return `total + coefficient * term(x)`; a product of two factors is added in the same call."""
    match term:
        case Product(inner, (left, right)):
            coefficient *= inner
            operands = [values[left], values[right]]
        case Power(base, 2.0):
            operands = [values[base]] * 2
        case _:
            return add(code, total, values[term], coefficient)
    shape, text = _joint_shape(total.shape, operands[0].shape), number(coefficient)
    in_place = ((0, f"{{0}}.addcmul_({{1}}, {{2}}, value={text})"),)
    template = f"torch.addcmul({{0}}, {{1}}, {{2}}, value={text})"
    return code.emit(template, total, *operands, shape=shape, in_place=in_place)


def filled(code: Instructions, constant: float, like: Value) -> Value:
    """Return a scalar on the device of the arguments, in the dtype of a value; never overwritten."""
    place = code.arguments[0] if code.arguments else like
    return code.view(f"scalar({number(constant)}, {like.dtype}, {{0}}.device)", place, shape=(), dtype=like.dtype)
