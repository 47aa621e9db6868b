"""Layout of figures, and SVG documents: rows of boxes, merges and frames, joined by curves that cross no box.

The layout is layered (Sugiyama, Tagawa and Toda, 1981): barycentre sweeps order the items of each row, least squares
place them, and a link that skips rows passes all of them at one x between their boxes. A frame holds a figure; the
links to it run on inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gflownet.pictures.figure import (
    DETAIL_COLOUR,
    NOTE_COLOUR,
    TEXT_COLOUR,
    Colours,
    Figure,
    FigureLink,
    Form,
    Item,
    xml_text,
)

# Pixels.
CELL_HEIGHT = 27.0
SMALL_HEIGHT = 19.0
CIRCLE_SIZE = 24.0
MIN_WIDTH = 96.0
CHARACTER_WIDTH = 6.9  # upper bound for a 12-pixel sans-serif
SMALL_CHARACTER_WIDTH = 5.8  # for 10 pixels
BOX_GAP, LINK_GAP = 20.0, 10.0  # between boxes of a row; between a link that passes a row and its neighbours
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
_NUM_SWEEPS = 12


@dataclass(eq=False)
class _Placed:
    """An item with its position: x is that of its links, from which it extends to both sides."""

    item: Item
    row: int
    left: float
    right: float
    height: float
    inner: FigureLayout | None = None
    x: float = 0.0
    top: float = 0.0


class FigureLayout:
    """The coordinates of a figure; its top left corner is (0, 0)."""

    def __init__(self, figure: Figure) -> None:
        self._links = figure.links
        self._placed = {key: _placed(item, figure.rows[key]) for key, item in figure.items.items()}
        rows: list[list[_Placed]] = [[] for _ in set(figure.rows.values())]
        for each in self._placed.values():
            rows[each.row].append(each)
        linked: dict[_Placed, list[_Placed]] = {each: [] for each in self._placed.values()}
        for source, target in map(self._ends_of, figure.links):
            if source.row != target.row:
                linked[source].append(target)
                linked[target].append(source)
        _order(rows, linked)
        for sweep in range(_NUM_SWEEPS):
            for row in rows if sweep % 2 == 0 else reversed(rows):
                _settle(row, [_mean([other.x for other in linked[each]], each.x) for each in row])
        self._passing: list[tuple[float, range]] = []  # x of the links that pass rows, and these
        self._set_tops(rows)
        self._bends = [self._bend(link) for link in self._links]
        self._leaving, self._entering = self._link_ends(leave=True), self._link_ends(leave=False)
        lefts = [each.x - each.left for each in self._placed.values()] + [x - 4 for x, _ in self._passing]
        rights = [each.x + max(each.right, 10 + len(each.item.note) * SMALL_CHARACTER_WIDTH) for each in linked]
        rights += [x + 4 for x, _ in self._passing]
        self._move(-min(lefts, default=0.0), 0.0)
        self.width = max(rights, default=0.0) - min(lefts, default=0.0)
        self.axis = rows[-1][0].x if rows else 0.0  # x of the output

    def _ends_of(self, link: FigureLink) -> tuple[_Placed, _Placed]:
        return self._placed[link.source], self._placed[link.target]

    def _is_backward(self, link: FigureLink) -> bool:
        source, target = self._ends_of(link)
        return source.row >= target.row

    def _set_tops(self, rows: Sequence[Sequence[_Placed]]) -> None:
        """Set the top of every row and item; an item is at the middle of its row."""
        margin = TURN_MARGIN if any(map(self._is_backward, self._links)) else 0.0
        self._rows: list[tuple[float, float]] = []
        y, gap = margin, 0.0
        spans = [sorted(each.row for each in self._ends_of(link)) for link in self._links]
        for number, row in enumerate(rows):
            height = max((each.height for each in row), default=0.0)
            for each in row:
                each.top = y + (height - each.height) / 2
            self._rows.append((y, y + height))
            num_links = sum(first <= number < last for first, last in spans)
            gap = min(MAX_ROW_GAP, ROW_GAP + ROW_GAP_PER_LINK * max(0, num_links - 3))
            y += height + gap
        self.height = max(0.0, y - gap + margin)

    def _bend(self, link: FigureLink) -> float | None:
        """Return the x at which a link passes the rows between its ends, close to both; None without such rows.

        A link that runs upwards passes the rows of its ends, too.
        """
        source, target = self._ends_of(link)
        first, last = source.row + 1, target.row
        passed = range(last, first) if self._is_backward(link) else range(first, last)
        if not passed:
            return None
        taken = [(x - LINK_GAP, x + LINK_GAP) for x, rows in self._passing if set(rows) & set(passed)]
        for each in self._placed.values():
            if each.row in passed:
                taken.append((each.x - each.left - LINK_GAP, each.x + each.right + LINK_GAP))
        choices = [source.x, target.x, *(end for ends in taken for end in ends)]
        free = [x for x in choices if not any(low < x < high for low, high in taken)]
        bend = min(free, key=lambda x: (abs(x - source.x) + abs(x - target.x), x))
        self._passing.append((bend, passed))
        return bend

    def _link_ends(self, *, leave: bool) -> list[float]:
        """Return the x at which every link leaves its source or enters its target."""
        sides: dict[_Placed, list[tuple[float, int]]] = {}
        ends = [0.0] * len(self._links)
        for number, (link, bend) in enumerate(zip(self._links, self._bends, strict=True)):
            source, target = self._ends_of(link)
            near, far, port = (source, target, link.exit) if leave else (target, source, link.entry)
            if near.inner is not None and port is not None:
                ends[number] = near.x - near.inner.axis + near.inner._placed[port].x
                continue
            place = far.x if bend is None else bend
            is_ordered = not leave and link.position is not None
            sides.setdefault(near, []).append((float(link.position or 0) if is_ordered else place, number))
        for each, places in sides.items():
            places.sort()
            is_point = each.item.form is Form.PORT or (leave and each.item.form is Form.CIRCLE)
            gap = 0.0 if is_point else min(PORT_GAP, (each.left + each.right - 12) / max(1, len(places) - 1))
            straight = [rank for rank, (x, _) in enumerate(places) if abs(x - each.x) < 0.5]
            middle = straight[0] if straight else (len(places) - 1) / 2
            for rank, (_, number) in enumerate(places):
                ends[number] = each.x + gap * (rank - middle)
        return ends

    def _move(self, x: float, y: float) -> None:
        """Move everything; frames move their figures when they are drawn."""
        for each in self._placed.values():
            each.x, each.top = each.x + x, each.top + y
        self._rows = [(top + y, bottom + y) for top, bottom in self._rows]
        self._bends = [None if bend is None else bend + x for bend in self._bends]
        self._leaving, self._entering = ([end + x for end in ends] for ends in (self._leaving, self._entering))

    def svg(self, x: float, y: float) -> list[str]:
        """Move the top left corner to (x, y), and return the elements: frames, links, boxes, notes."""
        self._move(x, y)
        frames = [line for each in self._placed.values() if each.inner for line in _frame(each, each.inner)]
        links = [self._link(number, link) for number, link in enumerate(self._links)]
        boxes = [line for each in self._placed.values() for line in _item_svg(each)]
        return [*frames, *links, *boxes, *self._notes()]

    def _link(self, number: int, link: FigureLink) -> str:
        source, target = self._ends_of(link)
        at, bend, end = self._leaving[number], self._bends[number], self._entering[number]
        is_backward = self._is_backward(link)
        bottom, row_top = self._rows[source.row][1], self._rows[target.row][0]
        start = source.top + source.height
        commands = [f"M{at:.1f} {start:.1f}"] + [f"V{bottom:.1f}"] * (bottom > start)
        if bend is not None:
            enters = bottom if is_backward else self._rows[source.row + 1][0]
            leaves = row_top if is_backward else self._rows[target.row - 1][1]
            commands += [(_turn if is_backward else _curve)(at, bottom, bend, enters), f"V{leaves:.1f}"]
            at, bottom = bend, leaves
        has_arrow = link.style.has_arrow and target.item.form not in (Form.FRAME, Form.PORT)
        tip = target.top + (HEADER if target.inner is not None else 0.0)
        arrives = row_top - (ARROW_LENGTH if has_arrow and row_top == tip else 0)
        commands.append(_turn(at, bottom, end, arrives, side=-1) if is_backward else _curve(at, bottom, end, arrives))
        if tip > row_top:
            commands.append(f"V{tip - (ARROW_LENGTH if has_arrow else 0):.1f}")
        tooltip = f"<title>{xml_text(link.tooltip)}</title>" if link.tooltip else ""
        arrow = f'<path d="M{end:.1f} {tip:.1f} l-4 -{ARROW_LENGTH:.0f} h8 z" fill="{link.style.colour}"/>'
        return (
            f'<g>{tooltip}<path d="{" ".join(commands)}" fill="none" stroke="{link.style.colour}" stroke-width="1.5" '
            f'stroke-linecap="round" stroke-dasharray="{link.style.dashes}"/>{arrow if has_arrow else ""}</g>'
        )

    def _notes(self) -> list[str]:
        """Return the shapes next to the links that leave an item, and the names of ports at arrows."""
        notes = []
        for key, each in self._placed.items():
            exits = [self._leaving[number] for number, link in enumerate(self._links) if link.source == key]
            if each.item.note and exits:
                notes.append(_note(max(exits) + 6, each.top + each.height + 13, each.item.note, "start"))
        for number, link in enumerate(self._links):
            if link.label:
                end, top = self._entering[number], self._placed[link.target].top
                is_right = link.position == 1
                notes.append(_note(end + (6 if is_right else -6), top - 4, link.label, "start" if is_right else "end"))
        return notes


def _placed(item: Item, row: int) -> _Placed:
    longest = max(len(item.cell.text), len(item.cell.detail) * 10 / 12)
    width, height = max(MIN_WIDTH, longest * CHARACTER_WIDTH + 22), CELL_HEIGHT + DETAIL_HEIGHT * bool(item.cell.detail)
    match item.form:
        case Form.PORT:
            width, height = 2.0, 0.0
        case Form.CIRCLE:
            width, height = max(CIRCLE_SIZE, longest * CHARACTER_WIDTH + 10), CIRCLE_SIZE
        case Form.SMALL:
            width, height = longest * SMALL_CHARACTER_WIDTH + 14, SMALL_HEIGHT
        case Form.FRAME if item.inner is not None:
            inner = FigureLayout(item.inner)
            left = max(inner.axis + PADDING, longest * CHARACTER_WIDTH + 20)
            return _Placed(item, row, left, inner.width - inner.axis + PADDING, inner.height + HEADER, inner)
    return _Placed(item, row, width / 2, width / 2, height)


def _order(rows: Sequence[list[_Placed]], linked: Mapping[_Placed, Sequence[_Placed]]) -> None:
    """Sort the items of each row by the mean relative rank of those that they are linked to on one side."""
    share = {each: (rank + 0.5) / len(row) for row in rows for rank, each in enumerate(row)}
    for sweep in range(_NUM_SWEEPS):
        side = 1 if sweep % 2 == 0 else -1  # down by the rows above, up by those below
        for row in rows[::side]:
            means = {
                each: _mean([share[other] for other in linked[each] if (each.row - other.row) * side > 0], share[each])
                for each in row
            }
            row.sort(key=means.__getitem__)
            share |= {each: (rank + 0.5) / len(row) for rank, each in enumerate(row)}


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _settle(row: Sequence[_Placed], targets: Sequence[float]) -> None:
    """Move the items of a row close to the targets under order and gaps: least squares, by pooling neighbours."""
    offsets = [0.0]
    for first, second in pairwise(row):
        offsets.append(offsets[-1] + first.right + BOX_GAP + second.left)
    pools: list[tuple[float, int]] = []  # (mean, number of items), means ascending
    for target, offset in zip(targets, offsets, strict=False):
        mean, count = target - offset, 1
        while pools and pools[-1][0] > mean:
            pooled, size = pools.pop()
            mean, count = (mean * count + pooled * size) / (count + size), count + size
        pools.append((mean, count))
    settled = [mean for mean, count in pools for _ in range(count)]
    for each, offset, mean in zip(row, offsets, settled, strict=False):
        each.x = mean + offset


def _frame(each: _Placed, inner: FigureLayout) -> list[str]:
    left, cell = each.x - each.left, each.item.cell
    return [
        f'<g><title>{xml_text(cell.tooltip)}</title><rect x="{left:.1f}" y="{each.top:.1f}" '
        f'width="{each.left + each.right:.1f}" height="{each.height:.1f}" rx="12" fill="{cell.colours.fill}" '
        f'stroke="{cell.colours.stroke}" stroke-width="1.3"/>'
        f'<text x="{left + 10:.1f}" y="{each.top + 17:.1f}" font-size="12" font-weight="bold" '
        f'text-anchor="start" fill="{NOTE_COLOUR}">{xml_text(cell.text)}</text></g>',
        *inner.svg(each.x - inner.axis, each.top + HEADER),
    ]


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


def _item_svg(each: _Placed) -> list[str]:
    if each.item.form in (Form.PORT, Form.FRAME):
        return []
    left, top = each.x - each.left, each.top
    size = 10 if each.item.form is Form.SMALL else 12
    radius = {Form.BOX: 7.0, Form.SMALL: 5.0}.get(each.item.form, min(each.height, CELL_HEIGHT) / 2)
    dashes = ' stroke-dasharray="4 3"' if each.item.form is Form.SMALL else ""
    cell, base = each.item.cell, top + (each.height - (DETAIL_HEIGHT if each.item.cell.detail else 0)) / 2 + size * 0.36
    detail = (
        f'<text x="{each.x:.1f}" y="{base + DETAIL_HEIGHT:.1f}" font-size="10" '
        f'fill="{DETAIL_COLOUR}">{xml_text(cell.detail)}</text>'
    )
    return [
        f'<g><title>{xml_text(cell.tooltip)}</title><rect x="{left:.1f}" y="{top:.1f}" '
        f'width="{each.left + each.right:.1f}" height="{each.height:.1f}" rx="{radius:.0f}" fill="{cell.colours.fill}" '
        f'stroke="{cell.colours.stroke}" stroke-width="{cell.stroke_width}"{dashes}/>'
        f'<text x="{each.x:.1f}" y="{base:.1f}" font-size="{size}" '
        f'fill="{TEXT_COLOUR}">{xml_text(cell.text)}</text>{detail if cell.detail else ""}</g>'
    ]


def figure_svg(figure: Figure, *, title: str, caption: str = "", legend: Mapping[str, Colours] | None = None) -> str:
    """Return a figure as an SVG document.

    Caption and legend are below it.
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
