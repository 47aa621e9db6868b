"""Learning curves as SVG: validation bits per byte against steps and against CPU seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from scripts.language_trials import Trial

PANEL, GAP, MARGIN = (420, 300), 70, 56  # pixels
COLOURS = ("#be123c", "#1d4ed8", "#0f766e", "#a16207", "#7e22ce")
INK, FAINT, GRID = "#1f2937", "#4b5563", "#e2e8f0"
NUM_TICKS = 6
SHOWN_BITS = 1.4  # height of a panel; values above are cut off
Reported = Mapping[str, Sequence[Trial]]  # by side, one trial per seed


@dataclass(frozen=True)
class Panel:
    """One diagram."""

    title: str
    label: str  # of the horizontal axis
    lines: Mapping[str, Sequence[tuple[float, float]]]  # by side: x, mean bits per byte

    @property
    def right(self) -> float:
        """End of the horizontal axis, which starts at 0."""
        return max(x for line in self.lines.values() for x, _ in line)

    @property
    def low(self) -> float:
        """Lower end of the vertical axis."""
        return math.floor(min(y for line in self.lines.values() for _, y in line) * 10) / 10

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return pixels of a point."""
        height = min(1.0, (y - self.low) / SHOWN_BITS)
        return PANEL[0] * x / self.right, PANEL[1] * (1 - height)


def panels(curves: Mapping[str, Reported]) -> list[Panel]:
    """Return a diagram for each budget, with the means over the seeds."""
    labels = {"steps": "steps", "seconds": "CPU seconds of training steps, one thread"}
    return [
        Panel(f"equal {budget}", labels[budget], {name: _curve(trials, budget) for name, trials in reported.items()})
        for budget, reported in curves.items()
    ]


def _curve(trials: Sequence[Trial], budget: str) -> list[tuple[float, float]]:
    """Return the mean over the seeds at each point of the curves."""
    place = 0 if budget == "steps" else 1
    return [
        (statistics.mean(point[place] for point in points), statistics.mean(point[2] for point in points))
        for points in zip(*(trial.curve for trial in trials), strict=False)
    ]


def draw(both: Sequence[Panel], *, title: str) -> str:
    """Return the figure as SVG text."""
    width = MARGIN + len(both) * PANEL[0] + (len(both) - 1) * GAP + 24
    height = PANEL[1] + 2 * MARGIN + 24
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    marks = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Helvetica, Arial, sans-serif">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>',
        _text(MARGIN, 22, title, size=14, weight="bold"),
    ]
    for place, panel in enumerate(both):
        marks.append(f'<g transform="translate({MARGIN + place * (PANEL[0] + GAP)} {MARGIN})">')
        marks += [*_axes(panel), *_lines(panel), "</g>"]
    return "\n".join([*marks, "</svg>", ""])


def _axes(panel: Panel) -> list[str]:
    marks = [_text(0, -10, panel.title, size=12), _text(PANEL[0] / 2, PANEL[1] + 36, panel.label, anchor="middle")]
    marks.append(f'<rect width="{PANEL[0]}" height="{PANEL[1]}" fill="none" stroke="{FAINT}"/>')
    for tick in _ticks(0.0, panel.right):
        x, _ = panel.place(tick, panel.low)
        marks.append(f'<path d="M{x:.1f} 0V{PANEL[1]}" stroke="{GRID}"/>')
        marks.append(_text(x, PANEL[1] + 16, f"{tick:g}", anchor="middle"))
    for tick in _ticks(panel.low, panel.low + SHOWN_BITS):
        _, y = panel.place(0, tick)
        marks.append(f'<path d="M0 {y:.1f}H{PANEL[0]}" stroke="{GRID}"/>')
        marks.append(_text(-6, y + 4, f"{tick:g}", anchor="end"))
    return marks


def _lines(panel: Panel) -> list[str]:
    """Return every curve with its name and last value, names above one another in the corner."""
    marks = []
    for place, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (panel.place(*point) for point in line))
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = 20 + 18 * place
        marks.append(f'<path d="M{PANEL[0] - 170} {y - 4}h18" stroke="{colour}" stroke-width="3"/>')
        marks.append(_text(PANEL[0] - 146, y, f"{name}: {line[-1][1]:.2f}"))
    return marks


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers: 1, 2 or 5 times powers of ten."""
    rough = (high - low) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="{size}" fill="{INK}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
