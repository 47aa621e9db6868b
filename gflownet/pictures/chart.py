"""Charts as data: axes, marks with attributes, a legend, and the same figures as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NUM_TICKS = 5
# Positive values of a larger ratio get a logarithmic axis.
LOG_RATIO = 300.0
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"
_SCALE_MARGIN = 0.04  # of the range, at both ends


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`; of a logarithmic one, both are above 0."""

    low: float
    high: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return the place of a value, 0 at `low` and 1 at `high`; values outside are moved to the ends."""
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, max(value, self.low)))
            if self.is_log
            else (self.low, self.high, value)
        )
        return min(1.0, max(0.0, (at - low) / (high - low)))

    @property
    def ticks(self) -> list[float]:
        """Round values between the ends: at least one."""
        low, high = self.low, self.high
        if not self.is_log:
            step = _step((high - low) / NUM_TICKS)
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            return [place * step for place in range(first, last + 1)] or [low]
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if math.log10(high / low) < 2 else (1,)
        ticks = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        return ticks[:: math.ceil(len(ticks) / (NUM_TICKS + 1)) or 1] or [math.sqrt(low * high)]


def scale_of(values: Iterable[float], *, is_log: bool | None = None, start: float | None = None) -> Scale | None:
    """Return the axis of the finite values, None without one.

    None for `is_log`: if the values are positive and differ by more than `LOG_RATIO`. `start` is the lower end, where
    known.
    """
    array = np.asarray(list(values), dtype=float)
    finite = array[np.isfinite(array)]
    if not len(finite):
        return None
    low, high = float(finite.min()), float(finite.max())
    if is_log is None:
        is_log = low > 0 and high / low > LOG_RATIO
    if is_log:
        positive = finite[finite > 0]
        if len(positive):
            low = float(positive.min())
            return Scale(low / 1.15, high * 1.15, is_log=True)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        half = abs(low) * 0.05 or 0.5
        low, high = low - half, high + half
    margin = (high - low) * _SCALE_MARGIN
    return Scale(low - margin if start is None else min(start, low), high + margin)


def number_text(value: float | None, digits: int = 4) -> str:
    """Return a number for readers: thousands with commas, otherwise `digits` significant digits."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-").replace("-", MINUS)
    if float(value).is_integer() or size >= 1_000:
        return f"{value:,.0f}".replace("-", MINUS)
    return f"{value:.{digits}g}".replace("-", MINUS)


def duration_text(seconds: float | None) -> str:
    """Return a duration in its two largest units: 4 s, 2 min 5 s, 3 h 12 min, 2 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s" if seconds >= 0.05 else "0 s"
    whole = round(seconds)
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    first = next(index for index, (size, _) in enumerate(units) if whole >= size)
    parts = []
    for size, name in units[first : first + 2]:
        number, whole = divmod(whole, size)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts)


def _step(rough: float) -> float:
    """Return the round step of at least `rough`: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * (1 - 1e-9))


# Pixels of the view box. Narrow, so that text stays readable on a phone.
WIDTH, HEIGHT = 460.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 14.0, 14.0, 46.0
NUM_COLOURS = 8


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
        texts = (f"{value:g}" if isinstance(value, float) else str(value) for value in attributes.values())
        names = (name.rstrip("_").replace("_", "-") for name in attributes)
        self.marks.append(Mark(tag, dict(zip(names, texts, strict=True)), text, tooltip, href))

    def draw_axes(self, *, y_ticks: bool = True) -> None:
        """Add grid lines, ticks and labels."""
        bottom, right = self.height - BOTTOM, self.width - RIGHT
        for tick in self.y.ticks if y_ticks else ():
            at = self.at_y(tick)
            self.add("path", class_="gridline", d=f"M{self.left:g} {at:g}H{right:g}")
            self.add("text", number_text(tick), class_="tick", x=self.left - 7, y=at + 4, text_anchor="end")
        for tick in self.x.ticks:
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


def colour_class(index: int) -> str:
    """Return the CSS classes of the colour and dashes of a series."""
    return f"s{index % NUM_COLOURS} d{index // NUM_COLOURS % 3}"
