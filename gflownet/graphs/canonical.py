"""Coloured graphs up to isomorphism: canonical form, exact equality, number of automorphisms."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from gflownet.graphs.node_link import objects_under
from gflownet.graphs.partition import Adjacency, canonical_labelling
from gflownet.operations.values import checked_int, shown

if TYPE_CHECKING:
    import networkx

# Part of every hash: change it whenever the text of a key changes, so that stored hashes are never mixed.
HASH_VERSION = "g1"


class Candidate(Protocol):
    """A terminal object with an exact identity, as evaluators and stores use it."""

    def canonical_key(self) -> str:
        """Return a text that two objects share iff they are equal up to interchangeable nodes."""
        ...

    def canonical_hash(self) -> str:
        """Return a short digest of the key. Two keys may share it."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the object as a graph in networkx's node-link form."""
        ...


def versioned_hash(version: str, key: str) -> str:
    """Return a canonical hash: the version of the key's format and the sha256 of the key."""
    return f"{version}-{sha256(key.encode()).hexdigest()}"


@dataclass(frozen=True)
class CanonicalForm:
    """The identity of a graph up to isomorphism, and a map of its nodes onto it."""

    key: str  # JSON text, equal iff the graphs are isomorphic
    order: tuple[int, ...]  # the graph's nodes in canonical order
    num_automorphisms: int

    @cached_property
    def hash(self) -> str:
        """Version and sha256 of the key."""
        return versioned_hash(HASH_VERSION, self.key)


class EqualUpToIsomorphism(ABC):
    """Base of graphs that are equal iff they have the same canonical key."""

    @abstractmethod
    def canonical_form(self) -> CanonicalForm:
        """Return the canonical form, computed once."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the graph in networkx's node-link form."""

    def to_networkx(self) -> networkx.Graph | networkx.DiGraph | networkx.MultiDiGraph:
        """Return the graph as networkx's class; the fields of `to_dict` are its node and edge data."""
        from networkx import node_link_graph

        return node_link_graph(self.to_dict(), edges="edges")

    def canonical_key(self) -> str:
        """Return a JSON text that two graphs share iff they are isomorphic."""
        return self.canonical_form().key

    def canonical_hash(self) -> str:
        """Return a versioned sha256 of the key. Two keys may share it."""
        return self.canonical_form().hash

    def num_automorphisms(self) -> int:
        """Return the number of permutations of interchangeable nodes that keep the graph unchanged."""
        return self.canonical_form().num_automorphisms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.canonical_key() == other.canonical_key()

    def __hash__(self) -> int:
        return hash(self.canonical_key())


@dataclass(frozen=True, eq=False)
class ColouredGraph(EqualUpToIsomorphism):
    """A simple graph with coloured nodes 0 .. n-1 and coloured edges; equal to another iff they are isomorphic.

    Self-loops are allowed. An undirected edge may be given from either end, but only once.

    Raises:
        ValueError: an edge has an end that is not a node, or an undirected edge is given twice.
    """

    node_colours: tuple[str, ...]
    edge_colours: Mapping[tuple[int, int], str]
    directed: bool = True

    def __post_init__(self) -> None:
        num_nodes = len(self.node_colours)
        for source, target in self.edge_colours:
            if not (0 <= source < num_nodes and 0 <= target < num_nodes):
                raise ValueError(f"edge ({source}, {target}): expected nodes below {num_nodes}")
            if not self.directed and source != target and (target, source) in self.edge_colours:
                raise ValueError(f"edge ({source}, {target}): expected an undirected edge once, got both directions")
        object.__setattr__(self, "edge_colours", MappingProxyType(dict(self.edge_colours)))

    def canonical_form(self) -> CanonicalForm:
        """Return the canonical form, computed once."""
        return self._form

    def __reduce__(self) -> tuple[Any, ...]:
        return ColouredGraph, (self.node_colours, dict(self.edge_colours), self.directed)

    def to_dict(self) -> dict[str, Any]:
        """Return the graph in networkx's node-link form, colours under "colour"."""
        return {
            "directed": self.directed,
            "multigraph": False,
            "graph": {},
            "nodes": [{"id": node, "colour": colour} for node, colour in enumerate(self.node_colours)],
            "edges": [
                {"source": source, "target": target, "colour": colour}
                for (source, target), colour in sorted(self.edge_colours.items())
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ColouredGraph:
        """Return the graph of a `to_dict`; nodes may come in any order. Raises ValueError for data of another form."""
        nodes = objects_under(data, "nodes", ("id", "colour"))
        colours = {checked_int(node["id"], "nodes", "id"): node["colour"] for node in nodes}
        if sorted(colours) != list(range(len(nodes))):
            raise ValueError(f"expected node ids 0 .. {len(nodes) - 1}, got {shown(sorted(colours))}")
        edges = {
            (checked_int(edge["source"], "edges", "source"), checked_int(edge["target"], "edges", "target")): edge[
                "colour"
            ]
            for edge in objects_under(data, "edges", ("source", "target", "colour"))
        }
        for colour in (*colours.values(), *edges.values()):
            if not isinstance(colour, str):
                raise ValueError(f"expected colours of type str, got {shown(colour)}")
        return cls(tuple(colours[node] for node in range(len(colours))), edges, bool(data.get("directed", True)))

    @cached_property
    def _form(self) -> CanonicalForm:
        position, num_automorphisms = canonical_labelling(self._adjacency())
        order = sorted(range(len(position)), key=position.__getitem__)
        edges = []
        for (source, target), colour in self.edge_colours.items():
            first, second = position[source], position[target]
            if second < first and not self.directed:
                first, second = second, first
            edges.append((first, second, colour))
        edges.sort()
        key = json.dumps([self.directed, [self.node_colours[node] for node in order], edges], separators=(",", ":"))
        return CanonicalForm(key, tuple(order), num_automorphisms)

    def _adjacency(self) -> Adjacency:
        """Return the graph with ranked colours; loops count to the node, both directions of a pair to one label."""
        rank_of = {colour: rank for rank, colour in enumerate(sorted(set(self.edge_colours.values())), start=1)}
        base = len(rank_of) + 1
        loops = [0] * len(self.node_colours)
        neighbours: list[dict[int, int]] = [{} for _ in self.node_colours]
        for (source, target), colour in self.edge_colours.items():
            rank = rank_of[colour]
            if source == target:
                loops[source] = rank
                continue
            outward, inward = neighbours[source], neighbours[target]
            outward[target] = outward.get(target, 0) + rank * base
            inward[source] = inward.get(source, 0) + (rank if self.directed else rank * base)
        return Adjacency(list(zip(self.node_colours, loops, strict=True)), neighbours)
