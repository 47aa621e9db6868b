"""Figures of networks: items in rows, joined by links; a frame holds a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gflownet.layered_drawing import LinkStyle

_FORWARD = LinkStyle()


class Form(StrEnum):
    """The look of an item."""

    BOX = "box"
    PILL = "pill"  # an input or output
    CIRCLE = "circle"  # a merge
    SMALL = "small"  # an adapter, dashed
    FRAME = "frame"  # a subgraph
    PORT = "port"  # the end of a link at the border of a frame


@dataclass(frozen=True)
class Cell:
    """One line of an item. Colours have six digits."""

    text: str
    fill: str
    stroke: str
    tooltip: str = ""


@dataclass(frozen=True)
class Item:
    """A node of a figure."""

    row: int
    form: Form
    cells: tuple[Cell, ...]  # from top to bottom; of a frame: its title
    note: str = ""  # written below, at the link that leaves
    inner: Figure | None = None  # of a frame


@dataclass(frozen=True)
class FigureLink:
    """A link between two items, by key; `entry` and `exit` are items of form PORT inside of a frame."""

    source: int
    target: int
    label: str = ""  # at the arrow
    tooltip: str = ""
    style: LinkStyle = _FORWARD
    entry: int | None = None
    exit: int | None = None


@dataclass(frozen=True)
class Figure:
    """Items by key, and links from lower to higher rows; no row is empty."""

    items: Mapping[int, Item]
    links: Sequence[FigureLink]
