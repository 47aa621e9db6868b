"""Functions of one variable as text: names, names within each other, and arithmetic in x, read and written."""

from __future__ import annotations

import ast
from difflib import get_close_matches

from gflownet.autodiff.functions import (
    PRIMITIVES,
    Call,
    Constant,
    Function,
    Power,
    Product,
    Sum,
    Variable,
    X,
    call,
    constant,
    multiply,
    power,
)
from gflownet.autodiff.quoting import MAX_LENGTH, shortened

POWERS = {"square": 2.0, "cube": 3.0, "reciprocal": -1.0, "sqrt": 0.5}


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def name(function: Function) -> str | None:
    """Return the name of a function that has one of its own, as `tanh` or `power(2.5)`."""
    if isinstance(function, Call) and function.argument is X:
        return function.primitive
    if isinstance(function, Power) and function.base is X:
        named = {exponent: name for name, exponent in POWERS.items()}
        return named.get(function.exponent, f"power({_number(function.exponent)})")
    return "neg" if function is -X else None


def formula(expression: Function) -> str:
    """Return an expression as arithmetic in x."""
    match expression:
        case Constant(value):
            return _number(value)
        case Call(primitive, argument):
            return f"{primitive}({argument.formula})"
        case Power(base, exponent):
            inner = base.formula if isinstance(base, Variable | Call) else f"({base.formula})"
            return f"{inner}**{_number(exponent)}"
        case Product(coefficient, factors):
            scale = {1.0: "", -1.0: "-"}.get(coefficient, f"{_number(coefficient)}*")
            return scale + "*".join(f"({f.formula})" if isinstance(f, Sum) else f.formula for f in factors)
        case Sum(constant, terms):
            pieces = [multiply([term], coefficient=c).formula for c, term in terms]
            if constant:
                pieces.insert(0 if constant > 0 else len(pieces), _number(constant))
            return pieces[0] + "".join(f" - {p[1:]}" if p.startswith("-") else f" + {p}" for p in pieces[1:])
        case _:
            return "x"


def parse(text: str) -> Function:
    """Return the function that a text names or writes out, see `Function.parse`.

    Raises:
        ValueError: it does neither.
    """
    try:
        tree = ast.parse(text.replace("^", "**").replace("∘", "@").strip(), mode="eval")
        return _read(tree.body)
    except (SyntaxError, ValueError, OverflowError) as error:
        message = "expected a name such as tanh or power(3), or a formula in x"
        raise ValueError(f"function {shortened(text)}: {message}: {_reason(error)}") from None
    except (RecursionError, MemoryError):  # of the parser's stack
        raise ValueError(f"function {shortened(text)}: expected a shorter formula, or nodes for its parts") from None


def _reason(error: Exception) -> str:
    message = str(error)
    return message if len(message) <= 2 * MAX_LENGTH else f"{message[: 2 * MAX_LENGTH]}..."


def _read(tree: ast.expr) -> Function:
    match tree:
        case ast.Constant(value=int() | float() as value):
            return constant(value)
        case ast.Name(id=name):
            return _named(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _read(operand)
        case ast.BinOp(left=left, op=operation, right=right):
            return _combined(_read(left), operation, _read(right))
        case ast.Call(func=function, args=arguments, keywords=[]):
            return _called(function, [_read(argument) for argument in arguments])
        case _:
            raise ValueError(f"got {shortened(ast.unparse(tree))}")


def _named(name: str) -> Function:
    if name in ("inf", "nan"):
        return constant(float(name))
    if name in POWERS:
        return power(X, POWERS[name])
    if name in ("power", "pow"):
        raise ValueError(f"expected {name}(c) with a number c")
    if name in ("x", "neg"):
        return X if name == "x" else -X
    if name not in PRIMITIVES:
        near = get_close_matches(name, [*PRIMITIVES, *POWERS, "neg", "power"], n=1)
        raise ValueError(f"unknown function {shortened(name)}" + (f", did you mean {near[0]!r}?" if near else ""))
    return call(name, X)


def _combined(left: Function, operation: ast.operator, right: Function) -> Function:
    match operation:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.MatMult():
            return left.compose(right)
        case ast.Pow() if isinstance(right, Constant):
            return left**right.value
        case _:
            raise ValueError("expected + - * / and ** with a number")


def _called(function: ast.expr, arguments: list[Function]) -> Function:
    if isinstance(function, ast.Name) and function.id in ("power", "pow"):
        exponents = [argument.value for argument in arguments if isinstance(argument, Constant)]
        bases = [argument for argument in arguments if not isinstance(argument, Constant)]
        if len(exponents) != 1 or len(bases) > 1:
            raise ValueError("expected power(number) or power(function, number)")
        return power(bases[0] if bases else X, exponents[0])
    if len(arguments) != 1:
        raise ValueError(f"expected one argument, got {len(arguments)}")
    return _read(function).compose(arguments[0])
