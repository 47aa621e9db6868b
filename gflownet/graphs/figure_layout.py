"""Top-to-bottom figures of networks: rows of boxes, merges and frames, joined by curves that cross no box; as SVG.

The order within a row and the positions come from `gflownet.layered_drawing`, with rows in place of columns. A frame
holds a figure of its own; the links to it run on inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gflownet.graphs.figure import Figure, Form, Item
from gflownet.layered_drawing import (
    BOX_GAP,
    LANE_GAP,
    TEXT_COLOUR,
    Slot,
    linked_lanes,
    mean_linked_y,
    ordered,
    place,
    xml_text,
)

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
NUM_SWEEPS = 12
NOTE_COLOUR = "#475569"


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
        self.slot = Slot(self.item.row, None, self.width, is_lane=False)

    @property
    def x(self) -> float:
        return self.slot.y


class FigureLayout:
    """The coordinates of a figure; its top left corner is (0, 0)."""

    def __init__(self, figure: Figure) -> None:
        self._links = figure.links
        self._placed = {key: _placed(item) for key, item in figure.items.items()}
        self._lanes = [
            linked_lanes(self._placed[link.source].slot, self._placed[link.target].slot) for link in figure.links
        ]
        rows: list[list[Slot]] = [[] for _ in range(max((item.row for item in figure.items.values()), default=-1) + 1)]
        for slot in (
            *(each.slot for each in self._placed.values()),
            *(lane for lanes in self._lanes for lane in lanes),
        ):
            rows[slot.column].append(slot)
        rows = ordered(rows)
        _spread(rows, self._main_path(), self._lanes)
        self._set_tops(len(rows))
        self._leaving, self._entering = self._ends(leave=True), self._ends(leave=False)
        self.axis = 0.0  # x of the main path
        self.width = self._shift()

    def _slots(self) -> list[Slot]:
        return [each.slot for each in self._placed.values()] + [lane for lanes in self._lanes for lane in lanes]

    def _main_path(self) -> dict[Slot, float]:
        """Return the slots of a longest path, with their x: items in a straight line."""
        lengths, before = dict.fromkeys(self._placed, 0), dict[int, int]()
        for number in sorted(
            range(len(self._links)), key=lambda number: self._placed[self._links[number].target].item.row
        ):
            link = self._links[number]
            if lengths[link.source] + 1 > lengths[link.target]:
                lengths[link.target], before[link.target] = lengths[link.source] + 1, number
        if not lengths:
            return {}
        key = max(lengths, key=lambda key: (lengths[key], -key))
        slots = {self._placed[key].slot: -self._placed[key].axis}
        while key in before:
            slots |= dict.fromkeys(self._lanes[before[key]], 0.0)
            key = self._links[before[key]].source
            slots[self._placed[key].slot] = -self._placed[key].axis
        return slots

    def _set_tops(self, num_rows: int) -> None:
        """Set the top of every row and item; an item is at the middle of its row."""
        heights = [0.0] * num_rows
        for each in self._placed.values():
            heights[each.item.row] = max(heights[each.item.row], each.height)
        self._rows: list[tuple[float, float]] = []
        y = 0.0
        for height in heights:
            self._rows.append((y, y + height))
            y += height + ROW_GAP
        self.height = max(0.0, y - ROW_GAP)
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
            near = self._placed[other].x + self._placed[other].axis if not lanes else lanes[0 if leave else -1].y
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
            straight = [rank for rank, (x, _) in enumerate(near) if abs(x - each.x - each.axis) < 0.5]
            middle = straight[0] if straight else (len(near) - 1) / 2
            for rank, (_, number) in enumerate(near):
                ends[number] = each.x + (each.axis if straight else 0.0) + gap * (rank - middle)
        return ends

    def _shift(self) -> float:
        """Move everything right so that the smallest x is 0; return the width."""
        lanes = [lane.y for lanes in self._lanes for lane in lanes]
        lefts = [each.x - each.width / 2 for each in self._placed.values()] + [x - 4 for x in lanes]
        rights = [each.x + each.width / 2 for each in self._placed.values()] + [x + 4 for x in lanes]
        for each in self._placed.values():
            if each.item.note:
                rights.append(each.x + 10 + len(each.item.note) * SMALL_CHARACTER_WIDTH)
        left = min(lefts, default=0.0)
        self.axis = -left
        for slot in (
            *(each.slot for each in self._placed.values()),
            *(lane for lanes in self._lanes for lane in lanes),
        ):
            slot.y -= left
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
            f'height="{each.height:.1f}" rx="12" fill="{cell.fill}" stroke="{cell.stroke}" stroke-width="1.3"/>'
            f'<text x="{left + 10:.1f}" y="{top + 17:.1f}" font-size="12" font-weight="bold" '
            f'text-anchor="start" fill="{NOTE_COLOUR}">{xml_text(cell.text)}</text></g>',
            *inner.svg(x + each.x + each.axis - inner.axis, top + HEADER),
        ]

    def _link(self, number: int, x: float, y: float) -> str:
        link, lanes = self._links[number], self._lanes[number]
        source, target = self._placed[link.source], self._placed[link.target]
        at, start = x + self._leaving[number], y + source.top + source.height
        commands = [f"M{at:.1f} {start:.1f}"]
        bottom = y + self._rows[source.item.row][1]
        if bottom > start:
            commands.append(f"V{bottom:.1f}")
        for lane in lanes:
            top, following = self._rows[lane.column]
            commands += [_curve(at, bottom, x + lane.y, y + top), f"V{y + following:.1f}"]
            at, bottom = x + lane.y, y + following
        has_arrow = target.item.form not in (Form.FRAME, Form.PORT)
        end, tip = x + self._entering[number], y + target.top + (HEADER if target.inner is not None else 0.0)
        row_top = y + self._rows[target.item.row][0]
        commands.append(_curve(at, bottom, end, row_top - (ARROW_LENGTH if has_arrow and row_top == tip else 0)))
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
                notes.append(_note(end - 6, top - 4, link.label, "end"))
        return notes


def _placed(item: Item) -> _Placed:
    longest = max((len(cell.text) for cell in item.cells), default=0)
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
            return _Placed(item, width, CELL_HEIGHT * len(item.cells), None)


def _spread(rows: list[list[Slot]], fixed: Mapping[Slot, float], lanes: Sequence[Sequence[Slot]]) -> None:
    """Set the x of every slot (its `y`): the main path fixed, the others next to the slots that they are linked to."""
    for row in rows:
        place(row, [0.0] * len(row))
    for sweep in range(NUM_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            targets = [fixed[slot] if slot in fixed else mean_linked_y(slot) for slot in row]
            place(row, targets)
            for centre in (rank for rank, slot in enumerate(row) if slot in fixed):
                row[centre].y = fixed[row[centre]]
                _push_outwards(row, centre, targets)
    for _ in range(NUM_SWEEPS if fixed else 0):  # the lanes of one link: in a straight line, outside of all rows
        for group in (group for group in lanes if group and group[0] not in fixed):
            furthest = max((lane.y for lane in group), key=abs)
            for lane in group:
                lane.y = furthest
        for row in rows:
            for centre in (rank for rank, slot in enumerate(row) if slot in fixed):
                _push_outwards(row, centre, [slot.y for slot in row])


def _push_outwards(row: list[Slot], centre: int, targets: list[float]) -> None:
    """Set the x of the slots on both sides of one: at their targets, or as close as the gaps allow."""
    for rank in range(centre + 1, len(row)):
        row[rank].y = max(targets[rank], row[rank - 1].y + _distance(row[rank - 1], row[rank]))
    for rank in range(centre - 1, -1, -1):
        row[rank].y = min(targets[rank], row[rank + 1].y - _distance(row[rank], row[rank + 1]))


def _distance(first: Slot, second: Slot) -> float:
    return (first.height + second.height) / 2 + (LANE_GAP if first.is_lane or second.is_lane else BOX_GAP)


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a curve that leaves and arrives upright; a straight line where it can."""
    if abs(x - to_x) < 0.5:
        return f"L{to_x:.1f} {to_y:.1f}"
    middle = (y + to_y) / 2
    return f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"


