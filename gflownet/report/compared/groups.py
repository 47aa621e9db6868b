"""Runs that differ only in their seed as one group, and the options in which groups differ."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.options import leaves
from gflownet.report.page.drawings import text_of
from gflownet.report.page.run_data import RunData

SEED = "seed"
# Options without influence on the results; a name covers the options below it.
IGNORED = frozenset(
    {
        *("log_dir", "resume", "overwrite_existing_exp", "print_every", "checkpoint_every"),
        *("wandb", "tensorboard", "report", "console"),
    }
)
# Task, data and budget decide what a score means. A name covers the options below it.
_PROBLEM = frozenset({"task", "task_options", "budget", "num_training_steps"})
_MAX_OPTIONS = 3  # in the name of a group
_MAX_VALUE = 40  # characters of a value in the name of a group
_ABSENT = "-"
# ${oc.env:LR}: the value is that of another process. ${task} has the value of an option in the same config.
_FOREIGN = re.compile(r"\$\{[^}]*:")
# Places, whose passwords come from the environment; they do not change results.
_PLACES = frozenset({"evaluation.store_url"})
_UNKNOWN = "unknown, "


@dataclass(frozen=True)
class Group:
    """Runs with the same options, ordered by seed."""

    name: str
    runs: tuple[RunData, ...]

    @property
    def seeds(self) -> list[Any]:
        """Seeds of the runs."""
        return [run.option(SEED) for run in self.runs]


@dataclass(frozen=True)
class Problem:
    """Groups with the same task, data and budget: only these are ranked in one table."""

    name: str  # the options in which it differs from the others; empty for the only one
    places: tuple[int, ...]  # of its groups


@dataclass(frozen=True)
class Difference:
    """An option, or the version of a package, that is not the same in all groups."""

    key: str
    values: tuple[str, ...]  # of each group


def groups_of(runs: Sequence[RunData]) -> list[Group]:
    """Return the groups in the order of their first runs; a run with an unknown option is a separate group."""
    members: dict[str, list[RunData]] = {}
    for number, run in enumerate(runs):
        place = number if unknown_options(run) else None
        members.setdefault(json.dumps([place, options_of(run)], sort_keys=True), []).append(run)
    ordered = [sorted(group, key=lambda run: (run.number(SEED) or 0.0, run.folder.name)) for group in members.values()]
    options = [options_of(group[0]) for group in ordered]
    keys = _distinguishing(options, _differing(options))
    named = [[f"{key}={_short(each[key])}" for key in keys if key in each] for each in options]
    names = [", ".join(each) or str(group[0].option("task")) for each, group in zip(named, ordered, strict=True)]
    return [Group(name, tuple(group)) for name, group in zip(_unique(names), ordered, strict=True)]


def problems_of(groups: Sequence[Group]) -> list[Problem]:
    """Return the problems in the order of their first groups."""
    options = [options_of(group.runs[0]) for group in groups]
    columns = [
        {key: text for key, text in column.items() if {key, key.partition(".")[0]} & _PROBLEM} for column in options
    ]
    places: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        places.setdefault(json.dumps(column, sort_keys=True), []).append(place)
    firsts = [columns[members[0]] for members in places.values()]
    chosen = _distinguishing(firsts, _differing(firsts))
    names = [", ".join(f"{key}={_short(column.get(key, _ABSENT))}" for key in chosen) for column in firsts]
    return [Problem(name, tuple(members)) for name, members in zip(_unique(names), places.values(), strict=True)]


def differences(groups: Sequence[Group]) -> list[Difference]:
    """Return what differs between the groups: options first, then versions."""
    rows = []
    for read in (options_of, _versions):
        values = [_merged([read(run) for run in group.runs]) for group in groups]
        rows += [Difference(key, tuple(column.get(key, _ABSENT) for column in values)) for key in _differing(values)]
    return rows


def options_of(run: RunData) -> dict[str, str]:
    """Return the options that may change results, by full key, as text; without the seed.

    An option such as ${oc.env:LR} is unknown: the config has the name of the variable, not its value.
    """
    options = {
        key: f"{_UNKNOWN}{value}" if _is_unknown(value) and key not in _PLACES else text_of(value)
        for key, value in leaves(run.config)
        if key != SEED and not {key, key.partition(".")[0]} & IGNORED
    }
    return options | {"search.method": run.method}  # that of search.method=auto


def unknown_options(run: RunData) -> list[str]:
    """Return the options of a run with unknown values."""
    return [key for key, text in options_of(run).items() if text.startswith(_UNKNOWN)]


def num_unknown_seeds(group: Group) -> int:
    """Return the number of runs of a group with an unknown seed."""
    return sum(map(_is_unknown, group.seeds))


def repeated_seeds(group: Group) -> list[Any]:
    """Return the known seeds that more than one run of a group has."""
    seeds = [seed for seed in group.seeds if not _is_unknown(seed)]
    return sorted({seed for seed in seeds if seeds.count(seed) > 1}, key=str)


def places_by_seed(group: Group) -> dict[str, int]:
    """Return the place of the run of each known seed that only one run of a group has."""
    repeated = repeated_seeds(group)
    return {
        text_of(seed): place for place, seed in enumerate(group.seeds) if seed not in repeated and not _is_unknown(seed)
    }


def _is_unknown(value: Any) -> bool:
    """Return whether a value, or one in a list, comes from outside of the config."""
    if isinstance(value, list | tuple):
        return any(map(_is_unknown, value))
    return isinstance(value, str) and _FOREIGN.search(value) is not None


def _versions(run: RunData) -> dict[str, str]:
    sessions = () if run.status is None else run.status.sessions
    return {f"version of {name}": version for name, version in (sessions[-1].versions if sessions else {}).items()}


def _merged(columns: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the values of the runs of a group; several different ones are joined."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return {key: ", ".join(dict.fromkeys(column[key] for column in columns if key in column)) for key in keys}


def _differing(columns: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for column in columns for key in column)
    return [key for key in keys if _num_classes(columns, [key]) > 1]


def _num_classes(columns: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    """Return the number of classes of columns with equal values; an unknown value equals no other."""
    return len(
        {
            tuple((text := column.get(key), number if text and text.startswith(_UNKNOWN) else None) for key in keys)
            for number, column in enumerate(columns)
        }
    )


def _distinguishing(columns: Sequence[Mapping[str, str]], differing: Sequence[str]) -> list[str]:
    """Return at most `_MAX_OPTIONS` options that distinguish the groups, each the one that splits them most."""
    keys: list[str] = []
    while len(keys) < _MAX_OPTIONS and _num_classes(columns, keys) < len(columns):
        best = max(differing, key=lambda key: _num_classes(columns, [*keys, key]))
        if _num_classes(columns, [*keys, best]) == _num_classes(columns, keys):
            break
        keys.append(best)
    return sorted(keys, key=differing.index)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_VALUE else f"…{text[-_MAX_VALUE:]}"


def _unique(names: Sequence[str]) -> list[str]:
    return [
        f"{name} ({names[:index].count(name) + 1})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
