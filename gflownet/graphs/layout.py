"""Layered layout of a computation graph: columns from left to right, no edge through a box.

An edge that skips columns owns a lane in each of them; lanes and boxes of a column are stacked without overlap, and
curves run in the gaps between columns only. Columns follow the longest path, the order within a column comes from
barycentre sweeps (Sugiyama, Tagawa and Toda, 1981), positions from least squares under that order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from gflownet.graphs.elements import Edge, NodeType
from gflownet.graphs.ordering import followed_edges, sorted_prefix

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph

BOX_GAP = 20.0  # pixels between boxes of a column
LANE_GAP = 14.0  # pixels between an edge's lane and what is above or below it
NUM_ORDER_SWEEPS = 12
NUM_POSITION_SWEEPS = 12
# Long edges are to be straight: the links between two lanes pull more than links to a box.
LANE_PULL = 8.0


@dataclass(eq=False)
class Slot:
    """A place in a column: a node's box, or the lane of an edge that passes by."""

    column: int
    height: float
    is_lane: bool
    y: float = 0.0  # centre
    left: list[Slot] = field(default_factory=list)  # what it is linked to in the column before
    right: list[Slot] = field(default_factory=list)  # and in the column after
    beside: list[Slot] = field(default_factory=list)  # and in its own: the box that a lane of a backward edge turns to


@dataclass(frozen=True)
class Layout:
    """Where everything goes, vertically; columns count from the left."""

    boxes: Mapping[int, Slot]  # by node id
    lanes: Mapping[int, list[Slot]]  # by edge id, from source to target
    backward: frozenset[int]  # edge ids that run from right to left
    columns: list[list[Slot]]  # from top to bottom


def layered_layout(graph: ComputationGraph, heights: Mapping[int, float]) -> Layout:
    """The layout of all nodes, given the heights of their boxes, and of all edges between them; y starts at 0."""
    column_of = _columns_of(graph)
    boxes = {node_id: Slot(column_of[node_id], heights[node_id], False) for node_id in sorted(graph.nodes)}
    lanes: dict[int, list[Slot]] = {}
    backward = set()
    for edge_id, edge in sorted(graph.edges.items()):
        if edge.source in boxes and edge.target in boxes:
            lanes[edge_id] = _linked_lanes(boxes[edge.source], boxes[edge.target])
            if column_of[edge.source] >= column_of[edge.target]:
                backward.add(edge_id)
    columns: list[list[Slot]] = [[] for _ in range(max(column_of.values(), default=-1) + 1)]
    for slot in (*boxes.values(), *(lane for of_edge in lanes.values() for lane in of_edge)):
        columns[slot.column].append(slot)
    columns = _ordered(columns)
    _position(columns)
    return Layout(boxes, lanes, frozenset(backward), columns)


def _columns_of(graph: ComputationGraph) -> dict[int, int]:
    """Node id to column: after everything it reads, and free nodes next to what reads them; outputs come last."""
    closing = set(graph.detect_cycles())
    edges = [edge for edge in followed_edges(graph, ignore_recurrent=True) if edge.edge_id not in closing]
    order = sorted_prefix(graph.nodes, edges)
    ahead: dict[int, list[Edge]] = {node_id: [] for node_id in order}
    for edge in edges:
        ahead[edge.source].append(edge)
    column = dict.fromkeys(order, 0)
    fed = set()
    for node_id in order:
        for edge in ahead[node_id]:
            column[edge.target] = max(column[edge.target], column[node_id] + 1)
            fed.add(edge.target)
    last = max(column.values(), default=0)
    for node_id in reversed(order):
        node_type = graph.nodes[node_id].node_type
        if node_type is NodeType.OUTPUT and not ahead[node_id]:
            column[node_id] = last
        elif node_type is NodeType.HIDDEN and node_id not in fed and ahead[node_id]:
            column[node_id] = max(0, min(column[edge.target] for edge in ahead[node_id]) - 1)
    return column


