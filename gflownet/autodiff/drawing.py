"""Pictures of tensor graphs: SVG in pure Python, and DOT text for Graphviz."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gflownet.autodiff.graph import Graph
from gflownet.autodiff.layering import Slot, columns_of, path_of
from gflownet.autodiff.listing import Declaration, dtype_name
from gflownet.autodiff.nodes import (
    CastNode,
    ElementwiseNode,
    LeafKind,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    TransformNode,
)
from gflownet.autodiff.text import lines

# Pixels.
BOX_HEIGHT = 46.0
MIN_BOX_WIDTH = 84.0
CHARACTER_WIDTH = 7.8  # of a 13-pixel sans-serif, on the wide side
ROW_GAP = 22.0
COLUMN_GAP = 48.0
GAP_PER_SLOT = 3.0  # more room where many edges run side by side
PORT_GAP = 14.0
MARGIN = 20.0
ARROW_LENGTH = 8.0
MAX_TEXT_LENGTH = 44

# Fill and stroke. Colours have six digits: Graphviz draws #eef black.
COLOURS: dict[type[Node], tuple[str, str]] = {
    TransformNode: ("#f8fafc", "#64748b"),
    ElementwiseNode: ("#fef9c3", "#ca8a04"),
    LinearNode: ("#ede9fe", "#7c3aed"),
    NonlinearNode: ("#ffe4e6", "#e11d48"),
    CastNode: ("#f1f5f9", "#94a3b8"),
}
LEAF_COLOURS = {
    LeafKind.INPUT: ("#e0f2fe", "#0284c7"),
    LeafKind.PARAMETER: ("#dcfce7", "#16a34a"),
    LeafKind.CONSTANT: ("#f3f4f6", "#6b7280"),
}
EDGE_COLOUR = "#475569"
TEXT_COLOUR = "#0f172a"
DETAIL_COLOUR = "#64748b"


@dataclass(frozen=True)
class _Box:
    """What a node's box says and how it looks."""

    title: str
    detail: str
    tooltip: str
    fill: str
    stroke: str
    is_output: bool

    @property
    def width(self) -> float:
        longest = max(len(self.title), len(self.detail) * 11 / 13)
        return max(MIN_BOX_WIDTH, longest * CHARACTER_WIDTH + 20)

    @property
    def stroke_width(self) -> float:
        return 2.8 if self.is_output else 1.4


def to_dot(graph: Graph | Node) -> str:
    """Return the graph in Graphviz's DOT language, left to right, operands before what uses them."""
    boxes = _boxes(graph)
    numbers = {node: number for number, node in enumerate(boxes)}
    texts = ["digraph {", "  rankdir=LR;", '  node [shape=box style="rounded,filled" fontname="Helvetica"];']
    texts.append('  edge [fontname="Helvetica" labelfontsize=9];')
    for node, box in boxes.items():
        label = f"{_dot_escape(box.title)}\\n{_dot_escape(box.detail)}"
        look = f'fillcolor="{box.fill}" color="{box.stroke}" penwidth={box.stroke_width}'
        texts.append(f'  {numbers[node]} [label="{label}" {look}];')
    for node in boxes:
        for position, source in enumerate(node.inputs):
            head = f' headlabel="{"LR"[position]}"' if len(node.inputs) > 1 else ""
            texts.append(f'  {numbers[source]} -> {numbers[node]} [color="{EDGE_COLOUR}"{head}];')
    return "\n".join([*texts, "}\n"])


def to_svg(graph: Graph | Node) -> str:
    """Return the graph as an SVG document, left to right; a box says what its node computes, its shape and its dtype.

    Results have a thick border. Where a node has two operands, the edge of the left one enters above that of the right.
    """
    boxes = _boxes(graph)
    columns = columns_of(list(boxes))
    spans = _spans(columns, boxes)
    heights, height = _heights(columns)
    places = {slot: (number, heights[slot]) for number, column in enumerate(columns) for slot in column}
    width = spans[-1][1] + MARGIN
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" '
            'text-anchor="middle">',
            f"<title>Tensor graph of {len(boxes)} nodes</title>",
            '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>',
            *(_edge_svg(node, side, places, spans) for node in boxes for side in range(len(node.inputs))),
            *(_box_svg(box, *spans[places[node][0]], places[node][1]) for node, box in boxes.items()),
            "</svg>\n",
        )
    )