def _note(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" text-anchor="{anchor}" fill="{NOTE_COLOUR}" stroke="#ffffff" '
        f'stroke-width="3" paint-order="stroke">{xml_text(text)}</text>'
    )


def _item_svg(each: _Placed, x: float, y: float) -> list[str]:
    """Return the cells of an item and their texts."""
    if each.item.form in (Form.PORT, Form.FRAME):
        return []
    left, top = x + each.x - each.width / 2, y + each.top
    size = 10 if each.item.form is Form.SMALL else 12
    height = each.height / len(each.item.cells)
    radius = {Form.BOX: 7.0, Form.SMALL: 5.0}.get(each.item.form, each.height / 2)
    dashes = ' stroke-dasharray="4 3"' if each.item.form is Form.SMALL else ""
    lines = []
    for number, cell in enumerate(each.item.cells):
        cell_top = top + number * height
        lines.append(
            f'<g><title>{xml_text(cell.tooltip)}</title><rect x="{left:.1f}" y="{cell_top:.1f}" '
            f'width="{each.width:.1f}" height="{height:.1f}" rx="{radius:.0f}" fill="{cell.fill}" '
            f'stroke="{cell.stroke}" stroke-width="1.3"{dashes}/>'
            f'<text x="{x + each.x:.1f}" y="{cell_top + height / 2 + size * 0.36:.1f}" font-size="{size}" '
            f'fill="{TEXT_COLOUR}">{xml_text(cell.text)}</text></g>'
        )
    return lines
