"""Ordered torch calls without duplicates, and the straight-line Python code that runs them.

The code deletes a tensor after its last use, or overwrites it with a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from gflownet.autodiff.custom_node import Applied
from gflownet.autodiff.rules import Shape


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An argument, or the result of an instruction."""

    number: int
    shape: Shape
    dtype: torch.dtype
    template: str = ""  # Python expression of the operands {0}, {1}, ...; empty for an argument
    operands: tuple[Value, ...] = ()
    in_place: tuple[tuple[int, str], ...] = ()  # operand to overwrite and the statement that does it
    is_view: bool = False  # of the first operand's memory
    is_expanded: bool = False  # several entries share memory

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return prod(self.shape)

    @property
    def root(self) -> Value:
        """Return the value that owns the memory of this one."""
        value = self
        while value.is_view:
            value = value.operands[0]
        return value


class Instructions:
    """Collects instructions; a repeated instruction returns the existing value."""

    def __init__(self, arguments: Iterable[tuple[Shape, torch.dtype]]) -> None:
        self._values: dict[tuple[object, ...], Value] = {}  # by instruction
        self.functions: dict[Applied, int] = {}  # number N is named callN in the code
        self.arguments = [
            self._value(("", number), shape=shape, dtype=dtype) for number, (shape, dtype) in enumerate(arguments)
        ]

    def _value(self, instruction: tuple[object, ...], **fields: Any) -> Value:
        if instruction not in self._values:
            self._values[instruction] = Value(len(self._values), **fields)
        return self._values[instruction]

    def has(self, template: str, *operands: Value) -> bool:
        """Return whether the instruction exists."""
        return (template, *operands) in self._values

    def emit(
        self,
        template: str,
        *operands: Value,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        in_place: tuple[tuple[int, str], ...] = (),
    ) -> Value:
        """Return the result of a call.

        Args:
            template: Python expression, operands as {0}, {1}, ...
            operands: values.
            shape: of the result; its dtype is by default that of the first operand.
            dtype: see `shape`.
            in_place: positions of operands that may be overwritten, and the statements that do so.
        """
        return self._value(
            (template, *operands),
            shape=tuple(shape),
            dtype=dtype or operands[0].dtype,
            template=template,
            operands=operands,
            in_place=in_place,
        )

    def call(self, function: Applied, operands: Sequence[Value]) -> Value:
        """Return the result of a function of whole tensors."""
        number = self.functions.setdefault(function, len(self.functions))
        places = ", ".join(f"{{{k}}}" for k in range(len(operands)))
        return self.emit(f"call{number}({places})", *operands, shape=function.shape, dtype=function.dtype)

    def view(
        self,
        template: str,
        operand: Value,
        *,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        is_expanded: bool = False,
    ) -> Value:
        """Return a view of a value; `is_expanded`: whether entries share memory."""
        return self._value(
            (template, operand),
            shape=tuple(shape),
            dtype=dtype or operand.dtype,
            template=template,
            operands=(operand,),
            is_view=True,
            is_expanded=is_expanded or operand.is_expanded,
        )

    def body(self, outputs: Sequence[Value], *, reuses_memory: bool) -> tuple[list[str], int]:
        """Return the lines of the function body, and the number of calls that compute something.

        `reuses_memory`: whether to overwrite dead operands, which torch.autograd does not support.
        """
        return _Writer([*self._values.values()], outputs, reuses_memory).written()


class _Writer:
    def __init__(self, values: Sequence[Value], outputs: Sequence[Value], reuses_memory: bool) -> None:
        self._outputs, self._reuses_memory = outputs, reuses_memory
        needed = set(outputs)
        for value in reversed(values):
            if value in needed:
                needed.update(value.operands)
        self._order = [value for value in values if value in needed and value.template]
        self._name = {value: f"x{value.number}" for value in values if not value.template}
        self._last_use: dict[Value, int] = {}
        for line, value in enumerate(self._order):
            self._last_use.update(dict.fromkeys(value.operands, line))
        self._last_use.update(dict.fromkeys(outputs, len(self._order)))
        self._sharing: dict[Value, list[Value]] = {}
        self._root: dict[Value, Value] = {}

    def written(self) -> tuple[list[str], int]:
        lines: list[str] = []
        num_calls = 0
        for line, value in enumerate(self._order):
            num_calls += not value.is_view
            lines.append(self._line(line, value))
            dead = sorted({self._name[v] for v in value.operands if self._is_dead_after(v, line, value)})
            if dead:
                lines.append(f"del {', '.join(dead)}")
        names = [self._name[value] for value in self._outputs]
        lines.append(f"return {names[0]}" if len(names) == 1 else f"return ({', '.join(names)})")
        return lines, num_calls

    def _is_dead_after(self, operand: Value, line: int, value: Value) -> bool:
        is_temporary = bool(operand.template) and self._last_use[operand] == line
        return is_temporary and self._name[operand] != self._name[value]

    def _line(self, line: int, value: Value) -> str:
        names = [self._name[operand] for operand in value.operands]
        for which, template in value.in_place if self._reuses_memory else ():
            operand = value.operands[which]
            if self._may_overwrite(operand, value, line):
                self._name[value] = self._name[operand]
                self._share(value, self._root[operand])
                return template.format(*names)
        self._name[value] = f"v{value.number}"
        self._share(value, self._root.get(value.operands[0], value.operands[0]) if value.is_view else value)
        return f"{self._name[value]} = {value.template.format(*names)}"

    def _share(self, value: Value, root: Value) -> None:
        self._root[value] = root
        self._sharing.setdefault(root, []).append(value)

    def _may_overwrite(self, operand: Value, value: Value, line: int) -> bool:
        if operand.shape != value.shape or operand.dtype != value.dtype or operand.is_expanded:
            return False
        root = self._root.get(operand)
        if root is None or not root.template or value.operands.count(operand) > 1 or self._last_use[operand] != line:
            return False
        return all(self._last_use[other] < line for other in self._sharing[root] if other is not operand)
