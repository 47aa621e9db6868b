"""Pictures of computation graphs: SVG in pure Python, and DOT text for Graphviz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from gflownet.graphs.elements import Edge, Node, NodeType, thawed
from gflownet.graphs.layout import Layout, Slot, layered_layout

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph

# Pixels.
BOX_HEIGHT = 46.0
MIN_BOX_WIDTH = 92.0
CHARACTER_WIDTH = 7.4  # of a 13-pixel sans-serif, on the wide side
COLUMN_GAP = 64.0
GAP_PER_LINK = 3.0  # more room where many edges run side by side
MAX_COLUMN_GAP = 150.0
MARGIN = 20.0
MAX_TURN = 36.0  # how far the control points of a turn lie outside its column
TURN_MARGIN = 36.0  # outside the first and the last column, where backward edges turn round
PORT_GAP = 9.0
ARROW_LENGTH = 8.0
MAX_LABEL_LENGTH = 26

# Colours have six digits: Graphviz draws #eef black.
FILLS = {NodeType.INPUT: "#e0f2fe", NodeType.HIDDEN: "#f8fafc", NodeType.OUTPUT: "#dcfce7"}
STROKES = {NodeType.INPUT: "#0284c7", NodeType.HIDDEN: "#64748b", NodeType.OUTPUT: "#16a34a"}
TEXT_COLOUR = "#0f172a"
DETAIL_COLOUR = "#64748b"


@dataclass(frozen=True)
class EdgeStyle:
    """How a kind of edge looks."""

    name: str
    colour: str
    dashes: str  # SVG stroke-dasharray
    dot_style: str


FORWARD_STYLE = EdgeStyle("forward", "#475569", "none", "solid")
RECURRENT_STYLE = EdgeStyle("recurrent", "#d97706", "7 5", "dashed")
DISABLED_STYLE = EdgeStyle("disabled", "#9ca3af", "1.5 4.5", "dotted")


def to_svg(graph: ComputationGraph) -> str:
    """The graph as an SVG document, left to right; details of nodes and edges are in tooltips.

    Recurrent edges (marked, or closing a cycle) are dashed, disabled ones grey and dotted. Edges without both ends in
    the graph are left out.
    """
    layout = layered_layout(graph, dict.fromkeys(graph.nodes, BOX_HEIGHT))
    columns = _column_spans(graph, layout)
    ports = _ports(graph, layout)
    right = columns[-1][1] if columns else 0.0
    width = right + _side_margin(layout)
    slots = [slot for column in layout.columns for slot in column]
    height = max((slot.y + slot.height / 2 for slot in slots), default=0.0) + 2 * MARGIN
    styles = _edge_styles(graph)
    edges = []
    for edge in (graph.edges[edge_id] for edge_id in layout.lanes):
        tip = columns[layout.boxes[edge.target].column][0], ports[edge.edge_id][1]
        edges.append(_edge_svg(edge, _path(edge, layout, ports[edge.edge_id], columns), tip, styles[edge.edge_id]))
    nodes = [_node_svg(graph.nodes[node_id], slot, *columns[slot.column]) for node_id, slot in layout.boxes.items()]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" '
            'text-anchor="middle">',
            f"<title>Computation graph of {len(graph.nodes)} nodes and {len(graph.edges)} edges</title>",
            '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>',
            f'<g transform="translate(0 {MARGIN:.0f})">',
            *edges,
            *nodes,
            "</g>",
            "</svg>\n",
        )
    )


def to_dot(graph: ComputationGraph) -> str:
    """The graph in Graphviz's DOT language, with the colours and line styles of to_svg."""
    lines = ["digraph {", "  rankdir=LR;", '  node [shape=box style="rounded,filled" fontname="Helvetica"];']
    for node_id, node in sorted(graph.nodes.items()):
        title, detail = _labels(node)
        fill, stroke = FILLS[node.node_type], STROKES[node.node_type]
        label = f"{_dot_escape(title)}\\n{_dot_escape(detail)}"
        lines.append(f'  "{node_id}" [label="{label}" fillcolor="{fill}" color="{stroke}"];')
    styles = _edge_styles(graph)
    for edge_id, edge in sorted(graph.edges.items()):
        style = styles[edge_id]
        constraint = "true" if style is FORWARD_STYLE else "false"
        look = f'color="{style.colour}" style="{style.dot_style}" constraint={constraint}'
        lines.append(f'  "{edge.source}" -> "{edge.target}" [{look}];')
    return "\n".join([*lines, "}\n"])


def _labels(node: Node) -> tuple[str, str]:
    """What a box says: the operation, and below it how its inputs are joined and how wide it is."""
    size = "?" if node.output_size is None else str(node.output_size)
    if node.node_type is NodeType.INPUT:
        return "input", size
    title = node.activation_function
    if node.node_type is NodeType.OUTPUT:
        title = "output" if title == "linear" else f"output · {title}"
    return _shortened(title), _shortened(f"{thawed(node.aggregation)} · {size}")


def _xml_text(text: str) -> str:
    """The text with markup escaped."""
    return escape(_visible(text))


