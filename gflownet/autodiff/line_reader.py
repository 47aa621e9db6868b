"""One line of a listing, read from left to right; the grammar is in gflownet/autodiff/text.py."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from gflownet.autodiff.functions import Function
from gflownet.autodiff.listing import IDENTITY, Declaration, Form, Place, Reference, Statement
from gflownet.autodiff.nodes import LeafKind
from gflownet.autodiff.quoting import shortened
from gflownet.autodiff.serialisation import DEFAULT_DTYPE

KINDS = {kind.name.lower(): kind for kind in LeafKind}
KEYWORDS = (*KINDS, "fixed", "output", IDENTITY)
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<formula>\{[^}]*\})|(?P<sign>[][(),:=*+-])|(?P<other>.)"
)
INDEX = re.compile(r"[A-Za-z]\d*")
MAX_DIGITS = 18  # of an extent: below 2**63, what torch counts with
SUM = re.compile(r"sum_(?P<indices>(?:[A-Za-z]\d*)+)")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


class Line:
    """A line, read from left to right."""

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number = line, number
        found = (_Token(match.lastgroup or "", match[0], match.start() + 1) for match in _TOKEN.finditer(line))
        self.tokens = [token for token in found if not token.text.isspace()]
        self.tokens.append(_Token("end", "", len(line.rstrip()) + 1))
        self.at = 0

    @property
    def token(self) -> _Token:
        """Return the token that is read next."""
        return self.tokens[self.at]

    @property
    def text(self) -> str:
        """Return the text of the token that is read next."""
        return self.token.text

    @property
    def following(self) -> str:
        """Return the text of the token after that one."""
        return "".join(token.text for token in self.tokens[self.at + 1 : self.at + 2])

    @property
    def place(self) -> Place:
        """Return where the token is that is read next."""
        return Place(self.number, self.token.column)

    def error(self, expected: str) -> ValueError:
        """Return that something else was expected here."""
        got = shortened(self.text) if self.text else "the end of the line"
        return self.place.error(f"{expected}, got {got}")

    def is_done(self) -> bool:
        """Return whether there is nothing left."""
        return self.token.kind == "end"

    def ends(self) -> None:
        """Raise ValueError unless there is nothing left."""
        if not self.is_done():
            raise self.error("expected the end of the line")

    def takes(self, text: str) -> bool:
        """Return whether the next token is this one, and if so go on after it."""
        if self.text != text:
            return False
        self.at += 1
        return True

    def expects(self, text: str, *, why: str = "") -> None:
        """Go on after this token; raise ValueError where it is not the next one."""
        if not self.takes(text):
            raise self.error(f"expected {text!r}{why}")

    def name(self) -> str:
        """Return the name that comes next."""
        if self.token.kind != "name" or self.text in KEYWORDS:
            raise self.error("expected a name")
        self.at += 1
        return self.tokens[self.at - 1].text

    def names(self) -> tuple[str, ...]:
        """Return names with commas between them."""
        found = [self.name()]
        while self.takes(","):
            found.append(self.name())
        return tuple(found)

    def numeral(self) -> float:
        """Return the number that comes next."""
        if self.token.kind != "number":
            raise self.error("expected a number")
        number = float(self.text)
        if not isfinite(number):
            raise self.error("expected a number that a float can hold")
        self.at += 1
        return number

    def extent(self) -> int:
        """Return the whole number that comes next."""
        if self.token.kind != "number" or not self.text.isdecimal():
            raise self.error("expected a whole number")
        if len(self.text) > MAX_DIGITS:
            raise self.error(f"expected a whole number of at most {MAX_DIGITS} digits")
        self.at += 1
        return int(self.tokens[self.at - 1].text)

    def declaration(self) -> Declaration:
        """Return the leaf that the line declares."""
        place = self.place
        is_fixed = self.takes("fixed")
        if self.text not in KINDS:
            raise self.error(f"expected one of {', '.join(KINDS)}")
        kind = KINDS[self.text]
        self.at += 1
        name, shape = self.name(), []
        if self.takes("["):
            while not self.takes("]"):
                shape.append(self.extent())
                if self.text != "]":
                    self.expects(",")
        dtype = _dtype(self.text)
        self.at += dtype is not None
        content = self._content() if self.takes("=") else None
        if content is not None and kind != LeafKind.CONSTANT:
            raise place.error(f"{name}: expected a content of constants only")
        wanted = kind != LeafKind.CONSTANT and not is_fixed
        return Declaration(name, kind, tuple(shape), dtype or DEFAULT_DTYPE, wanted, content, place)

    def _content(self) -> Any:
        """Return the number, the nested lists or the word after the sign of equality."""
        if self.takes(IDENTITY):
            return IDENTITY
        try:
            found = json.loads(self.line[self.token.column - 1 :])
        except (ValueError, RecursionError):  # no JSON, more digits than Python reads, or nested too deeply
            found = None
        if isinstance(found, bool) or not isinstance(found, int | float | list):
            raise self.error("expected a number, nested lists of numbers or `identity`")
        self.at = len(self.tokens) - 1
        return found

    def statement(self) -> Statement:
        """Return the node that the line computes."""
        target = self.reference()
        self.expects("=")
        summed = self._summed()
        if summed and self.takes("("):
            form, operands = self._pair()
            self.expects(")")
            return Statement(target, form, operands, summed)
        if self.token.kind == "formula" or (self.token.kind == "name" and self.following == "("):
            if summed:
                raise self.error("expected no sum before a function (a statement of its own)")
            return self._function(target)
        if self.token.kind == "number" or self.text == "-":
            return self._scaled(target, summed)
        form, operands = self._pair()
        if summed and form in ("+", "-"):
            raise operands[0].place.error("expected parentheses: the sum covers both operands")
        return Statement(target, form, operands, summed)

    def _scaled(self, target: Reference, summed: tuple[str, ...]) -> Statement:
        sign = -1.0 if self.takes("-") else 1.0
        if self.token.kind == "number":
            sign *= self.numeral()
            self.expects("*", why=" and an operand")
        return Statement(target, "transform", (self.reference(),), summed, alpha=sign)

    def _pair(self) -> tuple[Form, tuple[Reference, ...]]:
        first = self.reference()
        operations: tuple[Form, ...] = ("+", "-", "*")
        for operation in operations:
            if self.takes(operation):
                return operation, (first, self.reference())
        if self.token.kind == "name":
            return "contraction", (first, self.reference())
        return "transform", (first,)

    def _function(self, target: Reference) -> Statement:
        place, names = self.place, []
        formula = None
        if self.token.kind == "formula":
            formula = self.text[1:-1]
            self.at += 1
            self.expects("(")
        while formula is None and self.following == "(":
            names.append(self.name())
            self.expects("(")
        operand = self.reference()
        for _ in names or [None]:
            self.expects(")")
        dtype = _dtype(names[0]) if len(names) == 1 else None
        if dtype is not None:
            return Statement(target, "cast", (operand,), function=dtype)
        try:
            function = Function.parse(formula if formula is not None else f"{'('.join(names)}(x{')' * len(names)}")
        except ValueError as error:
            raise place.error(str(error)) from error
        return Statement(target, "function", (operand,), function=function)

    def _summed(self) -> tuple[str, ...]:
        match = SUM.fullmatch(self.text)
        if match is None or self.following in ("[", "="):
            return ()
        self.at += 1
        return tuple(INDEX.findall(match["indices"]))

    def reference(self) -> Reference:
        """Return the tensor with its indices that comes next."""
        place, name = self.place, self.name()
        indices: list[str] = []
        extents: list[int | None] = []
        if self.takes("["):
            while not self.takes("]"):
                if not INDEX.fullmatch(self.text):
                    raise self.error("expected an index: a letter, perhaps with digits")
                indices.append(self.text)
                self.at += 1
                extents.append(self.extent() if self.takes(":") else None)
                if self.text != "]":
                    self.expects(",")
        return Reference(name, tuple(indices), tuple(extents), place)


def _dtype(name: str) -> torch.dtype | None:
    found = getattr(torch, name, None) if name else None
    return found if isinstance(found, torch.dtype) else None
