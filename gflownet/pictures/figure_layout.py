"""Layout of figures, and SVG documents: rows of boxes, merges and frames, joined by curves that cross no box.

A frame holds a figure; the links to it run on inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gflownet.pictures.figure import (
    DETAIL_COLOUR,
    NOTE_COLOUR,
    TEXT_COLOUR,
    Cell,
    Colours,
    Figure,
    FigureLink,
    Form,
    Item,
    xml_text,
)
from gflownet.pictures.layers import Slot, linked_lanes, ordered, spread

# Pixels.
CELL_HEIGHT = 27.0
SMALL_HEIGHT = 19.0
CIRCLE_SIZE = 24.0
MIN_WIDTH = 96.0
CHARACTER_WIDTH = 6.9  # upper bound for a 12-pixel sans-serif
SMALL_CHARACTER_WIDTH = 5.8  # for 10 pixels
ROW_GAP = 30.0
PADDING = 16.0  # within a frame
HEADER = 20.0  # of a frame: its title
PORT_GAP = 9.0
ARROW_LENGTH = 7.0
DETAIL_HEIGHT = 15.0  # of the second line of a cell
ROW_GAP_PER_LINK, MAX_ROW_GAP = 2.0, 90.0  # wider gaps where many links run side by side
TURN_MARGIN = 26.0  # above and below a figure with links that run upwards
MAX_TURN = 24.0  # distance of the control points of a turn from its row
MARGIN = 22.0
_LEGEND_STEP, _LEGEND_LINE = 112.0, 18.0
MIN_LEGEND_WIDTH = 260.0


@dataclass
class _Placed:
    """An item with its size and position; x is the middle."""

    item: Item
    width: float
    height: float
    inner: FigureLayout | None
    axis: float = 0.0  # x of the main path from the middle, to the right
    slot: Slot = field(init=False)
    top: float = 0.0

    def __post_init__(self) -> None:
        self.slot = Slot(self.item.row, self.width, is_lane=False)

    @property
    def x(self) -> float:
        return self.slot.at


class FigureLayout:
    """The coordinates of a figure; its top left corner is (0, 0)."""

    def __init__(self, figure: Figure) -> None:
        self._links = figure.links
        self._placed = {key: _placed(item) for key, item in figure.items.items()}
        self._lanes = [
            linked_lanes(self._placed[link.source].slot, self._placed[link.target].slot) for link in figure.links
        ]
        rows: list[list[Slot]] = [[] for _ in range(max((item.row for item in figure.items.values()), default=-1) + 1)]
        for slot in self._slots():
            rows[slot.layer].append(slot)
        rows = ordered(rows)
        spread(rows, self._main_path(rows), self._lanes)
        self._set_tops([sum(len(slot.after) for slot in row) for row in rows])
        self._leaving, self._entering = self._ends(leave=True), self._ends(leave=False)
        self.axis = 0.0  # x of the main path
        self.width = self._shift()

    def _is_backward(self, link: FigureLink) -> bool:
        return self._placed[link.source].item.row >= self._placed[link.target].item.row

    def _slots(self) -> list[Slot]:
        return [each.slot for each in self._placed.values()] + [lane for lanes in self._lanes for lane in lanes]

    def _main_path(self, rows: Sequence[Sequence[Slot]]) -> dict[Slot, float]:
        """Return the slots of a longest path, with their x: items in a straight line, in the middle of their rows."""
        aside = {slot: abs(rank - (len(row) - 1) / 2) for row in rows for rank, slot in enumerate(row)}
        lengths, before, best = dict.fromkeys(self._placed, 0), dict[int, int](), dict[int, tuple[int, float]]()
        for number in sorted(
            range(len(self._links)), key=lambda number: self._placed[self._links[number].target].item.row
        ):
            link = self._links[number]
            if self._is_backward(link):
                continue
            length, middle = lengths[link.source] + 1, -aside[self._placed[link.source].slot]
            if (length, middle) > best.get(link.target, (0, 0.0)):
                best[link.target] = length, middle
                lengths[link.target], before[link.target] = length, number
        if not lengths:
            return {}
        key = max(lengths, key=lambda key: (lengths[key], -key))
        slots = {self._placed[key].slot: -self._placed[key].axis}
        while key in before:
            slots |= dict.fromkeys(self._lanes[before[key]], 0.0)
            key = self._links[before[key]].source
            slots[self._placed[key].slot] = -self._placed[key].axis
        return slots

    def _set_tops(self, num_links: Sequence[int]) -> None:
        """Set the top of every row and item; an item is at the middle of its row.

        Args:
            num_links: between each row and the next.
        """
        heights = [0.0] * len(num_links)
        for each in self._placed.values():
            heights[each.item.row] = max(heights[each.item.row], each.height)
        self._rows: list[tuple[float, float]] = []
        margin = TURN_MARGIN if any(map(self._is_backward, self._links)) else 0.0
        y, gap = margin, 0.0
        for height, num in zip(heights, num_links, strict=True):
            self._rows.append((y, y + height))
            gap = min(MAX_ROW_GAP, ROW_GAP + ROW_GAP_PER_LINK * max(0, num - 3))
            y += height + gap
        self.height = max(0.0, y - gap + margin)
        for each in self._placed.values():
            top, bottom = self._rows[each.item.row]
            each.top = (top + bottom - each.height) / 2

    def _ends(self, *, leave: bool) -> list[float]:
        """Return the x at which every link leaves its source or enters its target."""
        sides: dict[int, list[tuple[float, int]]] = {}
        ends = [0.0] * len(self._links)
        for number, (link, lanes) in enumerate(zip(self._links, self._lanes, strict=True)):
            key, other, port = (
                (link.source, link.target, link.exit) if leave else (link.target, link.source, link.entry)
            )
            near = self._placed[other].x + self._placed[other].axis if not lanes else lanes[0 if leave else -1].at
            near = near if leave or link.position is None else float(link.position)
            inner = self._placed[key].inner
            if inner is not None and port is not None:
                ends[number] = self._placed[key].x + self._placed[key].axis - inner.axis + inner._placed[port].x
            else:
                sides.setdefault(key, []).append((near, number))
        for key, near in sides.items():
            each = self._placed[key]
            if each.item.form is Form.PORT or (leave and each.item.form is Form.CIRCLE):
                gap = 0.0
            else:
                gap = min(PORT_GAP, (each.width - 12) / max(1, len(near) - 1))
            near.sort()
            is_ordered = not leave and any(self._links[number].position is not None for _, number in near)
            axis = each.x + each.axis
            straight = [] if is_ordered else [rank for rank, (x, _) in enumerate(near) if abs(x - axis) < 0.5]
            middle = straight[0] if straight else (len(near) - 1) / 2
            for rank, (_, number) in enumerate(near):
                ends[number] = each.x + (each.axis if straight else 0.0) + gap * (rank - middle)
        return ends

    def _shift(self) -> float:
        """Move everything right so that the smallest x is 0; return the width."""
        lanes = [lane.at for lanes in self._lanes for lane in lanes]
        lefts = [each.x - each.width / 2 for each in self._placed.values()] + [x - 4 for x in lanes]
        rights = [each.x + each.width / 2 for each in self._placed.values()] + [x + 4 for x in lanes]
        for each in self._placed.values():
            if each.item.note:
                rights.append(each.x + 10 + len(each.item.note) * SMALL_CHARACTER_WIDTH)
        left = min(lefts, default=0.0)
        self.axis = -left
        for slot in self._slots():
            slot.at -= left
        self._leaving = [x - left for x in self._leaving]
        self._entering = [x - left for x in self._entering]
        return max(rights, default=0.0) - left

    def svg(self, x: float, y: float) -> list[str]:
        """Return the elements of the figure with its top left corner at (x, y): frames, links, boxes, notes."""
        frames = [line for each in self._placed.values() if each.inner for line in self._frame(each, each.inner, x, y)]
        links = [self._link(number, x, y) for number in range(len(self._links))]
        boxes = [line for each in self._placed.values() for line in _item_svg(each, x, y)]
        return [*frames, *links, *boxes, *self._notes(x, y)]

    def _frame(self, each: _Placed, inner: FigureLayout, x: float, y: float) -> list[str]:
        left, top, cell = x + each.x - each.width / 2, y + each.top, each.item.cells[0]
        return [
            f'<g><title>{xml_text(cell.tooltip)}</title><rect x="{left:.1f}" y="{top:.1f}" width="{each.width:.1f}" '
            f'height="{each.height:.1f}" rx="12" fill="{cell.colours.fill}" stroke="{cell.colours.stroke}" '
            f'stroke-width="1.3"/>'
            f'<text x="{left + 10:.1f}" y="{top + 17:.1f}" font-size="12" font-weight="bold" '
            f'text-anchor="start" fill="{NOTE_COLOUR}">{xml_text(cell.text)}</text></g>',
            *inner.svg(x + each.x + each.axis - inner.axis, top + HEADER),
        ]

    def _link(self, number: int, x: float, y: float) -> str:
        link, lanes = self._links[number], self._lanes[number]
        source, target = self._placed[link.source], self._placed[link.target]
        at, start = x + self._leaving[number], y + source.top + source.height
        commands = [f"M{at:.1f} {start:.1f}"]
        bottom, backward = y + self._rows[source.item.row][1], self._is_backward(link)
        if bottom > start:
            commands.append(f"V{bottom:.1f}")
        for place, lane in enumerate(lanes):
            ends = [y + end for end in self._rows[lane.layer]]
            enters, leaves = reversed(ends) if backward else ends
            is_turn = backward and place == 0
            commands.append((_turn if is_turn else _curve)(at, bottom, x + lane.at, enters))
            commands.append(f"V{leaves:.1f}")
            at, bottom = x + lane.at, leaves
        has_arrow = link.style.has_arrow and target.item.form not in (Form.FRAME, Form.PORT)
        end, tip = x + self._entering[number], y + target.top + (HEADER if target.inner is not None else 0.0)
        row_top = y + self._rows[target.item.row][0]
        arrives = row_top - (ARROW_LENGTH if has_arrow and row_top == tip else 0)
        commands.append(_turn(at, bottom, end, arrives, side=-1) if backward else _curve(at, bottom, end, arrives))
        if tip > row_top:
            commands.append(f"V{tip - (ARROW_LENGTH if has_arrow else 0):.1f}")
        tooltip = f"<title>{xml_text(link.tooltip)}</title>" if link.tooltip else ""
        arrow = f'<path d="M{end:.1f} {tip:.1f} l-4 -{ARROW_LENGTH:.0f} h8 z" fill="{link.style.colour}"/>'
        return (
            f'<g>{tooltip}<path d="{" ".join(commands)}" fill="none" stroke="{link.style.colour}" stroke-width="1.5" '
            f'stroke-linecap="round" stroke-dasharray="{link.style.dashes}"/>{arrow if has_arrow else ""}</g>'
        )

    def _notes(self, x: float, y: float) -> list[str]:
        """Return the shapes next to the links that leave an item, and the names of ports at arrows."""
        notes = []
        for key, each in self._placed.items():
            exits = [self._leaving[number] for number, link in enumerate(self._links) if link.source == key]
            if each.item.note and exits:
                notes.append(_note(x + max(exits) + 6, y + each.top + each.height + 13, each.item.note, "start"))
        for number, link in enumerate(self._links):
            if link.label:
                end, top = x + self._entering[number], y + self._placed[link.target].top
                is_right = link.position == 1
                notes.append(_note(end + (6 if is_right else -6), top - 4, link.label, "start" if is_right else "end"))
        return notes


def _placed(item: Item) -> _Placed:
    longest = max((max(len(cell.text), len(cell.detail) * 10 / 12) for cell in item.cells), default=0)
    match item.form:
        case Form.PORT:
            return _Placed(item, 2.0, 0.0, None)
        case Form.CIRCLE:
            return _Placed(item, max(CIRCLE_SIZE, longest * CHARACTER_WIDTH + 10), CIRCLE_SIZE, None)
        case Form.SMALL:
            return _Placed(item, longest * SMALL_CHARACTER_WIDTH + 14, SMALL_HEIGHT, None)
        case Form.FRAME if item.inner is not None:
            inner = FigureLayout(item.inner)
            left = max(inner.axis + PADDING, longest * CHARACTER_WIDTH + 20)
            width = left + inner.width - inner.axis + PADDING
            return _Placed(item, width, inner.height + HEADER, inner, left - width / 2)
        case _:
            width = max(MIN_WIDTH, longest * CHARACTER_WIDTH + 22)
            return _Placed(item, width, sum(map(_cell_height, item.cells)), None)


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a curve that leaves and arrives upright; a straight line where it can."""
    if abs(x - to_x) < 0.5:
        return f"L{to_x:.1f} {to_y:.1f}"
    middle = (y + to_y) / 2
    return f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"


