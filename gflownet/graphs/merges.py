"""The in-edges of a node by port, aligned and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.graphs.elements import Edge, Node
from gflownet.operations.tensor_shape import AXES, Adapter, Layout, Shape, ShapeError, broadcast, join

# Merges of the inputs at one port, by the node's aggregation.
MERGES = ("sum", "mean", "max", "min", "product", "concat")
# What a node does with inputs of unequal shapes: whether it averages positions, and whether it changes channels.
# project and auto learn a projection of the channels, pad fills them with zeros; without align, inputs broadcast.
ALIGNMENTS = {
    "pool": (True, False),
    "project": (False, True),
    "pad": (True, True),
    "auto": (True, True),
    "never": (False, False),
}
LEARNED_ALIGNMENTS = ("project", "auto")
_REPAIRS = {
    (True, False): '"align": "pool" averages positions',
    (False, True): '"align": "project" learns a projection of the channels, "pad" fills them with zeros',
    (True, True): '"align": "auto" averages positions and learns a projection of the channels, "pad" fills them',
}


@dataclass(frozen=True)
class MergePlan:
    """The inputs at one port of a node, aligned and merged."""

    edges: tuple[Edge, ...]
    adapters: tuple[Adapter, ...]  # one per edge
    merge: str
    align: str | None  # None: inputs broadcast
    shape: Shape  # after the merge
    axis: str = AXES[0]  # of concat
    late: frozenset[int] = frozenset()  # ids of edges that carry the value of the time step before
    reads_input: bool = False  # of a neuron: whether the source is an INPUT node

    @property
    def is_learned(self) -> bool:
        """Whether a change of channels is a learned projection."""
        return self.align in LEARNED_ALIGNMENTS

    @property
    def concat_axis(self) -> int:
        """The axis of concat, the batch not counted."""
        return self.shape.axes[self.axis]

    @property
    def late_edges(self) -> list[Edge]:
        """The edges that carry the value of the time step before."""
        return [edge for edge in self.edges if edge.edge_id in self.late]


def by_port(edges: Sequence[Edge]) -> dict[str, list[Edge]]:
    """Return the edges into a node by port, in their order."""
    ports: dict[str, list[Edge]] = {}
    edges = sorted(edges, key=lambda edge: (edge.order, edge.edge_id)) if len(edges) > 1 else edges
    for edge in edges:
        ports.setdefault(edge.port, []).append(edge)
    return ports


def merged(node: Node, edges: Sequence[Edge], shapes: Sequence[Shape]) -> MergePlan:
    """Return the inputs of a port, aligned and merged. Raises ShapeError for shapes that do not fit."""
    merge, align = node.aggregation, node.align
    target = shapes[0] if len(shapes) == 1 and node.positions is None else _joined(node, shapes)
    if target.layout is Layout.TOKENS and (len(edges) > 1 or node.has_edge_weights):
        raise ShapeError(f"expected one input of tokens without edge_weight, got {', '.join(map(str, shapes))}")
    if target is shapes[0] and len(shapes) == 1:
        return MergePlan(tuple(edges), (Adapter(target, target),), merge, align, target)
    if merge == "concat" and len(shapes) > 1:
        return _concatenated(node, edges, shapes)
    if align is None and node.positions is None and (result := broadcast(shapes)) is not None:
        adapters = tuple(Adapter(shape, result, shape != result) for shape in shapes)
        return MergePlan(tuple(edges), adapters, merge, align, result)
    adapters = tuple(Adapter(shape, target) for shape in shapes)
    check_alignment(adapters, align, "shape" if align else "shape, with axes of size 1, or vectors over the channels")
    return MergePlan(tuple(edges), adapters, merge, align, target)


def _joined(node: Node, shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which the inputs of a node are aligned, of its own `positions` where it has some."""
    target, positions = join(shapes), node.positions
    if positions is None:
        return target
    if target.layout in (Layout.VECTOR, Layout.TOKENS) or len(positions) != len(target.positions):
        raise ShapeError(f"expected inputs with positions of {len(positions)} axes, got {target}")
    return target.with_positions(positions)


def _concatenated(node: Node, edges: Sequence[Edge], shapes: Sequence[Shape]) -> MergePlan:
    """Return the inputs side by side along an axis: the channels, or one of positions."""
    name, align, target = node.axis, node.align, _joined(node, shapes)
    if name not in target.axes:
        got = ", ".join(map(str, shapes))
        raise ShapeError(f"expected inputs of one layout with {name} for axis={name}, got {got}")
    axis = target.axes[name]
    sizes = [shape.channels if name == AXES[0] else shape.sizes[axis] for shape in shapes]
    adapters = tuple(Adapter(shape, target.with_size(axis, size)) for shape, size in zip(shapes, sizes, strict=True))
    kind = "layout and size of positions" if name == AXES[0] else f"size of every axis but {name}"
    check_alignment(adapters, align, kind, _axis_repair(shapes))
    return MergePlan(tuple(edges), adapters, "concat", align, target.with_size(axis, sum(sizes)), name)


def _axis_repair(shapes: Sequence[Shape]) -> str:
    """Return the repair of a concat of shapes that differ along one axis only."""
    if len({shape.layout for shape in shapes}) > 1:
        return ""
    names = {axis: each for each, axis in shapes[0].axes.items() if len({shape.sizes[axis] for shape in shapes}) > 1}
    return f', "axis": "{names.popitem()[1]}" appends them' if len(names) == 1 else ""


def check_alignment(adapters: Sequence[Adapter], align: str | None, kind: str, repair: str = "") -> None:
    """Raise ShapeError for a change of positions or channels that the node does not ask for, with its repair."""
    changes = any(each.changes_positions for each in adapters), any(each.changes_channels for each in adapters)
    if all(allowed >= change for allowed, change in zip(ALIGNMENTS[align or "never"], changes, strict=True)):
        return
    setting = f" with align={align}" if align else ""
    got, repair = ", ".join(str(adapter.source) for adapter in adapters), f"{_REPAIRS[changes]}{repair}"
    sources = {adapter.source for adapter in adapters}
    if len({source.sizes for source in sources}) == 1 < len(sources):  # the layouts differ
        repair = '"layout", a setting of modules and functions, says which axes an output has'
    raise ShapeError(f"expected inputs of one {kind}{setting}, got {got}; {repair}")
