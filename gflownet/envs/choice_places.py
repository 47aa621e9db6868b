"""Places of a search space of choices: their values, the conditions under which they exist, and how many settings fit.

A place exists while all its conditions hold; a condition holds while another place exists and has one of some values.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from gflownet.errors import UserError
from gflownet.mdp.states import UNSET

Value = int | float | str | bool
Setting = dict[str, Value]  # value of every place that exists

KEY = "env.choices.places"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_DECLARATION = {"values", "only_if"}
# States store places and values as int8.
_MAX_SIZE = 127


@dataclass(frozen=True)
class Place:
    """A named choice."""

    name: str
    values: tuple[Value, ...]
    only_if: tuple[tuple[str, tuple[Value, ...]], ...] = ()  # place -> values of which it has one

    def exists(self, setting: Mapping[str, Value]) -> bool:
        """Return whether all conditions hold for the places that are set."""
        return all(place in setting and _is_in(setting[place], values) for place, values in self.only_if)


@dataclass(frozen=True)
class Places:
    """The places of a space; conditions name places without a circle."""

    places: tuple[Place, ...]

    @cached_property
    def by_name(self) -> dict[str, Place]:
        """Return the places by name."""
        return {place.name: place for place in self.places}

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return the texts of all values, each once: the vocabulary of a state."""
        return tuple(dict.fromkeys(text_of(value) for place in self.places for value in place.values))

    def position(self, name: str, setting: Mapping[str, Value]) -> int:
        """Return the position of a place's value in `texts`, UNSET for none. Raises ValueError for another value."""
        if name not in setting:
            return UNSET
        values = self.by_name[name].values
        if not _is_in(setting[name], values):
            raise ValueError(f"{name}: expected a value out of {list(values)}, got {setting[name]!r}")
        return self.texts.index(text_of(setting[name]))

    @cached_property
    def ordered(self) -> tuple[Place, ...]:
        """Return the places, each after the places of its conditions."""
        remaining, ordered = list(self.places), []
        while remaining:
            done = {place.name for place in ordered}
            free = [place for place in remaining if all(name in done for name, _ in place.only_if)]
            if not free:
                names = ", ".join(place.name for place in remaining)
                raise UserError(f"{KEY}: expected conditions without a circle, got one among {names}")
            ordered += free
            remaining = [place for place in remaining if place not in free]
        return tuple(ordered)

    def settings(self) -> Iterator[Setting]:
        """Yield every complete setting once."""
        yield from self._completions({}, 0)

    def _completions(self, setting: Setting, depth: int) -> Iterator[Setting]:
        if depth == len(self.ordered):
            yield setting
            return
        place = self.ordered[depth]
        if not place.exists(setting):
            yield from self._completions(setting, depth + 1)
            return
        for value in place.values:
            yield from self._completions({**setting, place.name: value}, depth + 1)

    def num_settings(self) -> int:
        """Return the number of complete settings, without listing them."""
        return _count(frozenset(self.places), {})


def read_places(declared: Mapping[str, Any]) -> Places:
    """Return the places of `env.choices.places`.

    A declaration is a list of values, a range such as 1..6, or {values: ..., only_if: {place: value or values}}.
    Another mapping is a group: its names are put before the names in it, with a dot.

    Raises:
        UserError: no place, an invalid declaration, or conditions in a circle.
    """
    try:
        places = Places(tuple(_declared(declared, "")))
    except OmegaConfBaseException as error:
        raise UserError(f"{KEY}: expected values that can be read, got {str(error).splitlines()[0]}") from None
    repeated = [name for name, number in Counter(place.name for place in places.places).items() if number > 1]
    if repeated:
        raise UserError(f"{KEY}.{repeated[0]}: expected one declaration of the place, got several")
    if not 1 <= len(places.places) <= _MAX_SIZE or len(places.texts) > _MAX_SIZE:
        raise UserError(
            f"{KEY}: expected 1 to {_MAX_SIZE} places, such as kernel: [3, 5, 7], and at most {_MAX_SIZE} different "
            f"values, got {len(places.places)} places and {len(places.texts)} values"
        )
    for place in places.places:
        for name, values in place.only_if:
            _check_condition(places, place, name, values)
    _ = places.ordered  # conditions in a circle
    return places


