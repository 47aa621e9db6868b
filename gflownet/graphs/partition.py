"""Canonical labelling and automorphism count of one coloured graph, by refining ordered partitions of its nodes.

A partition is refined until nodes of one cell have the same coloured neighbours; while a cell has several nodes, one
of them is individualised (McKay, Practical graph isomorphism, 1981). Of branches that an automorphism maps onto one
another only one is searched, so the same search yields the order of the automorphism group by orbit and stabiliser.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import factorial
from typing import Any

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
