"""Options of a config dataclass: declared with `option`, listed by full key with type, default, bounds and help.

@dataclass
class HypergridConfig:
    side: int = option(8, "values per coordinate", Interval(2, 128))
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

from gflownet.errors import NEAR, UserError, likeness

_TYPE_WORDS = {Any: "a group of options", int: "an integer", float: "a number", bool: "true or false", str: "a string"}
# Options that words of papers and other libraries stand for, and groups of options that get a value.
_WORDS = {
    "beta": "cond.temperature.dist_params",
    "reward_exponent": "cond.temperature.dist_params",
    "lr": "opt.learning_rate",
    "steps": "num_training_steps",
    "iterations": "num_training_steps",
    "n_trials": "budget.evaluations",
    "trials": "budget.evaluations",
    "workers": "num_workers",
    "seeds": "seed",
    "gpu": "device",
    "budget": "budget.evaluations",
    "env": "env.name",
    "model": "model.name",
    "search": "search.method",
    "objective": "algo.method",
    "loss": "algo.method",
    "algo": "algo.method",
    "wandb": "wandb.mode",
    "output": "log_dir",
    "output_dir": "log_dir",
    "algo.global_batch_size": "algo.num_from_policy",
}
# The options of the README and the quickstart, which a word stands for rather than another option with this last part.
_COMMON = (
    "evaluation.num_epochs",
    "evaluation.batch_size",
    "env.operation_graph.operations",
    "env.operation_graph.max_parameters",
    "env.operation_graph.max_hidden_nodes",
    "env.operation_graph.max_edges",
)
_SAME_WORDS = ((True, "yes", "on", "true"), (False, "no", "off", "false"))
_PLURALS = {int: "integers", float: "numbers", str: "strings"}


@dataclass(frozen=True)
class Interval:
    """Finite numbers from `low` to `high`; an open end excludes the bound itself."""

    low: float
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        try:
            above = value > self.low if self.low_open else value >= self.low
            below = value < self.high if self.high_open else value <= self.high
            return math.isfinite(value) and above and below
        except (TypeError, OverflowError):  # not a number, or an integer beyond every float
            return False

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"a number {'>' if self.low_open else '>='} {self.low:g}"
        return f"a number in {'(' if self.low_open else '['}{self.low:g}, {self.high:g}{')' if self.high_open else ']'}"


POSITIVE = Interval(0, low_open=True)
NOT_NEGATIVE = Interval(0)
AT_LEAST_ONE = Interval(1)
SHARE = Interval(0, 1)
DECAY = Interval(0, 1, high_open=True)


def option(default: Any, help: str, bounds: Interval | None = None) -> Any:
    """Return the dataclass field of an option.

    Args:
        default: its value; a list is copied for every config.
        help: one line for --help.
        bounds: the interval that the number, or every number of the list, has to lie in; a list has entries, unless
            it has none by default.
    """
    metadata = {"help": help, "bounds": bounds}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """One leaf of a config."""

    key: str  # full key, a.b.c
    type_hint: Any
    default: Any
    help: str
    group: str  # full key of the dataclass it belongs to, "" at the root
    group_help: str
    bounds: Interval | None = None

    def check(self, value: Any) -> None:
        """Raise UserError, with the full key, for a number outside the bounds or an empty list that needs entries."""
        if self.bounds is None or value is None:
            return
        entries = value if isinstance(value, Sequence) else [value]
        if not entries and self.default != []:
            raise UserError(f"{self.key}: expected at least one entry, got []")
        for entry in entries:
            if entry not in self.bounds:
                raise UserError(f"{self.key}: expected {self.bounds}, got {entry}")

    @property
    def type_name(self) -> str:
        """The type as --help shows it."""
        return _type_name(self.type_hint)

    @property
    def expected(self) -> str:
        """The type as an error names it."""
        return _expectation(self.type_hint)

    @property
    def default_text(self) -> str:
        """The default as the command line takes it."""
        if self.default is None:
            return "null"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, list):
            return f"[{', '.join(map(str, self.default))}]"
        return str(self.default) or '""'

    @property
    def is_number(self) -> bool:
        """Whether the value is a number."""
        return _without_none(self.type_hint)[0] in (int, float)

    def meant(self, value: Any) -> Any:
        """Return the choice that a person means: yes, which YAML reads as true, and the other way round."""
        hint = _without_none(self.type_hint)[0]
        choices = get_args(hint) if get_origin(hint) is Literal and value not in get_args(hint) else ()
        same = next((words for words in _SAME_WORDS if value in words), ())
        return next((choice for choice in choices if choice in same), value)

    def may_hold(self, value: Any) -> bool:
        """Return False for values that OmegaConf would convert silently: a number for a bool, a scalar for a group.

        Also for integers beyond the range of floats, which Python neither converts nor always prints.
        """
        entries = value if isinstance(value, list) else [value]
        if any(isinstance(entry, int) and entry.bit_length() >= sys.float_info.max_exp for entry in entries):
            return False
        hint = _without_none(self.type_hint)[0]
        if hint in (bool, str):
            return isinstance(value, bool | str) if hint is bool else not isinstance(value, bool)
        return (self.type_hint is Any) == isinstance(value, dict)


def find_options(schema: type, prefix: str = "") -> Iterator[Option]:
    """Yield the options of a config dataclass and of the dataclasses within, in the order of definition."""
    hints = typing.get_type_hints(schema)
    nested: list[tuple[str, type]] = []
    for item in fields(schema):
        hint = hints[item.name]
        if is_dataclass(hint):
            nested.append((f"{prefix}{item.name}.", typing.cast(type, hint)))
            continue
        yield Option(
            key=f"{prefix}{item.name}",
            type_hint=hint,
            default=item.default if item.default_factory is MISSING else item.default_factory(),
            help=item.metadata.get("help", ""),
            bounds=item.metadata.get("bounds"),
            group=prefix.rstrip("."),
            group_help=(schema.__doc__ or "").strip().partition("\n")[0],
        )
    for inner_prefix, inner in nested:
        yield from find_options(inner, inner_prefix)


@functools.cache
def groups_of(keys: tuple[str, ...]) -> set[str]:
    """Return every proper prefix of dotted keys: a.b.c gives a and a.b."""
    parts = [key.split(".") for key in keys]
    return {".".join(part[:end]) for part in parts for end in range(1, len(part))}


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (typing.Union, types.UnionType) and type(None) in get_args(hint):
        return next(arg for arg in get_args(hint) if arg is not type(None)), True
    return hint, False


def _type_name(hint: Any) -> str:
    hint, optional = _without_none(hint)
    if hint is Any:
        return "group"
    if get_origin(hint) is Literal:
        name = "|".join(map(_literal, get_args(hint)))
    elif get_origin(hint) is list:
        name = f"list[{_type_name(get_args(hint)[0])}]"
    else:
        name = hint.__name__
    return f"{name}|null" if optional else name


def _expectation(hint: Any) -> str:
    hint, optional = _without_none(hint)
    if get_origin(hint) is Literal:
        words = f"one of {', '.join(map(_literal, get_args(hint)))}"
    elif get_origin(hint) is list:
        words = f"a list of {_plural(get_args(hint)[0])}"
    else:
        words = _TYPE_WORDS.get(hint, f"a {hint.__name__}")
    return f"{words} or null" if optional else words


def _plural(hint: Any) -> str:
    return f"lists of {_plural(get_args(hint)[0])}" if get_origin(hint) is list else _PLURALS.get(hint, "values")


def _literal(value: object) -> str:
    """Return the value as YAML spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def leaves(tree: Mapping[str, Any], prefix: str = "", *, whole: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested options with their full keys, a.b for {"a": {"b": value}}; `whole` are values, too."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and f"{prefix}{name}" not in whole:
            yield from leaves(value, f"{prefix}{name}.", whole=whole)
        else:
            yield f"{prefix}{name}", value


def hint_of_option(key: str, value: Any, options: Mapping[str, Option]) -> str:
    """Return "; did you mean KEY?" for a wrong key, KEY=VALUE where the value changes too; empty without a near key."""
    nearest = nearest_key(key, options)
    if nearest not in _meant(key) and (key in groups_of(tuple(options)) or _likeness(key, nearest) < NEAR):
        return ""
    if options[nearest].type_name.startswith("list") and not isinstance(value, list):
        return f"; did you mean {nearest}=[{value}]?"
    return f"; did you mean {nearest}={value}?" if key in groups_of(tuple(options)) else f"; did you mean {nearest}?"


def nearest_key(key: str, options: Mapping[str, Option]) -> str:
    """Return the known key that a word stands for, else the most similar one, as a whole or in its last part.

    Ties go to the options of the README, then to the shortest.
    """

    def rank(candidate: str) -> tuple[bool, float, bool, int]:
        return candidate in _meant(key), _likeness(key, candidate), candidate in _COMMON, -len(candidate)

    return max(options, key=rank, default="")


def _meant(key: str) -> tuple[str, ...]:
    """Return the option that a word of other libraries stands for, that of the key's last part only in its group."""
    group, _, last = key.rpartition(".")
    meant = _WORDS.get(key) or _WORDS.get(last, "")
    return (meant,) if key in _WORDS or meant.startswith(f"{group}.") else ()


def _likeness(key: str, candidate: str) -> float:
    """Return the likeness of two keys, or of their last parts: epochs is num_epochs."""
    last, other = key.rpartition(".")[2], candidate.rpartition(".")[2]
    bare = other.removeprefix("num_").removeprefix("max_")
    return max(likeness(key, candidate), 0.9 * max(likeness(last, other), likeness(last, bare)))
