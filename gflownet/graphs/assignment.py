"""A value for each of several named places: the terminal objects of environments without edges."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gflownet.graphs.canonical import versioned_hash
from gflownet.graphs.node_link import objects_under
from gflownet.operations.values import checked_int

# Part of every hash: change it whenever the text of a key changes, so that stored hashes are never mixed.
HASH_VERSION = "a1"


@dataclass(frozen=True)
class Assignment:
    """Distinct names and their values; no two places are interchangeable."""

    names: tuple[str, ...]
    values: tuple[int | float | str | bool, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names) or len(self.values) != len(self.names):
            raise ValueError(f"assignment: expected a value for each of different names, got {self}")

    @classmethod
    def of(cls, values: Mapping[str, int | float | str | bool]) -> Assignment:
        """Return the assignment of a mapping, sorted by name: the same for every order of its entries."""
        names = sorted(values)
        return cls(tuple(names), tuple(values[name] for name in names))

    def __getitem__(self, name: str) -> int | float | str | bool:
        """Return the value of a name."""
        return self.values[self.names.index(name)]

    def as_dict(self) -> dict[str, int | float | str | bool]:
        """Return the values by name."""
        return dict(zip(self.names, self.values, strict=True))

    def canonical_key(self) -> str:
        """Return names and values as JSON text."""
        return json.dumps([self.names, self.values], separators=(",", ":"))

    def canonical_hash(self) -> str:
        """Return a versioned sha256 of the key. Two keys may share it."""
        return versioned_hash(HASH_VERSION, self.canonical_key())

    def num_automorphisms(self) -> int:
        """Return 1."""
        return 1

    def to_dict(self) -> dict[str, Any]:
        """Return a graph of nodes without edges in networkx's node-link form."""
        pairs = enumerate(zip(self.names, self.values, strict=True))
        nodes = [{"id": i, "name": name, "value": value} for i, (name, value) in pairs]
        return {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "edges": []}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Assignment:
        """Return the assignment of a `to_dict`. Raises ValueError for data of another form."""
        nodes = objects_under(data, "nodes", ("id", "name", "value"))
        nodes.sort(key=lambda node: checked_int(node["id"], "nodes", "id"))
        return cls(tuple(node["name"] for node in nodes), tuple(node["value"] for node in nodes))


def values_of(data: object) -> dict[str, Any]:
    """Return names and values of an assignment's node-link data; empty for data of other objects."""
    nodes = data.get("nodes") if isinstance(data, Mapping) else None
    if not isinstance(nodes, list) or not all(
        isinstance(node, Mapping) and {"name", "value"} <= {*node} for node in nodes
    ):
        return {}
    return {str(node["name"]): node["value"] for node in nodes}


def words_of(data: object) -> str:
    """Return the words of the task in the node-link data of an evaluation; empty without any."""
    match data:
        case {"graph": {"words": str(words)}}:
            return words
    return ""


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names whose values differ among settings, absent ones included, in order of appearance."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [name for name in names if len({json.dumps(setting.get(name)) for setting in settings}) > 1]


def as_yaml(values: Mapping[str, Any], *, first: Sequence[str] = ()) -> str:
    """Return values as one line of YAML, such as {depth: 2, norm: true}; some names before the others."""
    names = [name for name in first if name in values]
    ordered = {name: values[name] for name in [*names, *(name for name in values if name not in names)]}
    return yaml.safe_dump(
        ordered, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True
    ).strip()
