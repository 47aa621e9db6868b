"""Reader of one line of a listing; the grammar is in gflownet/autodiff/text.py."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import torch

from gflownet.autodiff.functions import Function
from gflownet.autodiff.listing import IDENTITY, Declaration, Form, Place, Reference, Statement
from gflownet.autodiff.node_description import Classes, Description
from gflownet.autodiff.nodes import LeafKind
from gflownet.autodiff.serialisation import DEFAULT_DTYPE
from gflownet.autodiff.tokens import Tokens

KINDS = {kind.name.lower(): kind for kind in LeafKind}
KEYWORDS = (*KINDS, "fixed", "output", IDENTITY)
INDEX = re.compile(r"[A-Za-z]\d*")
MAX_DIGITS = 18  # of an extent: torch has 64-bit sizes
SUM = re.compile(r"sum_(?P<indices>(?:[A-Za-z]\d*)+)")


class Line(Tokens):
    """A line and the position of the next token."""

    def __init__(self, line: str, number: int, classes: Classes) -> None:
        super().__init__(line)
        self.number, self.classes = number, classes

    @property
    def place(self) -> Place:
        """Return the position of the next token."""
        return Place(self.number, self.token.column)

    def located(self, message: str) -> ValueError:
        """Return the error of a message at the next token."""
        return self.place.error(message)

    def name(self) -> str:
        """Read a name."""
        if self.token.kind != "name" or self.text in KEYWORDS:
            raise self.error("expected a name")
        return self.next()

    def names(self) -> tuple[str, ...]:
        """Read names separated by commas."""
        names = [self.name()]
        while self.takes(","):
            names.append(self.name())
        return tuple(names)

    def extent(self) -> int:
        """Read a whole number."""
        if self.token.kind != "number" or not self.text.isdecimal():
            raise self.error("expected a whole number")
        if len(self.text) > MAX_DIGITS:
            raise self.error(f"expected a whole number of at most {MAX_DIGITS} digits")
        return int(self.next())

    def declaration(self) -> Declaration:
        """Read the declaration of a leaf."""
        place = self.place
        is_fixed = bool(self.takes("fixed"))
        if self.text not in KINDS:
            raise self.error(f"expected one of {', '.join(KINDS)}")
        kind = KINDS[self.next()]
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
        requires_grad = kind != LeafKind.CONSTANT and not is_fixed
        return Declaration(name, kind, tuple(shape), dtype or DEFAULT_DTYPE, requires_grad, content, place)

    def _content(self) -> Any:
        """Read the number, nested lists or keyword after the equals sign."""
        if self.takes(IDENTITY):
            return IDENTITY
        content = self._json()
        if isinstance(content, bool) or not isinstance(content, int | float | list):
            raise self.error("expected a number, nested lists of numbers or `identity`")
        self.at = len(self.tokens) - 1
        return content

    def statement(self) -> Statement:
        """Read the statement of a node."""
        target = self.reference()
        self.expects("=")
        summed = self._summed()
        if summed and self.takes("("):
            form, operands = self._pair()
            self.expects(")")
            return Statement(target, form, operands, summed)
        if self.text in self.classes and self.following == "(" and not summed:
            return self._custom(target)
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
        if operation := self.takes("+", "-", "*"):
            return cast(Form, operation), (first, self.reference())
        if self.token.kind == "name":
            return "contraction", (first, self.reference())
        return "transform", (first,)

    def _custom(self, target: Reference) -> Statement:
        """Read a custom node: `clip(x) {"low": 0.5}`, with names of tensors without indices."""
        kind, operands, settings = self.classes[self.name()], [], {}
        self.expects("(")
        while not operands or self.takes(","):
            place = self.place
            operands.append(Reference(self.name(), (), (), place))
        self.expects(")")
        if not self.is_done():
            settings = self._json()
            if not isinstance(settings, dict):
                raise self.error("expected the settings as a JSON object, or the end of the line")
            self.at = len(self.tokens) - 1
        if target.indices:
            raise target.place.error(f"{target}: expected a name without indices, as the result of a custom node")
        return Statement(target, "custom", tuple(operands), function=Description(kind, settings, self.classes))

    def _json(self) -> Any:
        """Return the JSON value in the rest of the line, None for other text."""
        try:
            return json.loads(self.line[self.token.column - 1 :])
        except (ValueError, RecursionError):  # no JSON, more digits than Python reads, or nested too deeply
            return None

    def _function(self, target: Reference) -> Statement:
        place, names = self.place, []
        formula = None
        if self.token.kind == "formula":
            formula = self.next()[1:-1]
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
        """Read a tensor with its indices."""
        place, name = self.place, self.name()
        indices: list[str] = []
        extents: list[int | None] = []
        if self.takes("["):
            while not self.takes("]"):
                if not INDEX.fullmatch(self.text):
                    raise self.error("expected an index: a letter, perhaps with digits")
                indices.append(self.next())
                extents.append(self.extent() if self.takes(":") else None)
                if self.text != "]":
                    self.expects(",")
        return Reference(name, tuple(indices), tuple(extents), place)


def _dtype(name: str) -> torch.dtype | None:
    attribute = getattr(torch, name, None) if name else None
    return attribute if isinstance(attribute, torch.dtype) else None
