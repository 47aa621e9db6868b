"""Immutable expression trees of which equal ones are one object, compared and hashed by identity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakValueDictionary

Result = TypeVar("Result")


class Expression:
    """An expression; subclasses are frozen dataclasses whose fields are numbers, texts and expressions."""

    _known: ClassVar[WeakValueDictionary[tuple[object, ...], Any]] = WeakValueDictionary()

    def __new__(cls, *parts: object) -> Self:
        """Return the existing expression of these parts, or a new one."""
        key = (cls, *(math.nan if part != part else part for part in parts))  # every NaN is the same constant
        existing = Expression._known.get(key)
        if existing is None:
            existing = Expression._known[key] = super().__new__(cls)
        return existing

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and unpickle to the one object."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # pyright: ignore[reportArgumentType]

    @property
    def parts(self) -> tuple[Self, ...]:
        """Return the expressions that this one is made of directly."""
        return ()

    @cached_property
    def all_parts(self) -> tuple[Self, ...]:
        """Return all parts, direct and indirect, each after its own parts: in this order nothing recurses."""
        order: dict[Self, None] = {}
        stack: list[tuple[Self, bool]] = [(part, False) for part in self.parts]
        while stack:
            part, parts_done = stack.pop()
            if parts_done:
                order[part] = None
            elif part not in order:
                stack.append((part, True))
                stack.extend((inner, False) for inner in part.parts)
        return tuple(order)

    def fold(self, step: Callable[[Self, dict[Any, Result]], Result]) -> Result:
        """Return the result of a step at this expression, which gets the results at all parts."""
        results: dict[Any, Result] = {}
        for part in (*self.all_parts, self):
            results[part] = step(part, results)
        return results[self]
