"""Coloured graphs up to isomorphism: canonical form, exact equality, number of automorphisms.

An ordered partition of the nodes is refined until nodes of one cell see the same colours; while a cell has several
nodes, one is individualised (McKay, Practical graph isomorphism, 1981). Branches that an automorphism maps onto one
another are taken once, so the same search yields the order of the automorphism group by orbit and stabiliser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gflownet.graphs.elements import checked_int, shown
from gflownet.graphs.node_link import objects_under
from gflownet.graphs.partition import Adjacency, canonical_labelling

if TYPE_CHECKING:
    import networkx

# Part of every hash: change it whenever the text of a key changes, so that stored hashes are never mixed.
HASH_VERSION = "g1"


@dataclass(frozen=True)
class CanonicalForm:
    """What isomorphic graphs share, and how one graph maps onto it."""

    key: str  # JSON text, equal iff the graphs are isomorphic
    order: tuple[int, ...]  # the graph's nodes in canonical order
    num_automorphisms: int

    @cached_property
    def hash(self) -> str:
        """Version and sha256 of the key."""
        return f"{HASH_VERSION}-{sha256(self.key.encode()).hexdigest()}"


@dataclass(frozen=True, eq=False)
class ColouredGraph:
    """A simple graph with coloured nodes 0 .. n-1 and coloured edges; equal to another iff they are isomorphic.

    Self-loops are allowed. An undirected edge may be given from either end, but once.
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
        """The canonical form, computed once."""
        return self._form

    def canonical_key(self) -> str:
        """A JSON text that two graphs share iff they are isomorphic."""
        return self._form.key

    def canonical_hash(self) -> str:
        """A versioned sha256 of the key: a bucket, never an identity."""
        return self._form.hash

    def num_automorphisms(self) -> int:
        """The number of node permutations that keep every colour and every edge."""
        return self._form.num_automorphisms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColouredGraph):
            return NotImplemented
        return self.canonical_key() == other.canonical_key()

    def __hash__(self) -> int:
        return hash(self.canonical_key())

    def __reduce__(self) -> tuple[Any, ...]:
        return ColouredGraph, (self.node_colours, dict(self.edge_colours), self.directed)

    def to_dict(self) -> dict[str, Any]:
        """The graph in networkx's node-link form, colours under "colour"."""
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
        """The graph that to_dict described; nodes may come in any order. Raises ValueError for data of another form."""
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

    def to_networkx(self) -> networkx.Graph | networkx.DiGraph:
        """The graph as networkx's class, with "colour" as node and edge data."""
        from networkx import node_link_graph

        return node_link_graph(self.to_dict(), edges="edges")

    @cached_property
    def _form(self) -> CanonicalForm:
        labelling = canonical_labelling(self._adjacency())
        position = labelling.position
        order = sorted(range(len(position)), key=position.__getitem__)
        edges = []
        for (source, target), colour in self.edge_colours.items():
            first, second = position[source], position[target]
            if second < first and not self.directed:
                first, second = second, first
            edges.append((first, second, colour))
        edges.sort()
        key = json.dumps([self.directed, [self.node_colours[node] for node in order], edges], separators=(",", ":"))
        return CanonicalForm(key, tuple(order), labelling.num_automorphisms)

    def _adjacency(self) -> Adjacency:
        """The graph with its colours ranked, loops as part of the node's colour, both directions in one label."""
        rank_of = {colour: rank for rank, colour in enumerate(sorted(set(self.edge_colours.values())), start=1)}
        base = len(rank_of) + 1
        loops = [0] * len(self.node_colours)
        neighbours: list[dict[int, int]] = [{} for _ in self.node_colours]
        for (source, target), colour in self.edge_colours.items():
            rank = rank_of[colour]
            if source == target:
                loops[source] = rank
            else:
                outward = neighbours[source]
                inward = neighbours[target]
                outward[target] = outward.get(target, 0) + rank * base
                inward[source] = inward.get(source, 0) + (rank if self.directed else rank * base)
        return Adjacency(list(zip(self.node_colours, loops, strict=True)), neighbours)
