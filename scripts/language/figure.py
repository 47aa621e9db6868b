"""Learning curves side by side as SVG: bits per byte against steps, and against CPU seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from scripts.language.trials import Point

PANEL, GAP, MARGIN = (420, 300), 70, 56  # pixels
COLOURS = ("#be123c", "#1d4ed8", "#0f766e", "#a16207", "#7e22ce")
INK, FAINT, GRID = "#1f2937", "#4b5563", "#e2e8f0"
NUM_TICKS = 6


@dataclass(frozen=True)
class Panel:
    """One diagram."""

    title: str
    label: str  # of the axis to the right
    lines: Mapping[str, Sequence[tuple[float, float]]]  # by model: right, up

    @property
    def across(self) -> tuple[float, float]:
        """The least and the largest value of the axis to the right."""
        values = [x for line in self.lines.values() for x, _ in line]
        return 0.0, max(values)

    @property
    def upwards(self) -> tuple[float, float]:
        """Likewise upwards; what lies above the middle of where models begin is cut off."""
        lowest = min(y for line in self.lines.values() for _, y in line)
        return math.floor(lowest * 5) / 5, math.ceil((lowest + 2.0) * 5) / 5


def panels(by_steps: Mapping[str, Sequence[Point]], by_seconds: Mapping[str, Sequence[Point]]) -> tuple[Panel, Panel]:
    """Return both diagrams."""
    return (
        Panel("as many steps", "steps", {n: [(p.step, p.bits) for p in line] for n, line in by_steps.items()}),
        Panel(
            "as many CPU seconds",
            "CPU seconds of training, one thread",
            {name: [(p.seconds, p.bits) for p in line] for name, line in by_seconds.items()},
        ),
    )


def draw(both: Sequence[Panel], *, title: str) -> str:
    """Return the figure as SVG text."""
    width = MARGIN + len(both) * PANEL[0] + (len(both) - 1) * GAP + 24
    height = PANEL[1] + 2 * MARGIN + 24
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Helvetica, Arial, sans-serif">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>',
        _text(MARGIN, 22, title, size=14, weight="bold"),
    ]
    for place, panel in enumerate(both):
        parts.append(f'<g transform="translate({MARGIN + place * (PANEL[0] + GAP)} {MARGIN})">')
        parts += [*_axes(panel), *_lines(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _place(panel: Panel, x: float, y: float) -> tuple[float, float]:
    """Return pixels of a point."""
    (left, right), (low, high) = panel.across, panel.upwards
    return PANEL[0] * (x - left) / (right - left), PANEL[1] * (1 - (y - low) / (high - low))


def _axes(panel: Panel) -> list[str]:
    parts = [_text(0, -10, panel.title, size=12), _text(PANEL[0] / 2, PANEL[1] + 36, panel.label, anchor="middle")]
    parts.append(f'<rect width="{PANEL[0]}" height="{PANEL[1]}" fill="none" stroke="{FAINT}"/>')
    for tick in _ticks(*panel.across):
        x, _ = _place(panel, tick, panel.upwards[0])
        parts.append(f'<path d="M{x:.1f} 0V{PANEL[1]}" stroke="{GRID}"/>')
        parts.append(_text(x, PANEL[1] + 16, f"{tick:g}", anchor="middle"))
    for tick in _ticks(*panel.upwards):
        _, y = _place(panel, 0, tick)
        parts.append(f'<path d="M0 {y:.1f}H{PANEL[0]}" stroke="{GRID}"/>')
        parts.append(_text(-6, y + 4, f"{tick:g}", anchor="end"))
    parts.append(_text(-38, PANEL[1] / 2, "bits per byte", anchor="middle", turn=True))
    return parts


def _lines(panel: Panel) -> list[str]:
    """Return every curve with its name and last value, names above one another in the corner."""
    parts = []
    for place, (name, line) in enumerate(panel.lines.items()):
        colour, high = COLOURS[place % len(COLOURS)], panel.upwards[1]
        shown = [_place(panel, x, min(y, high)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = 20 + 18 * place
        parts.append(f'<path d="M{PANEL[0] - 150} {y - 4}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(PANEL[0] - 126, y, f"{name}: {line[-1][1]:.3f}"))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers: 1, 2 or 5 times powers of ten."""
    rough = (high - low) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _text(
    x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", weight: str = "normal", turn: bool = False
) -> str:
    where = f'transform="translate({x:.1f} {y:.1f}) rotate(-90)"' if turn else f'x="{x:.1f}" y="{y:.1f}"'
    style = f'font-size="{size}" fill="{INK}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {where} {style}>{escape(text)}</text>"
