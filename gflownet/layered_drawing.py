"""Left-to-right drawings of directed graphs: layered layout, SVG documents and DOT text for Graphviz.

The caller gives each box a column. A link that skips columns gets a lane in each of them; boxes and lanes of a column
are stacked without overlap, and curves run in the gaps between columns only, so no link crosses a box. The order
within a column comes from barycentre sweeps (Sugiyama, Tagawa and Toda, 1981), positions from least squares under
that order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

# Pixels.
BOX_HEIGHT = 46.0
MIN_BOX_WIDTH = 92.0
CHARACTER_WIDTH = 7.8  # upper bound for a 13-pixel bold sans-serif
BOX_GAP = 20.0  # between boxes of a column
LANE_GAP = 14.0  # between a lane and its neighbours
COLUMN_GAP = 60.0
GAP_PER_LINK = 3.0  # wider gaps where many links run side by side
MAX_COLUMN_GAP = 150.0
MARGIN = 20.0
MAX_TURN = 36.0  # distance of the control points of a turn from its column
TURN_MARGIN = 36.0  # outside the first and the last column, where backward links turn
PORT_GAP = 10.0  # between the links of one side of a box
ARROW_LENGTH = 8.0

NUM_ORDER_SWEEPS = 12
NUM_POSITION_SWEEPS = 12
LANE_PULL = 8.0  # weight of the link between two lanes, against 1 for a link to a box: keeps long links straight

TEXT_COLOUR = "#0f172a"
DETAIL_COLOUR = "#64748b"


@dataclass(frozen=True)
class Box:
    """A node of the drawing. Colours have six digits: Graphviz draws #eef black."""

    column: int  # from the left
    title: str
    detail: str  # second line
    tooltip: str
    fill: str
    stroke: str
    stroke_width: float = 1.4

    @property
    def width(self) -> float:
        """Return the width in pixels that fits both lines of text."""
        longest = max(len(self.title), len(self.detail) * 11 / 13)
        return max(MIN_BOX_WIDTH, longest * CHARACTER_WIDTH + 20)


@dataclass(frozen=True)
class LinkStyle:
    """Colour and dashes of a kind of link."""

    colour: str = "#475569"
    dashes: str = "none"  # SVG stroke-dasharray
    dot_style: str = "solid"


@dataclass(frozen=True)
class Link:
    """An arrow from one box to another, by their keys."""

    source: int
    target: int
    tooltip: str = ""
    style: LinkStyle = LinkStyle()
    position: int | None = None  # place among the links into the target, from the top; None: by height of the source
    dot_attributes: str = ""


@dataclass(eq=False)
class Slot:
    """A place in a column: a box, or the lane of a link that passes by."""

    column: int
    box: Box | None = None
    height: float = 0.0
    is_lane: bool = True
    y: float = 0.0  # centre
    left: list[Slot] = field(default_factory=list)  # linked slots of the column before
    right: list[Slot] = field(default_factory=list)  # linked slots of the column after
    same: list[Slot] = field(default_factory=list)  # box of the same column that the lane of a backward link turns to


def to_svg(boxes: Mapping[int, Box], links: Sequence[Link], *, title: str) -> str:
    """Return an SVG document; every link must have both ends in `boxes`.

    Args:
        boxes: by key.
        links: drawn in this order, below the boxes.
        title: of the document.
    """
    picture = _Picture(boxes, links)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width:.0f}" height="{picture.height:.0f}" '
            f'viewBox="0 0 {picture.width:.0f} {picture.height:.0f}" role="img" '
            'font-family="Helvetica, Arial, sans-serif" text-anchor="middle">',
            f"<title>{xml_text(title)}</title>",
            '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>',
            *(picture.link_svg(number) for number in range(len(links))),
            *(picture.box_svg(key) for key in boxes),
            "</svg>\n",
        )
    )


def to_dot(boxes: Mapping[int, Box], links: Sequence[Link]) -> str:
    """Return the graph in Graphviz's DOT language, left to right, with the colours and line styles of `to_svg`."""
    lines = ["digraph {", "  rankdir=LR;", '  node [shape=box style="rounded,filled" fontname="Helvetica"];']
    lines.append('  edge [fontname="Helvetica" labelfontsize=9];')
    for key, box in boxes.items():
        label = f"{dot_text(box.title)}\\n{dot_text(box.detail)}"
        look = f'fillcolor="{box.fill}" color="{box.stroke}" penwidth={box.stroke_width}'
        lines.append(f'  {key} [label="{label}" {look}];')
    for link in links:
        look = f'color="{link.style.colour}" style="{link.style.dot_style}" {link.dot_attributes}'.rstrip()
        lines.append(f"  {link.source} -> {link.target} [{look}];")
    return "\n".join([*lines, "}\n"])


