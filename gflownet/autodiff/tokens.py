"""Tokens of a line of text, and the reader of functions of one variable: names, compositions and formulas in x."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any

MAX_LENGTH = 60

_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxother = MAX_LENGTH
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<formula>\{[^}]*\})|(?P<sign>\*\*|[][(),:=*/@+-])|(?P<other>.)"
)
_POWERS = ("power", "pow")  # functions with a number as argument
_MAX_READERS = 25_000  # at once, five for each nested call
_Joining = Callable[[Iterable[Any]], Any]
_Reader = Generator[Any, Any, Any]


def shortened(value: object) -> str:
    """Return the repr of a value in one line, long ones abbreviated."""
    try:
        text = " ".join(_QUOTED.repr(value).split())
    except ValueError:  # an integer of more digits than Python writes out
        return f"a long {type(value).__name__}"
    return text if len(text) <= MAX_LENGTH + 2 else f"{text[: MAX_LENGTH - 3]}..."


@dataclass(frozen=True)
class Token:
    """A word, number or sign, and its column from 1."""

    kind: str
    text: str
    column: int


class Tokens:
    """The tokens of a line, and the position of the next one."""

    def __init__(self, line: str) -> None:
        self.line, self.at = line, 0
        tokens = (Token(match.lastgroup or "", match[0], match.start() + 1) for match in _TOKEN.finditer(line))
        self.tokens = [token for token in tokens if not token.text.isspace()]
        self.tokens.append(Token("end", "", len(line.rstrip()) + 1))

    @property
    def token(self) -> Token:
        """Return the next token."""
        return self.tokens[self.at]

    @property
    def text(self) -> str:
        """Return the text of the next token."""
        return self.token.text

    @property
    def following(self) -> str:
        """Return the text of the token after the next."""
        return "".join(token.text for token in self.tokens[self.at + 1 : self.at + 2])

    def error(self, expected: str) -> ValueError:
        """Return the error at the next token."""
        got = shortened(self.text) if self.text else "the end of the line"
        return ValueError(f"{self.place}: {expected}, got {got}")

    @property
    def place(self) -> str:
        """Return the position of the next token."""
        return f"column {self.token.column}"

    def is_done(self) -> bool:
        """Return whether all tokens are read."""
        return self.token.kind == "end"

    def ends(self) -> None:
        """Raise ValueError unless all tokens are read."""
        if not self.is_done():
            raise self.error("expected the end of the line")

    def next(self) -> str:
        """Skip the next token and return its text."""
        self.at += 1
        return self.tokens[self.at - 1].text

    def takes(self, *texts: str) -> str:
        """Skip the next token if it has one of these texts, and return it; else return ''."""
        return self.next() if self.text in texts and not self.is_done() else ""

    def expects(self, text: str, *, why: str = "") -> None:
        """Skip the next token; raise ValueError unless it has this text."""
        if not self.takes(text):
            raise self.error(f"expected {text!r}{why}")

    def numeral(self) -> float:
        """Read a number."""
        if self.token.kind != "number":
            raise self.error("expected a number")
        number = float(self.text)
        if not isfinite(number):
            raise self.error("expected a number that a float can hold")
        self.at += 1
        return number


def read_function(text: str, names: Mapping[str, Any], constant: type[Any], add: _Joining, multiply: _Joining) -> Any:
    """Return the function that a text names or writes out, see `Function.parse`.

    `names` has functions by name, `x` among them; `constant` is the class of constant functions, with their `value`;
    `add` takes coefficients and terms, `multiply` factors.

    Raises:
        ValueError: the text is no function.
    """
    try:
        reader = _Formula(text.replace("^", "**").replace("∘", "@"), names, constant, add, multiply)
        function = reader.function()
    except (ValueError, OverflowError) as error:
        message = "expected a name such as tanh or power(3), or a formula in x"
        reason = str(error)
        reason = reason if len(reason) <= 2 * MAX_LENGTH else f"{reason[: 2 * MAX_LENGTH]}..."
        raise ValueError(f"function {shortened(text)}: {message}: {reason}") from None
    except RecursionError:
        raise ValueError(f"function {shortened(text)}: expected a shorter formula, or several nodes") from None
    return function


class _Formula(Tokens):
    """A formula, with Python's precedence; `@` composes.

    The readers of parts are generators that yield the reader of an inner part and get its function: a stack of
    generators instead of Python's, so that formulas may be nested deeply.
    """

    def __init__(
        self, text: str, names: Mapping[str, Any], constant: type[Any], add: _Joining, multiply: _Joining
    ) -> None:
        super().__init__(text)
        self._names, self._constant, self._add, self._multiply = names, constant, add, multiply

    def function(self) -> Any:
        """Return the function of the whole text."""
        stack, result = [self._sum()], None
        while stack:
            try:
                stack.append(stack[-1].send(result))
                result = None
            except StopIteration as stopped:
                result = stopped.value
                stack.pop()
            if len(stack) > _MAX_READERS:
                raise RecursionError
        self.ends()
        return result

    def _sum(self) -> _Reader:
        terms = [(1.0, (yield self._product()))]
        while sign := self.takes("+", "-"):
            terms.append((1.0 if sign == "+" else -1.0, (yield self._product())))
        return terms[0][1] if len(terms) == 1 else self._add(reversed(terms))

    def _product(self) -> _Reader:
        factors = [(yield self._signed())]
        while sign := self.takes("*", "/", "@"):
            factor = yield self._signed()
            if sign == "@":
                factors = [self._joined(factors).compose(factor)]
            else:
                factors.append(factor if sign == "*" else factor**-1.0)
        return self._joined(factors)

    def _joined(self, factors: list[Any]) -> Any:
        return factors[0] if len(factors) == 1 else self._multiply(reversed(factors))

    def _signed(self) -> _Reader:
        is_negative = False
        while sign := self.takes("+", "-"):
            is_negative ^= sign == "-"
        function = yield self._called()
        if self.takes("**"):
            exponent = yield self._signed()
            if not isinstance(exponent, self._constant):
                raise ValueError(f"{self.place}: expected + - * / and ** with a number")
            function = function**exponent.value
        return -function if is_negative else function

    def _called(self) -> _Reader:
        name = self.text
        if name in _POWERS and self.following == "(":
            self.at += 1
            function = yield self._power(name)
        elif self.token.kind == "number":
            function = self._constant(self.numeral())
        elif self.token.kind == "name":
            function = self._named(self.next())
        elif self.takes("("):
            function = yield self._sum()
            self.expects(")")
        else:
            raise self.error("expected a function or a number")
        while self.text == "(":
            arguments = yield self._arguments()
            if len(arguments) != 1:
                raise ValueError(f"expected one argument, got {len(arguments)}")
            function = function.compose(arguments[0])
        return function

    def _named(self, name: str) -> Any:
        if name in _POWERS:
            raise ValueError(f"expected {name}(c) with a number c")
        if name not in self._names:
            nearest = get_close_matches(name, [*self._names, "power"], n=1)
            hint = f", did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"unknown function {shortened(name)}{hint}")
        return self._names[name]

    def _power(self, name: str) -> _Reader:
        arguments = yield self._arguments()
        exponents = [argument.value for argument in arguments if isinstance(argument, self._constant)]
        bases = [argument for argument in arguments if not isinstance(argument, self._constant)]
        if len(exponents) != 1 or len(bases) > 1:
            raise ValueError(f"expected {name}(number) or {name}(function, number)")
        return (bases[0] if bases else self._names["x"]) ** exponents[0]

    def _arguments(self) -> _Reader:
        self.expects("(")
        arguments = [(yield self._sum())]
        while self.takes(","):
            arguments.append((yield self._sum()))
        self.expects(")")
        return arguments
