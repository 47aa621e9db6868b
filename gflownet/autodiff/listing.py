"""A tensor graph as written: declarations of leaves and one statement per node, with names for tensors and indices.

Operands of a listing may have any extents where it writes none. `str` writes a listing, `gflownet.autodiff.text.parse`
reads it, `graph` builds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gflownet.autodiff import nodes as node_classes
from gflownet.autodiff.functions import Function
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import (
    ElementwiseNode,
    Indices,
    LeafKind,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    TransformNode,
    dtype_name,
)
from gflownet.autodiff.serialisation import DEFAULT_DTYPE

Form = Literal["transform", "+", "-", "*", "linear", "nonlinear", "cast", "custom"]


@dataclass(frozen=True)
class Reference:
    """A tensor with an index on each axis: `a[i,j:3]`; an extent is written where nothing else gives it."""

    name: str
    indices: tuple[str, ...]
    extents: tuple[int | None, ...]
    place: str = field(default="", compare=False)  # "line 3, column 8"

    @property
    def where(self) -> str:
        """Return position and text, for messages."""
        return f"{self.place}: {self}"

    def __str__(self) -> str:
        """Return the text of the reference; for a scalar, its name."""
        axes = zip(self.indices, self.extents, strict=True)
        inner = ",".join(index if extent is None else f"{index}:{extent}" for index, extent in axes)
        return f"{self.name}[{inner}]" if inner else self.name


@dataclass(frozen=True)
class Declaration:
    """A leaf: `parameter w[3,4] float32`, `fixed input x[3]`."""

    name: str
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: torch.dtype = DEFAULT_DTYPE
    requires_grad: bool = True
    remark: str = field(default="", compare=False)  # content of a constant
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return the line of the declaration."""
        fixed = "fixed " if not self.requires_grad and self.kind != LeafKind.CONSTANT else ""
        text = f"{fixed}{self.kind.name.lower()} {self.name}"
        text += f"[{','.join(map(str, self.shape))}]" if self.shape else ""
        text += "" if self.dtype == DEFAULT_DTYPE else f" {dtype_name(self.dtype)}"
        return f"{text}  # {self.remark}" if self.remark else text

    def leaf(self) -> LeafNode:
        """Return the leaf; raise ValueError with the position for an extent below 0."""
        try:
            return LeafNode(
                self.shape, kind=self.kind, requires_grad=self.requires_grad, dtype=self.dtype, name=self.name
            )
        except ValueError as error:
            raise ValueError(f"{self.place}: {error!s}") from error


@dataclass(frozen=True)
class Statement:
    """One node: `y[i] = sum_j w[i,j] x[j]`."""

    target: Reference
    form: Form
    operands: tuple[Reference, ...]
    summed: tuple[str, ...] = ()
    alpha: float = 1.0
    function: Function | torch.dtype | str | None = None  # str: the text of a custom node, which is not read

    @property
    def name(self) -> str:
        """Return the name of the result."""
        return self.target.name

    @property
    def place(self) -> str:
        """Return where the statement begins."""
        return self.target.place

    def __post_init__(self) -> None:
        """Check the indices; raise ValueError with the position for an index that breaks a rule."""
        for reference in (self.target, *self.operands):
            twice = next((index for index in reference.indices if reference.indices.count(index) > 1), None)
            if twice:
                raise ValueError(f"{reference.where}: expected every index once in a tensor, got {twice} twice")
        operand_indices = {index for operand in self.operands for index in operand.indices}
        for index in self.summed:
            if index not in operand_indices or index in self.target.indices:
                message = "expected the sum to be over indices of the operands that the result lacks"
                raise ValueError(f"{self.target.where}: {message}, got {index}")
        for operand in self.operands:
            missing = [index for index in operand.indices if index not in (*self.target.indices, *self.summed)]
            if missing:
                raise ValueError(f"{operand.where}: expected {missing[0]} in {self.target} or under a sum")
        new = [index for index in self.target.indices if index not in operand_indices]
        if new and self.form != "transform":
            raise ValueError(f"{self.target.where}: expected indices of the operands, got {new[0]}")
        if self.form in ("nonlinear", "cast") and self.target.indices != self.operands[0].indices:
            raise ValueError(f"{self.target.where}: expected the indices of {self.operands[0]}, in their order")

    def arrays(self) -> list[Indices]:
        """Return the signed index arrays, the result's first: positive by their order there, then the negative ones."""
        operand_indices = {index for operand in self.operands for index in operand.indices}
        shared = [index for index in self.target.indices if index in operand_indices]
        numbers = {index: place for place, index in enumerate(shared, start=1)}
        start = 1 if self.form == "transform" else len(shared) + 1
        negative = {index: -place for place, index in enumerate(self.summed, start=start)}
        new = [index for index in self.target.indices if index not in operand_indices]
        dst = {**numbers, **{index: -place for place, index in enumerate(new, start=1)}}
        src = {**numbers, **negative}
        sources = [tuple(src[index] for index in operand.indices) for operand in self.operands]
        return [tuple(dst[index] for index in self.target.indices), *sources]

    def node(self, sources: Sequence[Node]) -> Node:
        """Return the node of operands in order; raise ValueError for extents that do not fit or are missing."""
        name, arrays, target = self.target.name, self.arrays(), self.target
        if isinstance(self.function, Function):
            return NonlinearNode(sources[0], self.function, name=name)
        if isinstance(self.function, torch.dtype):
            return node_classes.CastNode(sources[0], self.function, name=name)
        if self.form != "transform":
            pair: Any = (*sources, *arrays)
            if self.form == "linear":
                return LinearNode(*pair, name=name)
            assert self.form in ("+", "-", "*"), self.form
            return ElementwiseNode(*pair, operation=self.form, name=name)
        new_dims: list[int] = []
        for index, extent in zip(target.indices, target.extents, strict=True):
            if index in self.operands[0].indices:
                continue
            if extent is None:
                raise ValueError(f"{self.target.where}: expected an extent of the New index, as in {index}:2")
            new_dims.append(extent)
        return TransformNode(sources[0], *arrays, alpha=self.alpha, new_dims=new_dims, name=name)

    def __str__(self) -> str:
        """Return the line of the statement."""
        summed = f"sum_{''.join(self.summed)} " if self.summed else ""
        return f"{self.target} = {summed}{self._right_side()}"

    def _right_side(self) -> str:
        first, last = self.operands[0], self.operands[-1]
        if self.form == "transform":
            factor = {1.0: "", -1.0: "-"}.get(self.alpha, f"{self.alpha!r} * ")
            return f"{factor}{first}"
        if self.form == "linear":
            return f"{first} {last}"
        if isinstance(self.function, torch.dtype):
            return f"{dtype_name(self.function)}({first})"
        if isinstance(self.function, str):
            return self.function
        if isinstance(self.function, Function):
            return applied(self.function, str(first))
        pair = f"{first} {self.form} {last}"
        return f"({pair})" if self.summed else pair


