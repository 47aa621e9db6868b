"""Charts of bars: histograms, and shares of a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gflownet.report.page.axes import Scale, number_text, scale_of
from gflownet.report.page.chart import BOTTOM, TOP, Chart, Frame, LegendEntry, Table, colour_class

NUM_BINS = 24
MAX_NAME = 30  # characters of a name at a bar
_ROW, _BAR = 34.0, 12.0


@dataclass(frozen=True)
class Sample:
    """Named values of a histogram."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Bar:
    """A named amount, with its text."""

    name: str
    value: float
    text: str


def histogram(
    key: str, title: str, samples: Sequence[Sample], *, x_label: str, description: str = "", note: str = ""
) -> Chart | None:
    """Return the shares of each sample in equal bins as step lines, the first one filled; None without values."""
    samples = [Sample(s.name, [v for v in s.values if math.isfinite(v)]) for s in samples]
    samples = [sample for sample in samples if sample.values]
    x = scale_of((value for sample in samples for value in sample.values), is_log=False)
    if x is None:
        return None
    edges = np.linspace(x.low, x.high, NUM_BINS + 1)
    shares = [np.histogram(sample.values, edges)[0] / len(sample.values) for sample in samples]
    frame = Frame(x, Scale(0.0, max(float(share.max()) for share in shares) * 1.06), x_label, "share of the group")
    frame.draw_axes()
    for index, (sample, share) in enumerate(zip(samples, shares, strict=True)):
        style = colour_class(index)
        if index == 0:
            frame.add("path", class_=f"area {style}", d=_steps(frame, edges, share) + "Z", tooltip=sample.name)
        frame.add("path", class_=f"line {style}", d=_steps(frame, edges, share), tooltip=sample.name)
    rows = [
        [sample.name, f"{len(sample.values):,}", *map(number_text, _quantiles(sample.values))] for sample in samples
    ]
    words = [f"{name}: {number} values, median {median}." for name, number, _, _, median, *_ in rows]
    return Chart(
        key=key,
        title=title,
        description=description or " ".join(words),
        marks=frame.marks,
        legend=[LegendEntry(colour_class(i), s.name, "box" if i == 0 else "line") for i, s in enumerate(samples)],
        table=Table(["group", "number", "minimum", "lower quarter", "median", "upper quarter", "maximum"], rows),
        note=note,
    )


def bar_chart(key: str, title: str, bars: Sequence[Bar], *, x_label: str, header: Sequence[str]) -> Chart | None:
    """Return horizontal bars with their texts, None without one; `header` names the two columns of the table."""
    if not bars or max(bar.value for bar in bars) <= 0:
        return None
    height = TOP + BOTTOM + _ROW * len(bars)
    scale = Scale(0.0, max(bar.value for bar in bars) * 1.02)
    frame = Frame(scale, Scale(0.0, 1.0), x_label, "", height=height, left=12.0)
    frame.draw_axes(y_ticks=False)
    for row, bar in enumerate(bars):
        top = TOP + row * _ROW
        frame.add("text", f"{shortened(bar.name)} · {bar.text}", class_="name", x=14.0, y=top + 13)
        width = max(1.0, frame.at_x(bar.value) - 12.0)
        frame.add(
            "rect", class_="bar s0", x=12.0, y=top + 18, width=width, height=_BAR, tooltip=f"{bar.name}: {bar.text}"
        )
    return Chart(
        key=key,
        title=title,
        description=" ".join(f"{bar.name}: {bar.text}." for bar in bars),
        marks=frame.marks,
        table=Table(header, [[bar.name, bar.text] for bar in bars]),
        height=height,
    )


def shortened(text: str, max_length: int = MAX_NAME) -> str:
    """Return a text of at most `max_length` characters."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def _steps(frame: Frame, edges: np.ndarray, share: np.ndarray) -> str:
    places = [f"M{frame.at_x(edges[0]):g} {frame.at_y(0.0):g}"]
    for left, right, value in zip(edges, edges[1:], share, strict=False):
        y = frame.at_y(float(value))
        places.append(f"L{frame.at_x(float(left)):g} {y:g}L{frame.at_x(float(right)):g} {y:g}")
    return "".join([*places, f"L{frame.at_x(edges[-1]):g} {frame.at_y(0.0):g}"])


def _quantiles(values: Sequence[float]) -> list[float]:
    return np.quantile(np.asarray(values), [0, 0.25, 0.5, 0.75, 1]).tolist()
