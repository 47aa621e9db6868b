"""Drawings of coloured graphs: directed ones in layers, others on a circle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gflownet.pictures.figure import Cell, Colours, Figure, FigureLink, Form, Item, shortened, xml_text
from gflownet.pictures.figure_svg import figure_svg, svg_head

# Fill and stroke of node colours by rank; known words have their own colour.
PALETTE = (
    Colours("#dbeafe", "#2563eb"),
    Colours("#ffedd5", "#ea580c"),
    Colours("#dcfce7", "#16a34a"),
    Colours("#fce7f3", "#db2777"),
    Colours("#f3e8ff", "#9333ea"),
    Colours("#fef9c3", "#ca8a04"),
    Colours("#ccfbf1", "#0d9488"),
    Colours("#f1f5f9", "#64748b"),
)
NAMED = {
    "red": Colours("#fecaca", "#dc2626"),
    "blue": Colours("#bfdbfe", "#2563eb"),
    "green": Colours("#bbf7d0", "#16a34a"),
    "input": Colours("#e0f2fe", "#0284c7"),
    "output": Colours("#dcfce7", "#16a34a"),
}
_RADIUS, _GAP, _MARGIN = 24.0, 74.0, 14.0
_MAX_LABEL = 14
_PLAIN_EDGE = "edge"

Edge = tuple[int, int, str]


def coloured_svg(colours: Mapping[int, str], edges: Sequence[Edge], *, directed: bool) -> str:
    """Return an SVG document of a graph with coloured nodes and edges (source, target, colour)."""
    labels = {node: label_of(colour) for node, colour in colours.items()}
    if directed and (rows := _rows(labels, edges)) is not None:
        return _layered(labels, edges, rows)
    return _circle(labels, edges, directed=directed)


def label_of(colour: str) -> str:
    """Return a colour for readers: without empty attributes, red for red|."""
    first, _, rest = colour.partition("|")
    others = [part for part in rest.split("|") if part not in ("", "0")]
    return " ".join([first, *others])


def colours_of(labels: Mapping[int, str]) -> dict[str, Colours]:
    """Return fill and stroke of each label."""
    distinct = sorted(set(labels.values()))
    return {label: NAMED.get(label, PALETTE[rank % len(PALETTE)]) for rank, label in enumerate(distinct)}


def _rows(labels: Mapping[int, str], edges: Sequence[Edge]) -> dict[int, int] | None:
    """Return the length of the longest path to each node, None if there is a cycle."""
    rows = dict.fromkeys(labels, 0)
    for _ in labels:
        longer = [(s, t) for s, t, _ in edges if rows[t] < rows[s] + 1]
        if not longer:
            return rows
        for source, target in longer:
            rows[target] = max(rows[target], rows[source] + 1)
    return None


def _layered(labels: Mapping[int, str], edges: Sequence[Edge], rows: Mapping[int, int]) -> str:
    colours = colours_of(labels)
    items = {
        node: Item(rows[node], Form.BOX, (Cell(shortened(label, 24), colours[label], f"node {node}: {label}"),))
        for node, label in labels.items()
    }
    links = [FigureLink(source, target, tooltip=_edge_text(colour)) for source, target, colour in edges]
    return figure_svg(Figure(items, links), title=_title(labels, edges))


def _circle(labels: Mapping[int, str], edges: Sequence[Edge], *, directed: bool) -> str:
    colours, num = colours_of(labels), max(1, len(labels))
    radius = 0.0 if num == 1 else max(_GAP, _GAP * num / (2 * math.pi))
    middle = radius + _RADIUS + _MARGIN
    place = {
        node: (
            middle + radius * math.sin(2 * math.pi * index / num),
            middle - radius * math.cos(2 * math.pi * index / num),
        )
        for index, node in enumerate(labels)
    }
    parts = [
        svg_head(2 * middle, 2 * middle, _title(labels, edges)),
        *(_edge_svg(place[source], place[target], colour, directed=directed) for source, target, colour in edges),
    ]
    for node, label in labels.items():
        x, y = place[node]
        look = f'fill="{colours[label].fill}" stroke="{colours[label].stroke}" stroke-width="1.6"'
        parts.append(
            f'<g><title>{xml_text(f"node {node}: {label}")}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS:g}" '
            f'{look}/><text x="{x:.1f}" y="{y + 4:.1f}" font-size="12" fill="#0f172a">'
            f"{xml_text(shortened(label, _MAX_LABEL))}</text></g>"
        )
    return "\n".join([*parts, "</svg>\n"])


def _edge_svg(start: tuple[float, float], end: tuple[float, float], colour: str, *, directed: bool) -> str:
    (x, y), (to_x, to_y) = start, end
    title = f"<title>{xml_text(_edge_text(colour))}</title>" if _edge_text(colour) else ""
    look = 'fill="none" stroke="#475569" stroke-width="1.8"'
    if start == end:
        return f'<path d="M{x - 8:.1f} {y - 20:.1f}c-14 -30 30 -30 16 0" {look}>{title}</path>'
    length = math.hypot(to_x - x, to_y - y)
    step_x, step_y = (to_x - x) / length, (to_y - y) / length
    tip_x, tip_y = to_x - step_x * _RADIUS, to_y - step_y * _RADIUS
    line = f'<path d="M{x:.1f} {y:.1f}L{tip_x:.1f} {tip_y:.1f}" {look}>{title}</path>'
    if not directed:
        return line
    left = (tip_x - 9 * step_x + 4.5 * step_y, tip_y - 9 * step_y - 4.5 * step_x)
    right = (tip_x - 9 * step_x - 4.5 * step_y, tip_y - 9 * step_y + 4.5 * step_x)
    corners = f"M{tip_x:.1f} {tip_y:.1f}L{left[0]:.1f} {left[1]:.1f}L{right[0]:.1f} {right[1]:.1f}Z"
    return f'{line}<path d="{corners}" fill="#475569"/>'


def _edge_text(colour: str) -> str:
    label = label_of(colour)
    return "" if label == _PLAIN_EDGE else label


def _title(labels: Mapping[int, str], edges: Sequence[Edge]) -> str:
    return f"Graph of {len(labels)} nodes and {len(edges)} edges"
