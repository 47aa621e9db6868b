"""Charts as data: marks with attributes that the template writes as SVG, a legend, and the same figures as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from gflownet.errors import printable
from gflownet.report.page.axes import Scale, number_text

# Pixels of the view box. Narrow, so that text stays readable on a phone.
WIDTH, HEIGHT = 460.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 14.0, 14.0, 46.0
NUM_COLOURS = 8
# Of `svg_of`: room above and at the sides of the chart, and colours in place of the style sheet of a page.
_TITLE_HEIGHT, _MARGIN = 26.0, 12.0
_STYLE = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:#0f172a}.title{font-weight:bold}.gridline{stroke:#e2e8f0}"
    ".axis{stroke:#0f172a;fill:none}.dot{fill:#dc2626}"
    ".dots{stroke:#94a3b8;stroke-width:5;stroke-linecap:round;stroke-opacity:.55;fill:none}"
)


@dataclass(frozen=True)
class Mark:
    """One element of an SVG."""

    tag: str
    attributes: Mapping[str, str]
    text: str = ""
    tooltip: str = ""
    href: str = ""  # of a link around the element


@dataclass(frozen=True)
class Table:
    """Figures for readers, row by row; the first cell of a row is its header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class LegendEntry:
    """Sample of a mark and its name."""

    style: str  # CSS classes
    name: str
    form: str = "line"  # line, box or dot


@dataclass(frozen=True)
class Chart:
    """A chart; title and texts are escaped by the template."""

    key: str  # unique in the page
    title: str
    description: str  # for screen readers, and below the title where `is_described`
    marks: Sequence[Mark]
    legend: Sequence[LegendEntry] = ()
    table: Table | None = None
    width: float = WIDTH
    height: float = HEIGHT
    note: str = ""  # below the chart

    @property
    def has_links(self) -> bool:
        """Whether a mark is a link: the chart is then a group of elements, not one image."""
        return any(mark.href for mark in self.marks)


@dataclass
class Frame:
    """Plot area with two axes: maps values to pixels and collects marks."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    marks: list[Mark] = field(default_factory=list)

    def at_x(self, value: float) -> float:
        """Return the pixel of a horizontal value."""
        return round(self.left + self.x.share(value) * (self.width - RIGHT - self.left), 1)

    def at_y(self, value: float) -> float:
        """Return the pixel of a vertical value."""
        return round(self.height - BOTTOM - self.y.share(value) * (self.height - BOTTOM - TOP), 1)

    def add(self, tag: str, text: str = "", *, tooltip: str = "", href: str = "", **attributes: Any) -> None:
        """Add a mark; underscores of attribute names become hyphens, a trailing one is dropped."""
        named = {name.rstrip("_").replace("_", "-"): _text(value) for name, value in attributes.items()}
        self.marks.append(Mark(tag, named, text, tooltip, href))

    def draw_axes(self, *, x_ticks: bool = True, y_ticks: bool = True) -> None:
        """Add grid lines, ticks and labels."""
        bottom, right = self.height - BOTTOM, self.width - RIGHT
        for tick in self.y.ticks if y_ticks else ():
            at = self.at_y(tick)
            self.add("path", class_="gridline", d=f"M{self.left:g} {at:g}H{right:g}")
            self.add("text", number_text(tick), class_="tick", x=self.left - 7, y=at + 4, text_anchor="end")
        for tick in self.x.ticks if x_ticks else ():
            at = self.at_x(tick)
            self.add("path", class_="gridline", d=f"M{at:g} {TOP:g}V{bottom:g}")
            self.add("text", number_text(tick), class_="tick", x=at, y=bottom + 17, text_anchor="middle")
        self.add("path", class_="axis", d=f"M{self.left:g} {TOP:g}V{bottom:g}H{right:g}")
        middle = (TOP + bottom) / 2
        self.add(
            "text", self.x_label, class_="label", x=(self.left + right) / 2, y=self.height - 9, text_anchor="middle"
        )
        turned = f"translate(12 {middle:g}) rotate(-90)"
        self.add("text", self.y_label, class_="label", transform=turned, text_anchor="middle")


def svg_of(chart: Chart) -> str:
    """Return a chart with its title as an SVG document."""
    marks = [
        f"<{mark.tag}{''.join(f' {name}={_quoted(value)}' for name, value in mark.attributes.items())}>"
        f"{f'<title>{_escaped(mark.tooltip)}</title>' if mark.tooltip else ''}{_escaped(mark.text)}</{mark.tag}>"
        for mark in chart.marks
    ]
    width, height, title = chart.width + 2 * _MARGIN, chart.height + _TITLE_HEIGHT, _escaped(chart.title)
    box = f"{-_MARGIN:g} {-_TITLE_HEIGHT:g} {width:g} {height:g}"
    size = f'width="{1.5 * width:g}" height="{1.5 * height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" {size} role="img">'
    background = f'<rect x="{-_MARGIN:g}" y="{-_TITLE_HEIGHT:g}" width="100%" height="100%" fill="#ffffff"/>'
    heading = f'<text class="title" x="12" y="-8">{title}</text>'
    return "\n".join([head, f"<title>{title}</title><style>{_STYLE}</style>", background, heading, *marks, "</svg>\n"])


def colour_class(index: int) -> str:
    """Return the CSS classes of the colour and dashes of a series."""
    return f"s{index % NUM_COLOURS} d{index // NUM_COLOURS % 3}"


def _escaped(text: str) -> str:
    return escape(printable(text))


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
