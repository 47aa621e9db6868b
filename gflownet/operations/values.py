"""JSON values: checked, frozen, hashable, and shown in messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from reprlib import Repr
from types import MappingProxyType
from typing import Any, TypeGuard

# Python refuses to convert integers of more than 4,300 digits to or from text.
MAX_INT_BITS = 2**13
_SMALL_INT = 2**62
# Lists and objects within an attribute; far below Python's recursion limit.
MAX_NESTING = 32
SCALARS = frozenset((int, float, bool, str, type(None)))


class _ShortText(Repr):
    """repr() that cuts long and deeply nested values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong = 3, 40
        self.maxstring = self.maxother = 120

    def repr_int(self, x: int, level: int) -> str:
        """The digits, or the size of an int that has too many."""
        return super().repr_int(x, level) if x.bit_length() <= MAX_INT_BITS else f"an int of {x.bit_length()} bits"


_SHORT = _ShortText()


def checked_int(value: Any, owner: str, name: str) -> int:
    """Return `value` as an int. Raises ValueError naming the owner and the field for anything else, bool included."""
    if type(value) is int and -_SMALL_INT < value < _SMALL_INT:
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number.bit_length() <= MAX_INT_BITS:
            return number
    raise ValueError(f"{owner}: expected an int {name}, got {shown(value)}")


def checked_float(value: Any, owner: str, name: str) -> float:
    """Return `value` as a float, also NaN and infinity (validate() reports them). Raises ValueError otherwise."""
    if type(value) is float:
        return value
    if is_number(value):
        try:
            return float(value)
        except OverflowError:
            pass
    raise ValueError(f"{owner}: expected a float {name}, got {shown(value)}")


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a real number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a real number other than NaN and infinity; integers may exceed every float."""
    return is_number(value) and (isinstance(value, Integral) or isfinite(value))


def frozen_attributes(attributes: Mapping[str, Any], owner: str) -> Mapping[str, Any]:
    """Return a read-only deep copy of JSON attributes. Raises ValueError naming the owner and the key."""
    if not isinstance(attributes, Mapping):
        raise ValueError(f"{owner}: expected a mapping attributes, got {shown(attributes)}")
    return _frozen_mapping(attributes, owner, MAX_NESTING) if attributes else _NO_ATTRIBUTES


_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


def _frozen_mapping(attributes: Mapping[str, Any], owner: str, levels: int) -> Mapping[str, Any]:
    return MappingProxyType({key: _frozen(value, owner, key, levels - 1) for key, value in attributes.items()})


def _frozen(value: Any, owner: str, key: Any, levels: int) -> Any:
    if not isinstance(key, str):
        raise ValueError(f"{owner}: expected str attribute names, got {shown(key)}")
    if levels < 0:
        raise ValueError(f"{owner}: expected attributes of at most {MAX_NESTING} levels, got more under {shown(key)}")
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return checked_int(value, owner, key)
    if isinstance(value, Real):
        return checked_float(value, owner, key)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, owner, key, levels - 1) for item in value)
    if isinstance(value, Mapping):
        return _frozen_mapping(value, owner, levels)
    raise ValueError(f"{owner}: expected a JSON value for attribute {shown(key)[1:-1]}, got {shown(value)}")


def shown(value: Any) -> str:
    """Return a value in one short line for an error message; long and deeply nested values are cut."""
    if isinstance(value, Mapping):
        value = dict(value)  # a read-only view is cut as a dict is
    return _SHORT.repr(value)


def thawed(value: Any) -> Any:
    """Return the plain JSON form (dicts and lists) of a frozen attribute value."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return value


@dataclass(frozen=True, eq=False, repr=False)
class FrozenObject(Mapping[str, Any]):
    """A hashable JSON object; its values are hashable, too."""

    pairs: tuple[tuple[str, Any], ...]  # sorted by key

    def __getitem__(self, key: str) -> Any:
        return dict(self.pairs)[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        return repr(thawed(self))


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(each)


def hashable(value: Any) -> Any:
    """Return a JSON value with tuples in place of lists, and frozen objects."""
    if isinstance(value, Mapping):
        return FrozenObject(tuple(sorted((key, hashable(item)) for key, item in value.items())))
    is_list = isinstance(value, Sequence) and not isinstance(value, str)  # a list of a config is neither list nor tuple
    return tuple(map(hashable, value)) if is_list else value


def exact(value: Any) -> Any:
    """Return a hashable form of a JSON value in which 2, 2.0 and true differ."""
    if isinstance(value, Mapping):
        keys = tuple(sorted(value))
        return dict, keys, exact([value[key] for key in keys])
    if not isinstance(value, tuple | list):
        return type(value), value
    kinds = tuple(map(type, value))
    return kinds, tuple(value) if SCALARS.issuperset(kinds) else tuple(map(exact, value))