def _turn(x: float, y: float, to_x: float, to_y: float, side: int = 1) -> str:
    """Return a curve that leaves to one side (1 below, -1 above) and comes back from it."""
    bulge = side * min(MAX_TURN, 10 + abs(to_x - x) / 2)
    return f"C{x:.1f} {y + bulge:.1f} {to_x:.1f} {to_y + bulge:.1f} {to_x:.1f} {to_y:.1f}"


def _note(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" text-anchor="{anchor}" fill="{NOTE_COLOUR}" stroke="#ffffff" '
        f'stroke-width="3" paint-order="stroke">{xml_text(text)}</text>'
    )


def _cell_height(cell: Cell) -> float:
    return CELL_HEIGHT + (DETAIL_HEIGHT if cell.detail else 0.0)


def _item_svg(each: _Placed, x: float, y: float) -> list[str]:
    if each.item.form in (Form.PORT, Form.FRAME):
        return []
    left, top = x + each.x - each.width / 2, y + each.top
    size = 10 if each.item.form is Form.SMALL else 12
    radius = {Form.BOX: 7.0, Form.SMALL: 5.0}.get(each.item.form, min(each.height, CELL_HEIGHT) / 2)
    dashes = ' stroke-dasharray="4 3"' if each.item.form is Form.SMALL else ""
    lines = []
    for cell in each.item.cells:
        height = _cell_height(cell) if each.item.form in (Form.BOX, Form.PILL) else each.height
        base = top + (height - (DETAIL_HEIGHT if cell.detail else 0)) / 2 + size * 0.36
        detail = (
            f'<text x="{x + each.x:.1f}" y="{base + DETAIL_HEIGHT:.1f}" font-size="10" '
            f'fill="{DETAIL_COLOUR}">{xml_text(cell.detail)}</text>'
        )
        lines.append(
            f'<g><title>{xml_text(cell.tooltip)}</title><rect x="{left:.1f}" y="{top:.1f}" '
            f'width="{each.width:.1f}" height="{height:.1f}" rx="{radius:.0f}" fill="{cell.colours.fill}" '
            f'stroke="{cell.colours.stroke}" stroke-width="{cell.stroke_width}"{dashes}/>'
            f'<text x="{x + each.x:.1f}" y="{base:.1f}" font-size="{size}" '
            f'fill="{TEXT_COLOUR}">{xml_text(cell.text)}</text>{detail if cell.detail else ""}</g>'
        )
        top += height
    return lines


