"""Places in the layers of a graph: order within a layer, and positions across it.

A link that skips layers gets a lane in each of them; nodes and lanes of a layer are placed without overlap, and curves
run in the gaps between layers only, so no link crosses a node. The order comes from barycentre sweeps (Sugiyama, Tagawa
and Toda, 1981), positions from least squares under that order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# Pixels.
BOX_GAP = 20.0  # between nodes of a layer
LANE_GAP = 14.0  # between a lane and its neighbours

NUM_ORDER_SWEEPS = 12
NUM_POSITION_SWEEPS = 12
LANE_PULL = 8.0  # weight of the link between two lanes, against 1 for a link to a node: keeps long links straight


@dataclass(eq=False)
class Slot:
    """A place in a layer: a node, or the lane of a link that passes by."""

    layer: int
    size: float = 0.0  # across the layer
    is_lane: bool = True
    at: float = 0.0  # middle
    before: list[Slot] = field(default_factory=list)  # linked slots of the layer before
    after: list[Slot] = field(default_factory=list)  # linked slots of the layer after
    same: list[Slot] = field(default_factory=list)  # node of the same layer that the lane of a backward link turns to


def linked_lanes(source: Slot, target: Slot) -> list[Slot]:
    """Return the lanes of a link from source to target, connected to one another and to the boxes."""
    if source.layer < target.layer:
        lanes = [Slot(number) for number in range(source.layer + 1, target.layer)]
        path = [source, *lanes, target]
    else:
        # A backward link turns in the layer of its source, passes it, and turns again in the layer of its target.
        lanes = [Slot(number) for number in range(source.layer, target.layer - 1, -1)]
        path = lanes[::-1]
        lanes[0].same.append(source)
        lanes[-1].same.append(target)
    for first, second in pairwise(path):
        first.after.append(second)
        second.before.append(first)
    return lanes


def ordered(layers: list[list[Slot]]) -> list[list[Slot]]:
    """Return the layers in the best order of all sweeps: with the minimum number of crossings."""
    best, min_crossings = [layer.copy() for layer in layers], _num_crossings(layers)
    for sweep in range(NUM_ORDER_SWEEPS):
        is_upward = sweep % 2 == 1
        for layer in reversed(layers) if is_upward else layers:
            _sort_by_links(layer, layers, is_upward=is_upward)
        crossings = _num_crossings(layers)
        if crossings < min_crossings:
            best, min_crossings = [layer.copy() for layer in layers], crossings
    return best


def _sort_by_links(layer: list[Slot], layers: list[list[Slot]], *, is_upward: bool) -> None:
    """Sort a layer by the mean relative rank of the slots linked on one side."""
    index = layer[0].layer
    around = [c for c in (index - 1, index, index + 1) if 0 <= c < len(layers)]
    rank_share = {slot: (rank + 0.5) / len(layers[c]) for c in around for rank, slot in enumerate(layers[c])}
    # Half a place below the box, so that the lane of a backward link settles under it.
    below = 0.5 / len(layer)

    def mean_share(slot: Slot) -> float:
        linked = [rank_share[other] for other in (slot.after if is_upward else slot.before)]
        linked += [rank_share[box] + below for box in slot.same]
        return sum(linked) / len(linked) if linked else rank_share[slot]

    layer.sort(key=mean_share)


def _num_crossings(layers: list[list[Slot]]) -> int:
    """Count pairs of links that cross, plus the boxes that backward links pass on the way to their lane."""
    crossings = 0
    for layer, following in pairwise(layers):
        rank = {slot: place for place, slot in enumerate(following)}
        passed: list[int] = []
        for slot in layer:
            for place in sorted(rank[other] for other in slot.after):
                crossings += len(passed) - bisect_right(passed, place)
                insort(passed, place)
    for layer in layers:
        rank = {slot: place for place, slot in enumerate(layer)}
        crossings += sum(abs(rank[slot] - rank[box]) - 1 for slot in layer for box in slot.same)
    return crossings


def spread(layers: Sequence[list[Slot]], fixed: Mapping[Slot, float], lanes: Sequence[Sequence[Slot]]) -> None:
    """Set the position of every slot: some fixed, the others next to the slots that they are linked to."""
    for layer in layers:
        _settle(layer, [0.0] * len(layer))
    for sweep in range(NUM_POSITION_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            targets = [fixed[slot] if slot in fixed else _mean_linked(slot) for slot in layer]
            _settle(layer, targets)
            for centre in (rank for rank, slot in enumerate(layer) if slot in fixed):
                layer[centre].at = fixed[layer[centre]]
                _push_outwards(layer, centre, targets)
    for _ in range(
        NUM_POSITION_SWEEPS if fixed else 0
    ):  # the lanes of one link: in a straight line, outside of all layers
        for group in (group for group in lanes if group and group[0] not in fixed):
            furthest = max((lane.at for lane in group), key=abs)
            for lane in group:
                lane.at = furthest
        for layer in layers:
            for centre in (rank for rank, slot in enumerate(layer) if slot in fixed):
                _push_outwards(layer, centre, [slot.at for slot in layer])


def _push_outwards(layer: list[Slot], centre: int, targets: list[float]) -> None:
    """Set the positions of the slots on both sides of one: at their targets, or as close as the gaps allow."""
    for rank in range(centre + 1, len(layer)):
        layer[rank].at = max(targets[rank], layer[rank - 1].at + _distance(layer[rank - 1], layer[rank]))
    for rank in range(centre - 1, -1, -1):
        layer[rank].at = min(targets[rank], layer[rank + 1].at - _distance(layer[rank], layer[rank + 1]))


def _distance(first: Slot, second: Slot) -> float:
    return (first.size + second.size) / 2 + (LANE_GAP if first.is_lane or second.is_lane else BOX_GAP)


def _mean_linked(slot: Slot) -> float:
    """Return the mean position of the linked slots; long links pull more."""
    weights = [
        (other.at, LANE_PULL if slot.is_lane and other.is_lane else 1.0) for other in (*slot.before, *slot.after)
    ]
    weights += [(box.at, 1.0) for box in slot.same]
    total = sum(weight for _, weight in weights)
    return sum(at * weight for at, weight in weights) / total if weights else slot.at


def _settle(layer: Sequence[Slot], targets: list[float]) -> None:
    """Move the slots close to the targets under order and gaps: least squares, by pooling neighbours."""
    offset = 0.0
    offsets: list[float] = []
    for slot, neighbour in zip(layer, [None, *layer], strict=False):
        offset += 0.0 if neighbour is None else _distance(neighbour, slot)
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # (mean, number of slots), means ascending
    for target, slot_offset in zip(targets, offsets, strict=True):
        mean, count = target - slot_offset, 1
        while pools and pools[-1][0] > mean:
            pooled, size = pools.pop()
            mean, count = (mean * count + pooled * size) / (count + size), count + size
        pools.append((mean, count))
    settled = (mean for mean, count in pools for _ in range(count))
    for slot, slot_offset, mean in zip(layer, offsets, settled, strict=True):
        slot.at = mean + slot_offset
