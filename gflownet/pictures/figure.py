"""Figures of graphs from top to bottom: items joined by links; a frame holds a figure. DOT text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from graphlib import TopologicalSorter
from html import escape

TEXT_COLOUR, NOTE_COLOUR, DETAIL_COLOUR = "#0f172a", "#475569", "#64748b"


class Form(StrEnum):
    """The look of an item."""

    BOX = "box"
    PILL = "pill"  # an input or output
    CIRCLE = "circle"  # a merge
    SMALL = "small"  # an adapter, dashed
    FRAME = "frame"  # a subgraph
    PORT = "port"  # the end of a link at the border of a frame


@dataclass(frozen=True)
class Colours:
    """Fill and stroke, with six digits: Graphviz draws #eef black."""

    fill: str
    stroke: str


PLAIN = Colours("#ffffff", "#475569")


@dataclass(frozen=True)
class Cell:
    """The look of an item: a line of text, and a smaller one."""

    text: str
    colours: Colours = PLAIN
    tooltip: str = ""
    detail: str = ""
    stroke_width: float = 1.3


@dataclass(frozen=True)
class Item:
    """A node of a figure."""

    form: Form
    cell: Cell  # of a frame: its title
    note: str = ""  # written below, at the link that leaves
    inner: Figure | None = None  # of a frame
    is_last: bool = False  # in the last row, unless it has a user


@dataclass(frozen=True)
class LinkStyle:
    """Colour and dashes of a kind of link."""

    colour: str = "#475569"
    dashes: str = "none"  # SVG stroke-dasharray
    dot_style: str = "solid"
    has_arrow: bool = True


FORWARD = LinkStyle()
UNDIRECTED = LinkStyle(has_arrow=False)
DISABLED = LinkStyle("#9ca3af", "1.5 4.5", "dotted")
RECURRENT = LinkStyle("#d97706", "7 5", "dashed")
ADAPTED = LinkStyle("#64748b", "4 3", "dashed")


@dataclass(frozen=True)
class FigureLink:
    """A link between two items, by key; `entry` and `exit` are items of form PORT inside of a frame."""

    source: int
    target: int
    label: str = ""  # at the arrow
    tooltip: str = ""
    style: LinkStyle = FORWARD
    entry: int | None = None
    exit: int | None = None
    position: int | None = None  # place among the links into the target, from the left; None: by place of the source
    is_ranked: bool = True  # puts the target below the source


@dataclass(frozen=True)
class Figure:
    """Items by key, and their links, of which those that are ranked have no cycle."""

    items: Mapping[int, Item]
    links: Sequence[FigureLink]

    @cached_property
    def rows(self) -> dict[int, int]:
        """The row of each item, from 0 without gaps: as high as its sources allow; one without a source at its use."""
        sources: dict[int, list[int]] = {key: [] for key in self.items}
        uses: dict[int, list[int]] = {key: [] for key in self.items}
        for link in self.links:
            if link.is_ranked:
                sources[link.target].append(link.source)
                uses[link.source].append(link.target)
        rows: dict[int, int] = {}
        for key in TopologicalSorter(sources).static_order():
            rows[key] = 1 + max((rows[source] for source in sources[key]), default=-1)
        last = max(rows.values(), default=0)
        for key, item in self.items.items():
            if item.is_last and not uses[key]:
                rows[key] = last
            elif uses[key] and not sources[key] and item.form not in (Form.PILL, Form.PORT):
                rows[key] = min(rows[use] for use in uses[key]) - 1
        return rows


_SHAPES = {Form.CIRCLE: "circle", Form.PORT: "point"}


def figure_dot(figure: Figure) -> str:
    """Return a figure in Graphviz's DOT language, top to bottom, with the colours of the SVG; frames are clusters."""
    head = [
        "digraph {",
        "  rankdir=TB;",
        '  node [style="rounded,filled" fontname="Helvetica"];',
        '  edge [fontname="Helvetica" fontsize=9];',
    ]
    return "\n".join([*head, *_dot_lines(figure, "n"), "}\n"])


def _dot_lines(figure: Figure, prefix: str) -> Iterator[str]:
    for key, item in figure.items.items():
        if item.inner is not None:
            yield f'  subgraph cluster_{prefix}{key} {{ label="{dot_text(item.cell.text)}";'
            yield from _dot_lines(item.inner, f"{prefix}{key}_")
            yield "  }"
            continue
        label = "\\n".join(dot_text(text) for text in (item.cell.text, item.cell.detail) if text)
        look = f'label="{label}" shape={_SHAPES.get(item.form, "box")}'
        if item.form is not Form.PORT:
            cell = item.cell
            look += f' fillcolor="{cell.colours.fill}" color="{cell.colours.stroke}" penwidth={cell.stroke_width}'
        yield f"  {prefix}{key} [{look}];"
    for link in figure.links:
        source = f"{prefix}{link.source}" + ("" if link.exit is None else f"_{link.exit}")
        target = f"{prefix}{link.target}" + ("" if link.entry is None else f"_{link.entry}")
        look = f'color="{link.style.colour}" style="{link.style.dot_style}"'
        if note := figure.items[link.source].note:
            look += f' label="{dot_text(note)}"'
        if link.label:
            look += f' headlabel="{dot_text(link.label)}"'
        if figure.rows[link.source] >= figure.rows[link.target]:
            look += " constraint=false"
        yield f"  {source} -> {target} [{look}];"


def shortened(text: str, max_length: int) -> str:
    """Return a text of at most `max_length` characters, cut with an ellipsis."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def xml_text(text: str) -> str:
    """Return the text with markup escaped and characters that XML forbids replaced."""
    return escape(_visible(text))


def dot_text(text: str) -> str:
    """Return the text for a label in quotes, with control characters replaced."""
    return _visible(text.replace("\n", " ")).replace("\\", "\\\\").replace('"', '\\"')


def _visible(text: str) -> str:
    """Replace control characters, lone surrogates and the like."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
