"""Coloured graphs up to isomorphism: canonical form, exact equality, number of automorphisms."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import factorial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from gflownet.graphs.node_link import objects_under
from gflownet.operations.values import checked_int, shown

if TYPE_CHECKING:
    import networkx


# A cell is identified by its start: the number of nodes in the cells before it. That is also the colour of its nodes.
Cells = dict[int, set[int]]  # start -> nodes; cells of one node are left out


@dataclass(frozen=True)
class Adjacency:
    """A simple graph with labels that isomorphisms preserve."""

    colours: list[Any]  # [n] sortable; isomorphic graphs have the same ones
    neighbours: list[dict[int, int]]  # [n] neighbour -> label of the pair, from the view of this node


@dataclass
class Partition:
    """An ordered partition of the nodes into cells of one colour each."""

    colours: list[int]  # [n] start of the node's cell
    cells: Cells

    @classmethod
    def initial(cls, graph: Adjacency) -> Partition:
        """Return the refined partition by node colours."""
        nodes_of: dict[Any, list[int]] = {}
        for node, colour in enumerate(graph.colours):
            nodes_of.setdefault(colour, []).append(node)
        partition, start = cls([0] * len(graph.colours), {}), 0
        for colour in sorted(nodes_of):
            nodes = nodes_of[colour]
            for node in nodes:
                partition.colours[node] = start
            if len(nodes) > 1:
                partition.cells[start] = set(nodes)
            start += len(nodes)
        partition.refine(graph, list(range(len(graph.colours))))
        return partition

    def individualised(self, graph: Adjacency, node: int) -> tuple[Partition, int]:
        """Return the refined partition with the node moved to a cell at the end of its cell, twins ordered.

        The second result is the number of orders of the twins (`order_twins`).
        """
        partition = Partition(self.colours.copy(), {start: cell.copy() for start, cell in self.cells.items()})
        partition._split(self.colours[node], {(0,): [node]})
        partition.refine(graph, [node])
        return partition, partition.order_twins(graph) if partition.cells else 1

    def refine(self, graph: Adjacency, changed: list[int]) -> None:
        """Split cells until nodes of one cell have the same colours as neighbours under the same labels.

        `changed` are the nodes with a new colour since that last held. They alone are visited: nodes that agreed on
        the old colours and agree on the new ones agree on the remaining old ones.
        """
        colours, cells, num_nodes = self.colours, self.cells, len(self.colours)
        while changed and cells:
            signatures_of: dict[int, list[int]] = {}
            for node in changed:
                colour = colours[node]
                for neighbour, label in graph.neighbours[node].items():
                    if colours[neighbour] in cells:
                        signatures_of.setdefault(neighbour, []).append(label * num_nodes + colour)
            touched: dict[int, dict[tuple[int, ...], list[int]]] = {}
            for node, signature in signatures_of.items():
                groups = touched.setdefault(colours[node], {})
                groups.setdefault(tuple(sorted(signature)), []).append(node)
            changed = []
            for start in sorted(touched):
                changed += self._split(start, touched[start])

    def order_twins(self, graph: Adjacency) -> int:
        """Fix any order within cells of pairwise interchangeable nodes; return the number of such orders.

        This splits no other cell: every other node has the same label to all of them.
        """
        orders = 1
        for start, cell in list(self.cells.items()):
            first = min(cell)
            if all(_are_twins(graph, first, other) for other in cell if other != first):
                orders *= factorial(len(cell))
                for offset, node in enumerate(cell):
                    self.colours[node] = start + offset
                del self.cells[start]
        return orders

    def shape(self) -> list[tuple[int, int]]:
        """Return starts and sizes of the cells, equal for isomorphic partitions."""
        return sorted((start, len(cell)) for start, cell in self.cells.items())

    def first_cell(self) -> list[int]:
        """Return the nodes of the first cell of several nodes, ascending."""
        return sorted(self.cells[min(self.cells)])

    def _split(self, start: int, groups: dict[tuple[int, ...], list[int]]) -> list[int]:
        """Split a cell into its ungrouped nodes and the groups, large groups first, then by signature.

        The first part keeps the cell's colour; the nodes of the others are returned. The time does not grow with the
        number of ungrouped nodes, because long chains lose one node at a time.
        """
        cell = self.cells[start]
        signatures = list(groups)
        if len(signatures) > 1:
            signatures.sort(key=lambda signature: (-len(groups[signature]), signature))
        if len(groups[signatures[0]]) == len(cell):
            return []
        for signature in signatures:
            cell.difference_update(groups[signature])
        colour, changed = start + len(cell), []
        if len(cell) < 2:
            del self.cells[start]
        for signature in signatures:
            group = groups[signature]
            if len(group) > 1:
                self.cells[colour] = set(group)
            if colour != start:
                for node in group:
                    self.colours[node] = colour
                changed += group
            colour += len(group)
        return changed


def canonical_labelling(graph: Adjacency) -> tuple[list[int], int]:
    """Return the canonical position of every node [n] and the number of automorphisms."""
    partition = Partition.initial(graph)
    orders = partition.order_twins(graph)
    position, num_automorphisms = _best_leaf(graph, partition)
    return position, num_automorphisms * orders


def _are_twins(graph: Adjacency, node: int, other: int) -> bool:
    """Return whether swapping two nodes of one cell, and nothing else, is an automorphism.

    Nodes of one cell have equally many neighbours under each label. If both have the same labels to all third nodes,
    one label is left over for either, so the pair looks the same from both ends, too.
    """
    labels = graph.neighbours[other]
    return all(labels.get(third) == label for third, label in graph.neighbours[node].items() if third != other)


def _best_leaf(graph: Adjacency, partition: Partition) -> tuple[list[int], int]:
    """Return the positions with the least certificate below a partition and its number of automorphisms."""
    if not partition.cells:
        return partition.colours, 1
    positions = []
    num_automorphisms = 0
    for orbit_size, child, orders in _branches(graph, partition):
        position, num_below = _best_leaf(graph, child)
        positions.append(position)
        # Orbit and stabiliser: for every branch the product is the order of the same group.
        num_automorphisms = orbit_size * orders * num_below
    if len(positions) == 1:
        return positions[0], num_automorphisms
    return min(positions, key=lambda position: _certificate(graph, position)), num_automorphisms


def _certificate(graph: Adjacency, position: list[int]) -> list[tuple[int, int, int]]:
    """Return the relabelled edges: (position, neighbour's position, label), ascending."""
    return sorted(
        (position[node], position[neighbour], label)
        for node, neighbours in enumerate(graph.neighbours)
        for neighbour, label in neighbours.items()
    )


def _branches(graph: Adjacency, partition: Partition) -> list[tuple[int, Partition, int]]:
    """Return one branch per orbit of the first cell: size of the orbit, refined partition, orders of its twins."""
    cell = partition.first_cell()
    parent = {node: node for node in cell}

    def root(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    branches: dict[int, tuple[Partition, int]] = {}
    for node in cell:
        if root(node) != node:
            continue
        child, orders = partition.individualised(graph, node)
        mappings = (_automorphism(graph, earlier, child) for earlier, _ in branches.values())
        mapping = next((mapping for mapping in mappings if mapping is not None), None)
        if mapping is None:
            branches[node] = child, orders
            continue
        # The powers of one automorphism put whole cycles into one orbit; its least node, which branches, is the root.
        for member in cell:
            first, second = sorted((root(member), root(mapping[member])))
            parent[second] = first
    sizes = Counter(root(node) for node in cell)
    return [(sizes[node], child, orders) for node, (child, orders) in branches.items()]


def _automorphism(graph: Adjacency, left: Partition, right: Partition) -> list[int] | None:
    """Return an automorphism [n] that maps the left partition onto the right one, None if there is none."""
    if left.shape() != right.shape():
        return None
    if not left.cells:
        node_at = {position: node for node, position in enumerate(right.colours)}
        mapping = [node_at[position] for position in left.colours]
        return mapping if _is_automorphism(graph, mapping) else None
    deeper, _ = left.individualised(graph, left.first_cell()[0])
    for node in right.cells[min(right.cells)]:
        mapping = _automorphism(graph, deeper, right.individualised(graph, node)[0])
        if mapping is not None:
            return mapping
    return None


def _is_automorphism(graph: Adjacency, mapping: list[int]) -> bool:
    """Return whether a permutation that keeps node colours also keeps all labels."""
    for node, neighbours in enumerate(graph.neighbours):
        image = graph.neighbours[mapping[node]]
        if len(image) != len(neighbours):
            return False
        if any(image.get(mapping[neighbour]) != label for neighbour, label in neighbours.items()):
            return False
    return True


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