def figure_svg(figure: Figure, *, title: str, caption: str = "", legend: Mapping[str, Colours] | None = None) -> str:
    """Return a figure as an SVG document.

    Args:
        figure: to draw.
        title: of the document.
        caption: below the figure.
        legend: names of colours, below the caption.
    """
    layout = FigureLayout(figure)
    inner_width = max(layout.width, MIN_LEGEND_WIDTH if caption or legend else 0.0)
    entries, legend_height = _legend(legend or {}, inner_width)
    bottom = MARGIN + layout.height + 26
    width = inner_width + 2 * MARGIN
    height = layout.height + 2 * MARGIN + (34 + legend_height if caption or legend else 0.0)
    foot = f'<text x="{width / 2:.1f}" y="{bottom:.1f}" font-size="11" fill="{NOTE_COLOUR}">{xml_text(caption)}</text>'
    return "\n".join(
        (
            svg_head(width, height, title),
            *layout.svg(MARGIN + (inner_width - layout.width) / 2, MARGIN),
            *([foot] if caption else []),
            *([f'<g transform="translate({MARGIN:.0f} {bottom + 12:.0f})">{entries}</g>'] if legend else []),
            "</svg>\n",
        )
    )


def svg_head(width: float, height: float, title: str) -> str:
    """Return the start of an SVG document with a white background."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" '
        f'text-anchor="middle">\n<title>{xml_text(title)}</title>\n'
        '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>'
    )


def _legend(names: Mapping[str, Colours], width: float) -> tuple[str, float]:
    """Return a square and a name for every colour, in lines of a width, and the height."""
    per_line = max(1, int(width // _LEGEND_STEP))
    parts = []
    for place, (name, colours) in enumerate(names.items()):
        x, y = _LEGEND_STEP * (place % per_line), _LEGEND_LINE * (place // per_line)
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="11" height="11" rx="3" fill="{colours.fill}" '
            f'stroke="{colours.stroke}"/><text x="{x + 17:.0f}" y="{y + 9.5:.1f}" font-size="10.5" '
            f'text-anchor="start" fill="{NOTE_COLOUR}">{xml_text(name)}</text>'
        )
    return "".join(parts), _LEGEND_LINE * -(-len(names) // per_line)