def text_of(value: Value) -> str:
    """Return the text of a value in actions: strings without quotes, true and false as in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def _declared(tree: Mapping[str, Any], prefix: str) -> Iterator[Place]:
    for key, declaration in tree.items():
        name = f"{prefix}{key}"
        if not isinstance(declaration, Mapping):
            yield Place(name, _values(declaration, f"{KEY}.{name}"))
        elif "values" in declaration:
            unknown = [str(entry) for entry in declaration if entry not in _DECLARATION]
            if unknown:
                raise UserError(f"{KEY}.{name}: expected values and only_if, got {', '.join(unknown)}")
            yield Place(name, _values(declaration["values"], f"{KEY}.{name}.values"), _conditions(declaration, name))
        elif "only_if" in declaration or not declaration:
            raise UserError(f"{KEY}.{name}: expected values, such as values: [1, 2, 4], got none")
        else:
            yield from _declared(declaration, f"{name}.")


def _values(declaration: Any, key: str) -> tuple[Value, ...]:
    """Return the values of a list or a range; a range may also be an entry of a list."""
    entries = [declaration] if isinstance(declaration, str) else declaration
    values: list[Value] = []
    for entry in entries if isinstance(entries, Sequence) else ():
        match = _RANGE.fullmatch(entry) if isinstance(entry, str) else None
        span = range(int(match[1]), int(match[2]) + 1) if match else [entry]
        if len(values) + len(span) > _MAX_SIZE:
            raise UserError(f"{key}: expected at most {_MAX_SIZE} values, got {len(values) + len(span):,}")
        values += span
    is_text = isinstance(declaration, str) and values == [declaration]
    if is_text or not values or not all(map(_is_value, values)):
        raise UserError(
            f"{key}: expected a list of numbers, strings, true or false, or a range such as 1..6, got {declaration!r}"
        )
    if min(len(set(values)), len(set(map(text_of, values)))) < len(values):
        raise UserError(f"{key}: expected different values, got {values}")
    return tuple(values)


def _is_value(value: object) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _conditions(declaration: Mapping[str, Any], name: str) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    conditions = declaration.get("only_if") or {}
    if not isinstance(conditions, Mapping):
        raise UserError(f"{KEY}.{name}.only_if: expected place: value or values, got {conditions!r}")
    flat = dict(_flat(conditions, ""))
    return tuple(
        (
            place,
            _values(
                value if isinstance(value, Sequence) and not isinstance(value, str) else [value],
                f"{KEY}.{name}.only_if.{place}",
            ),
        )
        for place, value in flat.items()
    )


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_condition(places: Places, place: Place, name: str, values: tuple[Value, ...]) -> None:
    """Raise UserError unless a condition names another place and values that it may have."""
    key = f"{KEY}.{place.name}.only_if"
    if name not in places.by_name or name == place.name:
        names = ", ".join(other for other in places.by_name if other != place.name) or "none"
        raise UserError(f"{key}: expected another place, out of {names}, got {name!r}")
    allowed = places.by_name[name].values
    for value in values:
        if not _is_in(value, allowed):
            raise UserError(f"{key}.{name}: expected values out of {list(allowed)}, got {value!r}")


def _is_in(value: Value, values: Sequence[Value]) -> bool:
    """Return whether a value is one of `values`, by type, too: 1 is not true."""
    return any(
        text_of(value) == text_of(other) and isinstance(value, str) == isinstance(other, str) for other in values
    )


def _count(places: frozenset[Place], values_of: Mapping[str, Value | None]) -> int:
    """Return the number of settings of `places`; conditions on places of `values_of` (None: absent) are decided.

    Independent groups of places multiply. Within a group a place without open conditions is set to each of its values.
    """
    places, values_of = _simplified(places, values_of)
    total = 1
    for group in _independent(places):
        place = min((p for p in group if not p.only_if), key=lambda p: p.name)
        rest = group - {place}
        if not rest:
            total *= len(place.values)
            continue
        branches: dict[tuple[bool, ...], list[Value]] = {}
        tests = sorted({values for p in rest for name, values in p.only_if if name == place.name}, key=repr)
        for value in place.values:
            branches.setdefault(tuple(_is_in(value, values) for values in tests), []).append(value)
        total *= sum(len(values) * _count(rest, {place.name: values[0]}) for values in branches.values())
    return total


def _simplified(
    places: frozenset[Place], values_of: Mapping[str, Value | None]
) -> tuple[frozenset[Place], Mapping[str, Value | None]]:
    """Return the places that may still exist, without decided conditions."""
    while True:
        absent, open_places = set(), set()
        for place in places:
            decided = [(values_of[name], values) for name, values in place.only_if if name in values_of]
            if all(value is not None and _is_in(value, values) for value, values in decided):
                conditions = tuple(item for item in place.only_if if item[0] not in values_of)
                open_places.add(Place(place.name, place.values, conditions))
            else:
                absent.add(place.name)
        places, values_of = frozenset(open_places), dict.fromkeys(absent)
        if not absent:
            return places, values_of


def _independent(places: frozenset[Place]) -> list[frozenset[Place]]:
    groups: list[frozenset[Place]] = []
    for place in places:
        read = dict(place.only_if)
        near = [g for g in groups if any(other.name in read or place.name in dict(other.only_if) for other in g)]
        groups = [g for g in groups if g not in near] + [frozenset({place}).union(*near)]
    return groups
