"""A value for each of several named places: the terminal objects of environments without edges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gflownet.graphs.canonical import versioned_hash
from gflownet.graphs.elements import checked_int
from gflownet.graphs.node_link import objects_under

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