@dataclass(frozen=True)
class Listing:
    """Declarations and statements, in order, and the names of the results."""

    lines: tuple[Declaration | Statement, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        is_usual = self.outputs == (self.lines[-1].name,)
        ending = [] if is_usual else [f"output {', '.join(self.outputs)}"]
        return "\n".join([*map(str, self.lines), *ending])

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return the statements, in order."""
        return tuple(line for line in self.lines if isinstance(line, Statement))

    def graph(self, operands: Mapping[str, Node | Sequence[int]] | None = None) -> Graph:
        """Return the graph, with the names as ids.

        Args:
            operands: node or shape of an input for each name that no line declares; optional where all extents are
                written.

        Raises:
            ValueError: a name is undefined or defined twice, or extents do not fit; the message has the position.
        """
        nodes: dict[str, Node] = {}
        for name, operand in (operands or {}).items():
            is_node = isinstance(operand, Node)
            nodes[name] = operand if is_node else LeafNode(operand, dtype=DEFAULT_DTYPE, name=name)
        for line in self.lines:
            if line.name in nodes:
                raise ValueError(f"{line.place}: {line.name}: expected a name that is not defined yet")
            nodes[line.name] = line.leaf() if isinstance(line, Declaration) else _built(line, nodes)
        missing = [name for name in self.outputs if name not in nodes]
        if missing:
            raise ValueError(f"output: expected names that are defined, got {missing[0]}")
        return Graph([nodes[name] for name in self.outputs], ids={**nodes})

    def node(self, operands: Mapping[str, Node | Sequence[int]] | None = None) -> Node:
        """Return the last result; arguments and errors as in `graph`."""
        return self.graph(operands).sink


def applied(function: Function, argument: str) -> str:
    """Return the text of a function of an argument: `exp(tanh(z[i]))`, or with its formula, `{2*x**3}(z[i])`."""
    head, call, tail = function.formula.partition("(x)")
    is_nested = bool(call) and head.replace("(", "").isalnum() and tail == ")" * head.count("(")
    return f"{head}({argument}){tail}" if is_nested else f"{{{function.formula}}}({argument})"


def _built(statement: Statement, nodes: dict[str, Node]) -> Node:
    for operand in statement.operands:
        if operand.name not in nodes:
            nodes[operand.name] = _implied(operand)
        shape = nodes[operand.name].shape
        if len(shape) != len(operand.indices):
            raise ValueError(f"{operand.where}: expected an index for each axis of shape {list(shape)}")
        for index, extent, actual in zip(operand.indices, operand.extents, shape, strict=True):
            if extent not in (None, actual):
                raise ValueError(f"{operand.where}: expected {actual} as the extent of {index}")
    sources = [nodes[operand.name] for operand in statement.operands]
    try:
        node = statement.node(sources)
    except ValueError as error:
        message = str(error)
        raise error if message.startswith("line") else ValueError(f"{statement.target.place}: {message}") from error
    axes = zip(statement.target.indices, statement.target.extents, node.shape, strict=True)
    for index, extent, actual in axes:
        if extent not in (None, actual):
            raise ValueError(f"{statement.target.where}: expected {actual} as the extent of {index}")
    return node


def _implied(operand: Reference) -> LeafNode:
    """Return the input of an undeclared operand that is written with its extents."""
    if not operand.indices or None in operand.extents:
        message = f"expected a declaration before, as in `input {operand.name}[2,3]`, or a node or a shape given for it"
        raise ValueError(f"{operand.where}: {message}")
    return LeafNode(
        [extent for extent in operand.extents if extent is not None], dtype=DEFAULT_DTYPE, name=operand.name
    )