def shortened(text: str, max_length: int) -> str:
    """Return a text of at most `max_length` characters, cut with an ellipsis."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def xml_text(text: str) -> str:
    """Return the text with markup escaped and characters that XML forbids replaced."""
    return escape(_visible(text))


def _visible(text: str) -> str:
    """Replace control characters, lone surrogates and the like."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def dot_text(text: str) -> str:
    """Return the text for a label in quotes, with control characters replaced."""
    return _visible(text.replace("\n", " ")).replace("\\", "\\\\").replace('"', '\\"')


class _Picture:
    """A finished layout with the coordinates of boxes and links."""

    def __init__(self, boxes: Mapping[int, Box], links: Sequence[Link]) -> None:
        self._boxes = {key: Slot(box.column, box, BOX_HEIGHT, is_lane=False) for key, box in boxes.items()}
        self._links = links
        self._lanes = [linked_lanes(self._boxes[link.source], self._boxes[link.target]) for link in links]
        columns: list[list[Slot]] = [[] for _ in range(max((box.column for box in boxes.values()), default=-1) + 1)]
        for slot in (*self._boxes.values(), *(lane for lanes in self._lanes for lane in lanes)):
            columns[slot.column].append(slot)
        columns = ordered(columns)
        _set_heights(columns)
        has_turns = any(self._is_backward(link) for link in links)
        side_margin = TURN_MARGIN if has_turns else MARGIN
        self._spans = _column_spans(columns, start=side_margin)
        self._leaving, self._entering = self._ports()
        self.width = (self._spans[-1][1] if self._spans else 0.0) + side_margin
        self.height = max((slot.y + slot.height / 2 for c in columns for slot in c), default=MARGIN) + MARGIN

    def _is_backward(self, link: Link) -> bool:
        return self._boxes[link.source].column >= self._boxes[link.target].column

    def _ports(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return the heights at which each link leaves its source and enters its target, spread over the box."""
        leaving: dict[int, list[tuple[float, int]]] = {}
        entering: dict[int, list[tuple[float, int]]] = {}
        for number, (link, lanes) in enumerate(zip(self._links, self._lanes, strict=True)):
            first, last = (
                (lanes[0].y, lanes[-1].y) if lanes else (self._boxes[link.target].y, self._boxes[link.source].y)
            )
            leaving.setdefault(link.source, []).append((first, number))
            entering.setdefault(link.target, []).append((last if link.position is None else link.position, number))
        return self._spread(leaving), self._spread(entering)

    def _spread(self, sides: Mapping[int, list[tuple[float, int]]]) -> dict[int, float]:
        heights: dict[int, float] = {}
        for key, ends in sides.items():
            gap = min(PORT_GAP, (BOX_HEIGHT - 14) / max(1, len(ends) - 1))
            for place, (_, number) in enumerate(sorted(ends)):
                heights[number] = self._boxes[key].y + gap * (place - (len(ends) - 1) / 2)
        return heights

    def link_svg(self, number: int) -> str:
        """Return a link: straight along its lanes, curved in the gaps between columns."""
        link, lanes = self._links[number], self._lanes[number]
        backward = self._is_backward(link)
        x, y = self._spans[self._boxes[link.source].column][1], self._leaving[number]
        commands = [f"M{x:.1f} {y:.1f}"]
        for place, lane in enumerate(lanes):
            left, right = self._spans[lane.column]
            enter_x, leave_x = (right, left) if backward else (left, right)
            commands.append(
                _turn(x, y, enter_x, lane.y, 1) if backward and place == 0 else _curve(x, y, enter_x, lane.y)
            )
            commands.append(f"H{leave_x:.1f}")
            x, y = leave_x, lane.y
        tip, enters = self._spans[self._boxes[link.target].column][0], self._entering[number]
        end = tip - ARROW_LENGTH
        commands.append(_turn(x, y, end, enters, -1) if backward else _curve(x, y, end, enters))
        tooltip = f"<title>{xml_text(link.tooltip)}</title>" if link.tooltip else ""
        arrow = f"M{tip:.1f} {enters:.1f} l{-ARROW_LENGTH:.0f} -4 v8 z"
        return (
            f'<g>{tooltip}<path d="{" ".join(commands)}" fill="none" stroke="{link.style.colour}" stroke-width="1.6" '
            f'stroke-linecap="round" stroke-dasharray="{link.style.dashes}"/>'
            f'<path d="{arrow}" fill="{link.style.colour}"/></g>'
        )

    def box_svg(self, key: int) -> str:
        """Return a box with its two lines of text and its tooltip."""
        slot = self._boxes[key]
        box, (left, right) = slot.box, self._spans[slot.column]
        assert box is not None, key
        middle, top = (left + right) / 2, slot.y - BOX_HEIGHT / 2
        return (
            f"<g><title>{xml_text(box.tooltip)}</title>"
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{BOX_HEIGHT:.0f}" rx="9" '
            f'fill="{box.fill}" stroke="{box.stroke}" stroke-width="{box.stroke_width}"/>'
            f'<text x="{middle:.1f}" y="{top + 20:.1f}" font-size="13" font-weight="bold" '
            f'fill="{TEXT_COLOUR}">{xml_text(box.title)}</text>'
            f'<text x="{middle:.1f}" y="{top + 36:.1f}" font-size="11" '
            f'fill="{DETAIL_COLOUR}">{xml_text(box.detail)}</text></g>'
        )


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a curve that leaves and arrives level."""
    middle = (x + to_x) / 2
    return f"C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _turn(x: float, y: float, to_x: float, to_y: float, side: int) -> str:
    """Return a curve that leaves to one side (1 right, -1 left) and comes back from it."""
    bulge = side * min(MAX_TURN, 12 + abs(to_y - y) / 2)
    return f"C{x + bulge:.1f} {y:.1f} {to_x + bulge:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def linked_lanes(source: Slot, target: Slot) -> list[Slot]:
    """Return the lanes of a link from source to target, connected to one another and to the boxes."""
    if source.column < target.column:
        lanes = [Slot(column) for column in range(source.column + 1, target.column)]
        path = [source, *lanes, target]
    else:
        # A backward link turns in the column of its source, passes it, and turns again in the column of its target.
        lanes = [Slot(column) for column in range(source.column, target.column - 1, -1)]
        path = lanes[::-1]
        lanes[0].same.append(source)
        lanes[-1].same.append(target)
    for first, second in pairwise(path):
        first.right.append(second)
        second.left.append(first)
    return lanes


def ordered(columns: list[list[Slot]]) -> list[list[Slot]]:
    """Return the columns in the best order of all sweeps: the one with the fewest crossings."""
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
    """Sort a column by the mean relative height of the slots linked on one side."""
    index = column[0].column
    around = [c for c in (index - 1, index, index + 1) if 0 <= c < len(columns)]
    height = {slot: (rank + 0.5) / len(columns[c]) for c in around for rank, slot in enumerate(columns[c])}
    # Half a place below the box, so that the lane of a backward link settles under it.
    below = 0.5 / len(column)

    def mean_height(slot: Slot) -> float:
        linked = [height[other] for other in (slot.right if leftwards else slot.left)]
        linked += [height[box] + below for box in slot.same]
        return sum(linked) / len(linked) if linked else height[slot]

    column.sort(key=mean_height)


def _num_crossings(columns: list[list[Slot]]) -> int:
    """Count pairs of links that cross, plus the boxes that backward links pass on the way to their lane."""
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
        crossings += sum(abs(rank[slot] - rank[box]) - 1 for slot in column for box in slot.same)
    return crossings


def _column_spans(columns: list[list[Slot]], *, start: float) -> list[tuple[float, float]]:
    """Return the left and right x of every column; a column is as wide as its widest box."""
    spans: list[tuple[float, float]] = []
    x = start
    for column in columns:
        width = max((slot.box.width for slot in column if slot.box), default=MIN_BOX_WIDTH)
        spans.append((x, x + width))
        num_links = sum(len(slot.right) for slot in column)
        x += width + min(MAX_COLUMN_GAP, COLUMN_GAP + GAP_PER_LINK * num_links)
    return spans


def _set_heights(columns: list[list[Slot]]) -> None:
    """Set every y: slots level with the slots they are linked to, as far as their order allows; the top is MARGIN."""
    for column in columns:
        place(column, [0.0] * len(column))
    for sweep in range(NUM_POSITION_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            place(column, [mean_linked_y(slot) for slot in column])
    top = min((slot.y - slot.height / 2 for column in columns for slot in column), default=0.0)
    for column in columns:
        for slot in column:
            slot.y += MARGIN - top


def mean_linked_y(slot: Slot) -> float:
    """Return the mean position of the linked slots; long links pull more."""
    weights = [(other.y, LANE_PULL if slot.is_lane and other.is_lane else 1.0) for other in (*slot.left, *slot.right)]
    weights += [(box.y, 1.0) for box in slot.same]
    total = sum(weight for _, weight in weights)
    return sum(y * weight for y, weight in weights) / total if weights else slot.y


def place(column: list[Slot], targets: list[float]) -> None:
    """Move the slots close to the target heights under order and gaps: least squares, by pooling neighbours."""
    offset = 0.0
    offsets: list[float] = []
    for slot, above in zip(column, [None, *column], strict=False):
        if above is not None:
            gap = LANE_GAP if slot.is_lane or above.is_lane else BOX_GAP
            offset += (slot.height + above.height) / 2 + gap
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # (mean, number of slots), means ascending
    for target, slot_offset in zip(targets, offsets, strict=True):
        mean, count = target - slot_offset, 1
        while pools and pools[-1][0] > mean:
            pooled, size = pools.pop()
            mean, count = (mean * count + pooled * size) / (count + size), count + size
        pools.append((mean, count))
    settled = (mean for mean, count in pools for _ in range(count))
    for slot, slot_offset, mean in zip(column, offsets, settled, strict=True):
        slot.y = mean + slot_offset