def _visible(text: str) -> str:
    """The text with a mark for control characters, lone surrogates and the like, which XML and files do not admit."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_LABEL_LENGTH else text[: MAX_LABEL_LENGTH - 1] + "…"


def _dot_escape(text: str) -> str:
    return _visible(text.replace("\n", " ")).replace("\\", "\\\\").replace('"', '\\"')


def _edge_styles(graph: ComputationGraph) -> dict[int, EdgeStyle]:
    closing = set(graph.detect_cycles())
    return {
        edge_id: DISABLED_STYLE
        if not edge.enabled
        else RECURRENT_STYLE
        if edge.is_recurrent or edge_id in closing
        else FORWARD_STYLE
        for edge_id, edge in graph.edges.items()
    }


def _side_margin(layout: Layout) -> float:
    return TURN_MARGIN if layout.backward else MARGIN


def _column_spans(graph: ComputationGraph, layout: Layout) -> list[tuple[float, float]]:
    """Left and right x of every column."""
    widths = [MIN_BOX_WIDTH] * len(layout.columns)
    for node_id, slot in layout.boxes.items():
        longest = max(len(label) for label in _labels(graph.nodes[node_id]))
        widths[slot.column] = max(widths[slot.column], longest * CHARACTER_WIDTH + 20)
    spans = []
    x = _side_margin(layout)
    for column, width in zip(layout.columns, widths, strict=True):
        spans.append((x, x + width))
        num_links = sum(len(slot.right) for slot in column)
        x += width + min(MAX_COLUMN_GAP, COLUMN_GAP + GAP_PER_LINK * num_links)
    return spans


def _ports(graph: ComputationGraph, layout: Layout) -> dict[int, tuple[float, float]]:
    """Edge id to the heights at which it leaves its source and enters its target, spread over the sides of boxes."""
    leaving: dict[int, list[tuple[float, int]]] = {}
    entering: dict[int, list[tuple[float, int]]] = {}
    for edge_id, lanes in layout.lanes.items():
        edge = graph.edges[edge_id]
        source, target = layout.boxes[edge.source], layout.boxes[edge.target]
        leaving.setdefault(edge.source, []).append((lanes[0].y if lanes else target.y, edge_id))
        entering.setdefault(edge.target, []).append((lanes[-1].y if lanes else source.y, edge_id))
    heights: list[dict[int, float]] = [{}, {}]
    for height_of, sides in zip(heights, (leaving, entering), strict=True):
        for node_id, ends in sides.items():
            gap = min(PORT_GAP, (BOX_HEIGHT - 14) / max(1, len(ends) - 1))
            for place, (_, edge_id) in enumerate(sorted(ends)):
                height_of[edge_id] = layout.boxes[node_id].y + gap * (place - (len(ends) - 1) / 2)
    return {edge_id: (heights[0][edge_id], heights[1][edge_id]) for edge_id in layout.lanes}


def _path(edge: Edge, layout: Layout, ports: tuple[float, float], columns: list[tuple[float, float]]) -> str:
    """The edge's SVG path up to its arrow: straight along its lanes, curved in the gaps between columns."""
    leaves, enters = ports
    lanes = layout.lanes[edge.edge_id]
    backward = edge.edge_id in layout.backward
    x, y = columns[layout.boxes[edge.source].column][1], leaves
    commands = [f"M{x:.1f} {y:.1f}"]
    for place, lane in enumerate(lanes):
        left, right = columns[lane.column]
        near, far = (right, left) if backward else (left, right)
        commands.append(_turn(x, y, near, lane.y, 1) if backward and place == 0 else _curve(x, y, near, lane.y))
        commands.append(f"H{far:.1f}")
        x, y = far, lane.y
    end = columns[layout.boxes[edge.target].column][0] - ARROW_LENGTH
    commands.append(_turn(x, y, end, enters, -1) if backward else _curve(x, y, end, enters))
    return " ".join(commands)


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """A curve that leaves and arrives level."""
    middle = (x + to_x) / 2
    return f"C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _turn(x: float, y: float, to_x: float, to_y: float, side: int) -> str:
    """A curve that leaves to one side (1 right, -1 left) and comes back from it."""
    bulge = side * min(MAX_TURN, 12 + abs(to_y - y) / 2)
    return f"C{x + bulge:.1f} {y:.1f} {to_x + bulge:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _edge_svg(edge: Edge, path: str, tip: tuple[float, float], style: EdgeStyle) -> str:
    x, y = tip
    arrow = f"M{x:.1f} {y:.1f} l{-ARROW_LENGTH:.0f} -4 v8 z"
    words = [f"edge {edge.edge_id}: {edge.source} → {edge.target}", f"weight {edge.weight:g}"]
    words += [style.name] if style is not FORWARD_STYLE else []
    tooltip = _xml_text(", ".join(words) + _attributes_text(edge.attributes))
    return (
        f'<g><title>{tooltip}</title><path d="{path}" fill="none" stroke="{style.colour}" stroke-width="1.6" '
        f'stroke-linecap="round" stroke-dasharray="{style.dashes}"/><path d="{arrow}" fill="{style.colour}"/></g>'
    )


def _node_svg(node: Node, slot: Slot, left: float, right: float) -> str:
    title, detail = _labels(node)
    middle, top = (left + right) / 2, slot.y - BOX_HEIGHT / 2
    tooltip = f"node {node.node_id}: {node.activation_function}, bias {node.bias:g}" + _attributes_text(node.attributes)
    return (
        f"<g><title>{_xml_text(tooltip)}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{BOX_HEIGHT:.0f}" rx="9" '
        f'fill="{FILLS[node.node_type]}" stroke="{STROKES[node.node_type]}" stroke-width="1.4"/>'
        f'<text x="{middle:.1f}" y="{top + 20:.1f}" font-size="13" font-weight="bold" '
        f'fill="{TEXT_COLOUR}">{_xml_text(title)}</text>'
        f'<text x="{middle:.1f}" y="{top + 36:.1f}" font-size="11" '
        f'fill="{DETAIL_COLOUR}">{_xml_text(detail)}</text></g>'
    )


def _attributes_text(attributes: Mapping[str, Any]) -> str:
    return f", {json.dumps(thawed(attributes))}" if attributes else ""
