"""A scatter plot as SVG in pure Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gflownet.errors import printable

# Pixels.
WIDTH, HEIGHT = 640.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 24.0, 44.0, 60.0
PADDING = 14.0  # between the frame and the outermost points
FONT_SIZE = 12

NUM_TICKS = 8  # approximate number per axis
MIN_LOG_SPAN = 20.0  # minimum ratio of largest to smallest value of a logarithmic axis
POINT_COLOUR, HIGHLIGHT_COLOUR = "#94a3b8", "#dc2626"
TEXT_COLOUR, GRID_COLOUR = "#0f172a", "#e2e8f0"


@dataclass(frozen=True)
class Axis:
    """The values along one axis of the plot."""

    label: str
    values: Sequence[float]  # one per point, finite

    @property
    def is_logarithmic(self) -> bool:
        """Return whether the values are positive and span a large ratio."""
        return min(self.values) > 0 and max(self.values) / min(self.values) >= MIN_LOG_SPAN

    def place(self, value: float, start: float, end: float) -> float:
        """Return the pixel of a value; the smallest value is next to `start` and the largest next to `end`."""
        scale = math.log10 if self.is_logarithmic else float
        low, high = scale(min(self.values)), scale(max(self.values))
        share = (scale(value) - low) / (high - low) if high > low else 0.5
        inner = math.copysign(PADDING, end - start)
        return start + inner + share * (end - start - 2 * inner)

    def ticks(self) -> list[float]:
        """Return round numbers within the values' range: 1, 2 or 5 times powers of ten."""
        low, high = min(self.values), max(self.values)
        if self.is_logarithmic:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            candidates = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            return [tick for tick in candidates if low <= tick <= high]
        if high == low:
            return [low]
        rough = (high - low) / NUM_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough)
        return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def scatter_svg(x: Axis, y: Axis, *, highlighted: Mapping[int, str], title: str) -> str:
    """Return a scatter plot as an SVG document.

    Args:
        x: horizontal axis.
        y: vertical axis.
        highlighted: tooltips of emphasised points, by position; drawn on top.
        title: of the plot.
    """
    places = [
        (x.place(a, LEFT, WIDTH - RIGHT), y.place(b, HEIGHT - BOTTOM, TOP))
        for a, b in zip(x.values, y.values, strict=True)
    ]
    # Points on the same pixel are drawn once, so that pictures of long runs stay small.
    pixels = sorted({(round(a), round(b)) for i, (a, b) in enumerate(places) if i not in highlighted})
    points = [f'<circle cx="{a}" cy="{b}" r="2.5" fill="{POINT_COLOUR}" fill-opacity="0.55"/>' for a, b in pixels]
    points += [
        f'<circle cx="{places[i][0]:.1f}" cy="{places[i][1]:.1f}" r="4.5" fill="{HIGHLIGHT_COLOUR}">'
        f"<title>{_text(text)}</title></circle>"
        for i, text in highlighted.items()
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{HEIGHT:.0f}" '
            f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" '
            f'font-size="{FONT_SIZE}" fill="{TEXT_COLOUR}">',
            f"<title>{_text(title)}</title>",
            '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>',
            f'<text x="{LEFT}" y="26" font-size="14" font-weight="bold">{_text(title)}</text>',
            *_frame(x, y),
            *points,
            "</svg>\n",
        )
    )


def _frame(x: Axis, y: Axis) -> list[str]:
    """Return grid lines, tick labels and axis labels."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in x.ticks():
        at = x.place(tick, LEFT, right)
        parts.append(f'<path d="M{at:.1f} {TOP:.0f}V{bottom:.0f}" stroke="{GRID_COLOUR}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18:.0f}" text-anchor="middle">{_number(tick)}</text>')
    for tick in y.ticks():
        at = y.place(tick, bottom, TOP)
        parts.append(f'<path d="M{LEFT:.0f} {at:.1f}H{right:.0f}" stroke="{GRID_COLOUR}"/>')
        parts.append(f'<text x="{LEFT - 8:.0f}" y="{at + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    parts.append(f'<path d="M{LEFT:.0f} {TOP:.0f}V{bottom:.0f}H{right:.0f}" fill="none" stroke="{TEXT_COLOUR}"/>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 16:.0f}" text-anchor="middle">{_text(x.label)}</text>'
    )
    parts.append(
        f'<text transform="translate(20 {middle:.0f}) rotate(-90)" text-anchor="middle">{_text(y.label)}</text>'
    )
    return parts


def _text(text: str) -> str:
    """Return the text with markup and control characters escaped."""
    return escape(printable(text))


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e7 else f"{value:.4g}"
