"""Tensor graphs as text.

    input x[6,4]
    parameter w[4,3]
    parameter b[3]
    z[n,c] = sum_i x[n,i] w[i,c]
    y[n,c] = z[n,c] + b[c]
    p[n,c] = tanh(y[n,c])
    total[k:2] = sum_nc 0.5 * p[n,c]

This is the readable form; JSON (serialisation.py) is the complete one. A line declares a leaf (`input`, `parameter`,
`constant`, `fixed` before one without a gradient, a dtype after it unless it is float64) or computes a node. Values of
leaves, constants too, are not part of the text. There is no implied summation: every index of an operand is in the
result or under a `sum_`. Two adjacent operands are a contraction (LinearNode), `+`, `-` and `*` between them stand for
an ElementwiseNode; a sum covers the whole of it, in parentheses. A number times one operand is a Transform, and so is
an operand alone; an index that only the result has is New and needs its extent, as in `k:2`. `tanh(...)` or
`{x**2 + 1}(...)` apply a function, `float32(...)` casts. An index is a letter, digits may follow. `output y, z` names
the results; the default is the last line. `#` starts a comment. Custom nodes are written, but not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_letters
from typing import cast

import torch

from gflownet.autodiff.custom_node import CustomNode, described
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.functions import Function
from gflownet.autodiff.listing import Declaration, Form, Listing, Reference, Statement
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, Node
from gflownet.autodiff.serialisation import DEFAULT_DTYPE
from gflownet.autodiff.tokens import Tokens

KINDS = {kind.name.lower(): kind for kind in LeafKind}
KEYWORDS = (*KINDS, "fixed", "output")
INDEX = re.compile(r"[A-Za-z]\d*")
MAX_DIGITS = 18  # of an extent: torch has 64-bit sizes
SUM = re.compile(r"sum_(?P<indices>(?:[A-Za-z]\d*)+)")
# Letters from the middle of the alphabet first, as indices are called; without o, which looks like 0.
LETTERS = "ijklmnpqrstuvwxyzabcdefgh" + ascii_letters[26:]


class Line(Tokens):
    """A line and the position of the next token."""

    def __init__(self, line: str, number: int) -> None:
        super().__init__(line)
        self.number = number

    @property
    def place(self) -> str:
        """Return the position of the next token."""
        return f"line {self.number}, {super().place}"

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
        requires_grad = kind != LeafKind.CONSTANT and not is_fixed
        return Declaration(name, kind, tuple(shape), dtype or DEFAULT_DTYPE, requires_grad, place=place)

    def statement(self) -> Statement:
        """Read the statement of a node."""
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
            raise ValueError(f"{operands[0].place}: expected parentheses: the sum covers both operands")
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
            return "linear", (first, self.reference())
        return "transform", (first,)

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
            raise ValueError(f"{place}: {error}") from error
        return Statement(target, "nonlinear", (operand,), function=function)

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


def parse(text: str) -> Listing:
    """Return the listing of a text; its `graph` or `node` builds it.

    Raises:
        ValueError: the text is empty or a line is not valid; the message has the position and the expectation.
    """
    statements: list[Declaration | Statement] = []
    outputs: tuple[str, ...] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        reader = Line(line.partition("#")[0], number)
        if reader.is_done():
            continue
        if outputs is not None:
            raise reader.error("expected nothing after the line `output`")
        if reader.takes("output"):
            outputs = reader.names()
        else:
            statements.append(reader.declaration() if reader.text in (*KINDS, "fixed") else reader.statement())
        reader.ends()
    if not statements:
        raise ValueError("line 1, column 1: expected a declaration or a statement, got an empty text")
    return Listing(tuple(statements), outputs or (statements[-1].name,))


def format(sinks: Node | Sequence[Node]) -> str:
    """Return the text of nodes and their inputs; without custom nodes, `parse(text).graph()` builds the same graph.

    Values of leaves are not written; a constant of equal entries or an identity has a comment.
    """
    outputs = [sinks] if isinstance(sinks, Node) else list(sinks)
    line_of = lines(outputs)
    return str(Listing(tuple(line_of.values()), tuple(line_of[node].name for node in outputs)))


def lines(sinks: Sequence[Node]) -> dict[Node, Declaration | Statement]:
    """Return the line of each node in topological order."""
    names: dict[Node, str] = {}
    used_names: set[str] = set()
    order = topological_order(sinks)
    for node in order:
        names[node] = _name(node, used_names)
        used_names.add(names[node])
    return {
        node: _declaration(node, names) if isinstance(node, LeafNode) else _statement(node, names) for node in order
    }


def _name(node: Node, used_names: set[str]) -> str:
    """Return the name of a node if it is valid and free, else a new name."""
    name = node.name or ""
    if name and re.fullmatch(r"\w+", name, re.ASCII) and not name[0].isalpha():
        name = f"t{name}"
    is_name = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name not in KEYWORDS and not SUM.fullmatch(name)
    stem = name if is_name else "t"
    if is_name and name not in used_names:
        return name
    number = 1
    while f"{stem}_{number}" in used_names:
        number += 1
    return f"{stem}_{number}"


def _declaration(leaf: LeafNode, names: dict[Node, str]) -> Declaration:
    remark = "identity" if leaf.is_identity else "" if leaf.fill is None else f"{leaf.fill:g}"
    requires_grad = leaf.requires_grad and leaf.kind != LeafKind.CONSTANT
    return Declaration(names[leaf], leaf.kind, leaf.shape, leaf.dtype, requires_grad, remark)


def _statement(node: Node, names: dict[Node, str]) -> Statement:
    if isinstance(node, CustomNode):
        target, *operands = (Reference(names[each], (), ()) for each in (node, *node.inputs))
        settings = ", ".join(f"{name}={value}" for name, value in described(node.function).items())
        call = f"{node.type_name()}({', '.join(map(str, operands))}{settings and '; '}{settings})"
        return Statement(target, "custom", tuple(operands), function=call)
    axes = tuple(range(node.rank))  # of functions and casts, which have no indices
    arrays = node.arrays() or (axes, axes)
    every = list(dict.fromkeys(index for array in arrays for index in array))
    letters = {index: _letter(place) for place, index in enumerate(every)}
    extents = [(*node.shape,), *(source.shape for source in node.inputs)]
    form = cast(Form, node.operation if isinstance(node, ElementwiseNode) else node.type_name())
    references = []
    for owner, array, shape in zip((node, *node.inputs), arrays, extents, strict=True):
        new = [
            n if form == "transform" and owner is node and i < 0 else None for i, n in zip(array, shape, strict=True)
        ]
        references.append(Reference(names[owner], tuple(letters[index] for index in array), tuple(new)))
    summed = dict.fromkeys(letters[index] for array in arrays[1:] for index in array if index not in arrays[0])
    alpha = node.argument if isinstance(node.argument, float) else 1.0
    function = node.argument if isinstance(node.argument, Function | torch.dtype) else None
    return Statement(references[0], form, tuple(references[1:]), tuple(summed), alpha, function)


def _letter(place: int) -> str:
    rounds, letter = divmod(place, len(LETTERS))
    return LETTERS[letter] + (str(rounds) if rounds else "")
