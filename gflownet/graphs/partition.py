"""Ordered partitions of a graph's nodes: refinement, orbits, and the canonical labelling found by searching them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import factorial
from typing import Any

# A cell is known by its start: the number of nodes in the cells before it. That is also the colour of its nodes.
Cells = dict[int, set[int]]  # start -> nodes, cells of two nodes or more only


@dataclass(frozen=True)
class Adjacency:
    """A simple graph whose labels are invariant under isomorphism."""

    colours: list[Any]  # [n] sortable; isomorphic graphs have the same ones
    neighbours: list[dict[int, int]]  # [n] neighbour -> label of the pair, seen from this node


@dataclass(frozen=True)
class Labelling:
    """Where each node goes, so that isomorphic graphs land on one graph."""

    position: list[int]  # [n]
    num_automorphisms: int


@dataclass
class Partition:
    """An ordered partition; nodes of one cell have one colour."""

    colours: list[int]  # [n] start of the node's cell
    cells: Cells

    def individualised(self, graph: Adjacency, node: int) -> Partition:
        """The refined partition in which the node has left its cell for a cell of its own at the end of it."""
        partition = Partition(self.colours.copy(), {start: cell.copy() for start, cell in self.cells.items()})
        partition._split(self.colours[node], {(0,): [node]})
        partition.refine(graph, [node])
        return partition

    def refine(self, graph: Adjacency, changed: list[int]) -> None:
        """Split cells until nodes of one cell see the same colours under the same labels.

        `changed` are the nodes whose colour is new since that last held. Looking at them alone is enough: nodes that
        agreed on the old colours and agree on the new ones agree on what is left of the old.
        """
        colours, cells, neighbours = self.colours, self.cells, graph.neighbours
        num_nodes = len(colours)
        while changed and cells:
            seen: dict[int, list[int]] = {}
            for node in changed:
                colour = colours[node]
                for neighbour, label in neighbours[node].items():
                    if colours[neighbour] in cells:
                        seen.setdefault(neighbour, []).append(label * num_nodes + colour)
            touched: dict[int, dict[tuple[int, ...], list[int]]] = {}
            for node, signature in seen.items():
                groups = touched.setdefault(colours[node], {})
                groups.setdefault(tuple(sorted(signature)), []).append(node)
            changed = []
            for start in sorted(touched):
                changed += self._split(start, touched[start])

    def _split(self, start: int, groups: dict[tuple[int, ...], list[int]]) -> list[int]:
        """Part a cell into what no group holds and the groups, large ones first, then by signature.

        The first part keeps the cell's colour, the nodes of the others are returned. Nothing here takes time in
        proportion to what is left of the cell: long chains lose one node at a time.
        """
        cell = self.cells[start]
        signatures = list(groups)
        if len(signatures) > 1:
            signatures.sort(key=lambda signature: (-len(groups[signature]), signature))
        if len(groups[signatures[0]]) == len(cell):
            return []
        changed: list[int] = []
        for signature in signatures:
            cell.difference_update(groups[signature])
        colour = start + len(cell)
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

    def shape(self) -> list[tuple[int, int]]:
        """Starts and sizes of the cells, which isomorphic partitions share."""
        return sorted((start, len(cell)) for start, cell in self.cells.items())


def canonical_labelling(graph: Adjacency) -> Labelling:
    """The canonical position of every node, and the number of automorphisms."""
    partition = _first_partition(graph)
    orders = _settle_twins(graph, partition)
    position, num_automorphisms = _best_leaf(graph, partition)
    return Labelling(position, num_automorphisms * orders)


def _first_partition(graph: Adjacency) -> Partition:
    groups: dict[Any, list[int]] = {}
    for node, colour in enumerate(graph.colours):
        groups.setdefault(colour, []).append(node)
    colours = [0] * len(graph.colours)
    cells: Cells = {}
    start = 0
    for colour in sorted(groups):
        group = groups[colour]
        for node in group:
            colours[node] = start
        if len(group) > 1:
            cells[start] = set(group)
        start += len(group)
    partition = Partition(colours, cells)
    partition.refine(graph, list(range(len(colours))))
    return partition


def _settle_twins(graph: Adjacency, partition: Partition) -> int:
    """Put the nodes of cells in which all are interchangeable in any order; return the number of such orders.

    Nothing else is split by that: every other node sees all of them alike.
    """
    orders = 1
    for start, cell in list(partition.cells.items()):
        first = min(cell)
        if all(_are_twins(graph, first, other) for other in cell if other != first):
            orders *= factorial(len(cell))
            for offset, node in enumerate(cell):
                partition.colours[node] = start + offset
            del partition.cells[start]
    return orders


def _are_twins(graph: Adjacency, node: int, other: int) -> bool:
    """Whether swapping two nodes of one cell, and nothing else, is an automorphism.

    Nodes of one cell see equally many neighbours under each label. So whoever looks alike from both of them leaves one
    label over on either side, and the pair looks alike from both ends, too.
    """
    theirs = graph.neighbours[other]
    return all(theirs.get(third) == label for third, label in graph.neighbours[node].items() if third != other)


def _best_leaf(graph: Adjacency, partition: Partition) -> tuple[list[int], int]:
    """The positions with the least certificate below a partition, and the number of automorphisms that keep it."""
    if not partition.cells:
        return partition.colours, 1
    positions = []
    num_automorphisms = 0
    for orbit_size, child, orders in _branches(graph, partition):
        position, found = _best_leaf(graph, child)
        positions.append(position)
        # Orbit and stabiliser: whichever branch is taken, the product is the order of the same group.
        num_automorphisms = orbit_size * orders * found
    if len(positions) == 1:
        return positions[0], num_automorphisms
    return min(positions, key=lambda position: _certificate(graph, position)), num_automorphisms


def _individualised(graph: Adjacency, partition: Partition, node: int) -> tuple[Partition, int]:
    """The refined partition with the node on its own and twins settled, and the number of orders of the twins."""
    child = partition.individualised(graph, node)
    return child, _settle_twins(graph, child) if child.cells else 1


def _certificate(graph: Adjacency, position: list[int]) -> list[tuple[int, int, int]]:
    """The graph as it looks after the nodes have moved: (position, neighbour's position, label), ascending."""
    return sorted(
        (position[node], position[neighbour], label)
        for node, neighbours in enumerate(graph.neighbours)
        for neighbour, label in neighbours.items()
    )


def _branches(graph: Adjacency, partition: Partition) -> list[tuple[int, Partition, int]]:
    """One branch per orbit of the first cell: the orbit's size, the partition below it, the orders of its twins."""
    cell = sorted(partition.cells[min(partition.cells)])
    parent = {node: node for node in cell}

    def root(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    branches: dict[int, tuple[Partition, int]] = {}
    for node in cell:
        if root(node) != node:
            continue
        child, orders = _individualised(graph, partition, node)
        found = (_automorphism(graph, known, child) for known, _ in branches.values())
        mapping = next((mapping for mapping in found if mapping is not None), None)
        if mapping is None:
            branches[node] = child, orders
            continue
        # The powers of one automorphism put whole cycles into one orbit; the least node, which branches, leads it.
        for member in cell:
            first, second = sorted((root(member), root(mapping[member])))
            parent[second] = first
    sizes = Counter(root(node) for node in cell)
    return [(sizes[node], child, orders) for node, (child, orders) in branches.items()]


def _automorphism(graph: Adjacency, left: Partition, right: Partition) -> list[int] | None:
    """An automorphism [n] that maps the left partition onto the right one, if there is any; twins are settled."""
    if left.shape() != right.shape():
        return None
    if not left.cells:
        node_at = {position: node for node, position in enumerate(right.colours)}
        mapping = [node_at[position] for position in left.colours]
        return mapping if _is_automorphism(graph, mapping) else None
    start = min(left.cells)
    deeper, _ = _individualised(graph, left, min(left.cells[start]))
    for node in right.cells[start]:
        mapping = _automorphism(graph, deeper, _individualised(graph, right, node)[0])
        if mapping is not None:
            return mapping
    return None


def _is_automorphism(graph: Adjacency, mapping: list[int]) -> bool:
    """Whether a permutation that keeps node colours keeps the labels, too."""
    for node, neighbours in enumerate(graph.neighbours):
        image = graph.neighbours[mapping[node]]
        if len(image) != len(neighbours):
            return False
        if any(image.get(mapping[neighbour]) != label for neighbour, label in neighbours.items()):
            return False
    return True
