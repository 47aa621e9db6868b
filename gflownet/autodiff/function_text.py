"""Reads functions of one variable: names, compositions and formulas in x."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from gflownet.autodiff.quoting import MAX_LENGTH, shortened

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.MatMult: lambda left, right: left.compose(right),
}


def read(text: str, names: Mapping[str, Any], constant: type[Any]) -> Any:
    """Return the function that a text names or writes out, see `Function.parse`.

    Args:
        text: the name or formula.
        names: functions by name, `x` among them.
        constant: class of constant functions, with their `value`.

    Raises:
        ValueError: the text is no function.
    """
    try:
        tree = ast.parse(text.replace("^", "**").replace("∘", "@").strip(), mode="eval")
        return _Reader(names, constant).read(tree.body)
    except (SyntaxError, ValueError, OverflowError) as error:
        message = "expected a name such as tanh or power(3), or a formula in x"
        reason = str(error)
        reason = reason if len(reason) <= 2 * MAX_LENGTH else f"{reason[: 2 * MAX_LENGTH]}..."
        raise ValueError(f"function {shortened(text)}: {message}: {reason}") from None
    except (RecursionError, MemoryError):  # of the parser's stack
        raise ValueError(f"function {shortened(text)}: expected a shorter formula, or several nodes") from None


class _Reader:
    def __init__(self, names: Mapping[str, Any], constant: type[Any]) -> None:
        self._names, self._constant = names, constant

    def read(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=int() | float() as value):
                return self._constant(float(value))
            case ast.Name(id=name):
                return self._named(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.read(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.read(operand)
            case ast.BinOp(left=left, op=operation, right=right):
                return self._combined(self.read(left), operation, self.read(right))
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self._called(function, [self.read(argument) for argument in arguments])
            case _:
                raise ValueError(f"got {shortened(ast.unparse(tree))}")

    def _named(self, name: str) -> Any:
        if name in ("power", "pow"):
            raise ValueError(f"expected {name}(c) with a number c")
        if name not in self._names:
            nearest = get_close_matches(name, [*self._names, "power"], n=1)
            hint = f", did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"unknown function {shortened(name)}{hint}")
        return self._names[name]

    def _combined(self, left: Any, operation: ast.operator, right: Any) -> Any:
        if isinstance(operation, ast.Pow) and isinstance(right, self._constant):
            return left**right.value
        if type(operation) not in _OPERATIONS:
            raise ValueError("expected + - * / and ** with a number")
        return _OPERATIONS[type(operation)](left, right)

    def _called(self, function: ast.expr, arguments: Sequence[Any]) -> Any:
        if isinstance(function, ast.Name) and function.id in ("power", "pow"):
            exponents = [argument.value for argument in arguments if isinstance(argument, self._constant)]
            bases = [argument for argument in arguments if not isinstance(argument, self._constant)]
            if len(exponents) != 1 or len(bases) > 1:
                raise ValueError("expected power(number) or power(function, number)")
            return (bases[0] if bases else self._names["x"]) ** exponents[0]
        if len(arguments) != 1:
            raise ValueError(f"expected one argument, got {len(arguments)}")
        return self.read(function).compose(arguments[0])