def _linked_lanes(source: Slot, target: Slot) -> list[Slot]:
    """The lanes of an edge from source to target, linked to one another and to the boxes."""
    if source.column < target.column:
        lanes = [Slot(column, 0.0, True) for column in range(source.column + 1, target.column)]
        path = [source, *lanes, target]
    else:
        # A backward edge turns round beside its source, passes it, and turns round again beside its target.
        lanes = [Slot(column, 0.0, True) for column in range(source.column, target.column - 1, -1)]
        path = lanes[::-1]
        lanes[0].beside.append(source)
        lanes[-1].beside.append(target)
    for first, second in pairwise(path):
        first.right.append(second)
        second.left.append(first)
    return lanes


def _ordered(columns: list[list[Slot]]) -> list[list[Slot]]:
    """The columns in the order with the fewest crossings that the sweeps came across."""
    best, fewest = [column.copy() for column in columns], _num_crossings(columns)
    for sweep in range(NUM_ORDER_SWEEPS):
        leftwards = sweep % 2 == 1
        for column in reversed(columns) if leftwards else columns:
            _sort_by_links(column, columns, leftwards=leftwards)
        crossings = _num_crossings(columns)
        if crossings < fewest:
            best, fewest = [column.copy() for column in columns], crossings
    return best


def _sort_by_links(column: list[Slot], columns: list[list[Slot]], *, leftwards: bool) -> None:
    """Sort a column by the mean relative height of what its slots are linked to on one side."""
    index = column[0].column
    around = [c for c in (index - 1, index, index + 1) if 0 <= c < len(columns)]
    height = {slot: (rank + 0.5) / len(columns[c]) for c in around for rank, slot in enumerate(columns[c])}
    # Half a place below the box, so that the lane of a backward edge settles under it.
    below = 0.5 / len(column)

    def mean_height(slot: Slot) -> float:
        linked = [height[other] for other in (slot.right if leftwards else slot.left)]
        linked += [height[box] + below for box in slot.beside]
        return sum(linked) / len(linked) if linked else height[slot]

    column.sort(key=mean_height)


def _num_crossings(columns: list[list[Slot]]) -> int:
    """Pairs of links that cross, plus the boxes that backward edges have to pass on the way to their lane."""
    crossings = 0
    for column, following in pairwise(columns):
        rank = {slot: place for place, slot in enumerate(following)}
        passed: list[int] = []
        for slot in column:
            for place in sorted(rank[other] for other in slot.right):
                crossings += len(passed) - bisect_right(passed, place)
                insort(passed, place)
    for column in columns:
        rank = {slot: place for place, slot in enumerate(column)}
        crossings += sum(abs(rank[slot] - rank[box]) - 1 for slot in column for box in slot.beside)
    return crossings


def _position(columns: list[list[Slot]]) -> None:
    """Set every y, so that slots lie level with what they are linked to as far as their order allows."""
    for column in columns:
        _place(column, [0.0] * len(column))
    for sweep in range(NUM_POSITION_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            _place(column, [_pulled_to(slot) for slot in column])
    top = min((slot.y - slot.height / 2 for column in columns for slot in column), default=0.0)
    for column in columns:
        for slot in column:
            slot.y -= top


def _pulled_to(slot: Slot) -> float:
    pulls = [(other.y, LANE_PULL if slot.is_lane and other.is_lane else 1.0) for other in (*slot.left, *slot.right)]
    pulls += [(box.y, 1.0) for box in slot.beside]
    weight = sum(pull for _, pull in pulls)
    return sum(y * pull for y, pull in pulls) / weight if pulls else slot.y


def _place(column: list[Slot], wanted: list[float]) -> None:
    """Move the slots as close to the wanted places as order and gaps allow: least squares, by pooling neighbours."""
    offset = 0.0
    offsets: list[float] = []
    for slot, above in zip(column, [None, *column], strict=False):
        if above is not None:
            gap = LANE_GAP if slot.is_lane or above.is_lane else BOX_GAP
            offset += (slot.height + above.height) / 2 + gap
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # (mean, number of slots), means ascending
    for want, slot_offset in zip(wanted, offsets, strict=True):
        mean, count = want - slot_offset, 1
        while pools and pools[-1][0] > mean:
            pooled, size = pools.pop()
            mean, count = (mean * count + pooled * size) / (count + size), count + size
        pools.append((mean, count))
    settled = (mean for mean, count in pools for _ in range(count))
    for slot, slot_offset, mean in zip(column, offsets, settled, strict=True):
        slot.y = mean + slot_offset
