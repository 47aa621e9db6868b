"""Where the boxes of a picture of a tensor graph go: columns from left to right, few crossings within them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gflownet.autodiff.nodes import LeafNode, Node

NUM_SWEEPS = 8  # of the ordering; it changes little after four

# A node, or where an edge (source, user) passes a column in between.
Slot = Node | tuple[Node, Node, int]


def columns_of(nodes: Sequence[Node]) -> list[list[Slot]]:
    """Return the slots of each column from top to bottom.

    A node is right of all its operands, a leaf one column left of its first use.

    Args:
        nodes: each after its inputs.
    """
    depths = _depths(nodes)
    columns: list[list[Slot]] = [[] for _ in range(1 + max(depths.values()))]
    neighbours: dict[Slot, list[Slot]] = {}
    for node in nodes:
        columns[depths[node]].append(node)
        for source in dict.fromkeys(node.inputs):
            path = path_of(source, node, depths)
            for slot in path[1:-1]:
                assert isinstance(slot, tuple), slot
                columns[slot[2]].append(slot)
            for before, after in pairwise(path):
                neighbours.setdefault(before, []).append(after)
                neighbours.setdefault(after, []).append(before)
    for sweep in range(NUM_SWEEPS):
        _sweep(columns, neighbours, step=1 if sweep % 2 == 0 else -1)
    return columns


def path_of(source: Node, user: Node, depths: Mapping[Node, int]) -> list[Slot]:
    """Return the slots of an edge, one per column."""
    return [source, *((source, user, column) for column in range(depths[source] + 1, depths[user])), user]


def _depths(nodes: Sequence[Node]) -> dict[Node, int]:
    depths: dict[Node, int] = {}
    first_uses: dict[Node, int] = {}
    for node in nodes:
        depths[node] = 1 + max((depths[source] for source in node.inputs), default=-1)
        for source in node.inputs:
            first_uses[source] = min(depths[node], first_uses.get(source, depths[node]))
    return {
        node: first_uses[node] - 1 if isinstance(node, LeafNode) and node in first_uses else depth
        for node, depth in depths.items()
    }


def _sweep(columns: list[list[Slot]], neighbours: Mapping[Slot, Sequence[Slot]], *, step: int) -> None:
    """Order each column by where the neighbours in the column before are on average (barycentres)."""
    numbers = range(1, len(columns)) if step == 1 else range(len(columns) - 2, -1, -1)
    for number in numbers:
        before, column = columns[number - step], columns[number]
        places = {slot: place / max(1, len(before) - 1) for place, slot in enumerate(before)}

        def wanted(slot: Slot, places: Mapping[Slot, float] = places, column: list[Slot] = column) -> float:
            found = [places[other] for other in neighbours.get(slot, ()) if other in places]
            return sum(found) / len(found) if found else column.index(slot) / max(1, len(column) - 1)

        ranks = {slot: wanted(slot) for slot in column}
        column.sort(key=ranks.__getitem__)