def _boxes(graph: Graph | Node) -> dict[Node, _Box]:
    graph = Graph(graph) if isinstance(graph, Node) else graph
    boxes = {}
    for node, line in lines(graph.nodes()).items():
        if isinstance(node, LeafNode) and isinstance(line, Declaration):
            content = "" if line.content is None else f" = {line.content}"
            title, colours = f"{node.kind.name.lower()} {line.name}{content}", LEAF_COLOURS[node.kind]
        else:
            title, colours = str(line), COLOURS[type(node)]
        shape = "\N{MULTIPLICATION SIGN}".join(map(str, node.shape)) or "scalar"
        detail = f"{shape} {dtype_name(node.dtype)}"
        tooltip = f"{title}, {detail}, {type(node).__name__}"
        boxes[node] = _Box(_shortened(title), detail, tooltip, *colours, is_output=node in graph.outputs)
    return boxes


def _spans(columns: Sequence[Sequence[Slot]], boxes: Mapping[Node, _Box]) -> list[tuple[float, float]]:
    """Return the left and the right side of each column."""
    spans = []
    x = MARGIN
    for column in columns:
        width = max(boxes[slot].width for slot in column if isinstance(slot, Node))
        spans.append((x, x + width))
        x += width + COLUMN_GAP + GAP_PER_SLOT * len(column)
    return spans


def _heights(columns: Sequence[Sequence[Slot]]) -> tuple[dict[Slot, float], float]:
    """Return the middle of each slot, columns centred, and the height of the picture."""
    totals = [sum(_slot_height(slot) for slot in column) for column in columns]
    heights: dict[Slot, float] = {}
    for column, total in zip(columns, totals, strict=True):
        y = MARGIN + (max(totals) - total) / 2
        for slot in column:
            heights[slot] = y + _slot_height(slot) / 2
            y += _slot_height(slot)
    return heights, max(totals) + 2 * MARGIN


def _slot_height(slot: Slot) -> float:
    return (BOX_HEIGHT if isinstance(slot, Node) else 0.0) + ROW_GAP


def _edge_svg(
    node: Node, side: int, places: Mapping[Slot, tuple[int, float]], spans: Sequence[tuple[float, float]]
) -> str:
    """Return the edge of an operand: level in the columns it passes, curved in the gaps between."""
    source = node.inputs[side]
    depths = {end: places[end][0] for end in (source, node)}
    number, y = places[source]
    x = spans[number][1]
    commands = [f"M{x:.1f} {y:.1f}"]
    for slot in path_of(source, node, depths)[1:-1]:
        (left, right), lane = spans[places[slot][0]], places[slot][1]
        commands += [_curve(x, y, left, lane), f"H{right:.1f}"]
        x, y = right, lane
    tip = spans[depths[node]][0]
    enters = places[node][1] + PORT_GAP * (side - (len(node.inputs) - 1) / 2)
    commands.append(_curve(x, y, tip - ARROW_LENGTH, enters))
    arrow = f"M{tip:.1f} {enters:.1f} l{-ARROW_LENGTH:.0f} -4 v8 z"
    return (
        f'<g><path d="{" ".join(commands)}" fill="none" stroke="{EDGE_COLOUR}" stroke-width="1.6"/>'
        f'<path d="{arrow}" fill="{EDGE_COLOUR}"/></g>'
    )


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a curve that leaves and arrives level."""
    middle = (x + to_x) / 2
    return f"C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _box_svg(box: _Box, left: float, right: float, y: float) -> str:
    middle, top = (left + right) / 2, y - BOX_HEIGHT / 2
    return (
        f"<g><title>{escape(box.tooltip)}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{BOX_HEIGHT:.0f}" rx="9" '
        f'fill="{box.fill}" stroke="{box.stroke}" stroke-width="{box.stroke_width}"/>'
        f'<text x="{middle:.1f}" y="{top + 20:.1f}" font-size="13" font-weight="bold" '
        f'fill="{TEXT_COLOUR}">{escape(box.title)}</text>'
        f'<text x="{middle:.1f}" y="{top + 36:.1f}" font-size="11" '
        f'fill="{DETAIL_COLOUR}">{escape(box.detail)}</text></g>'
    )


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


def _dot_escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
