"""Charts of bars, histograms, and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gflownet.pictures.chart import (
    BOTTOM,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Frame,
    LegendEntry,
    Scale,
    Table,
    colour_class,
    number_text,
    scale_of,
)
from gflownet.pictures.figure import shortened

NUM_BINS = 24
_QUARTERS = (0, 0.25, 0.5, 0.75, 1)
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


def histogram(key: str, title: str, samples: Sequence[Sample], *, x_label: str) -> Chart | None:
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
        [sample.name, f"{len(sample.values):,}", *map(number_text, np.quantile(sample.values, _QUARTERS).tolist())]
        for sample in samples
    ]
    words = [f"{name}: {number} values, median {median}." for name, number, _, _, median, *_ in rows]
    return Chart(
        key=key,
        title=title,
        description=" ".join(words),
        marks=frame.marks,
        legend=[LegendEntry(colour_class(i), s.name, "box" if i == 0 else "line") for i, s in enumerate(samples)],
        table=Table(["group", "number", "minimum", "lower quarter", "median", "upper quarter", "maximum"], rows),
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
        frame.add("text", f"{shortened(bar.name, MAX_NAME)} · {bar.text}", class_="name", x=14.0, y=top + 13)
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


def _steps(frame: Frame, edges: np.ndarray, share: np.ndarray) -> str:
    places = [f"M{frame.at_x(edges[0]):g} {frame.at_y(0.0):g}"]
    for left, right, value in zip(edges, edges[1:], share, strict=False):
        y = frame.at_y(float(value))
        places.append(f"L{frame.at_x(float(left)):g} {y:g}L{frame.at_x(float(right)):g} {y:g}")
    return "".join([*places, f"L{frame.at_x(edges[-1]):g} {frame.at_y(0.0):g}"])


_INTERVAL_ROW = 36.0
_LEFT = 12.0
_DIAMOND = 5.0
_CHARACTER = 6.6  # width, pixels
_MAX_INTERVAL_NAME = 60  # characters of a row


@dataclass(frozen=True)
class Estimate:
    """A named estimate with its interval; without one, both ends equal the value."""

    name: str
    value: float
    low: float
    high: float
    cells: Sequence[str] = ()  # of the table, behind name, value and interval
    is_marked: bool = False  # drawn as a filled diamond
    href: str = ""


def interval_chart(
    key: str,
    title: str,
    estimates: Sequence[Estimate],
    *,
    x_label: str,
    header: Sequence[str],
    legend: tuple[str, str] | None = None,
) -> Chart | None:
    """Return estimates with intervals, one in each row; None without one.

    `header` is that of the table; `legend` the meaning of a filled and of an open mark.
    """
    ends = [end for each in estimates for end in (each.low, each.high, each.value)]
    x = scale_of(ends, is_log=False)
    if not estimates or x is None:
        return None
    height = TOP + BOTTOM + _INTERVAL_ROW * len(estimates)
    frame = Frame(x, Scale(0.0, 1.0), x_label, "", height=height, left=_LEFT)
    frame.draw_axes(y_ticks=False)
    for row, each in enumerate(estimates):
        _draw_interval(frame, each, TOP + row * _INTERVAL_ROW)
    words = [f"{each.name}: {number_text(each.value)}, {_between(each)}." for each in estimates]
    rows = [[each.name, number_text(each.value), _between(each), *each.cells] for each in estimates]
    return Chart(
        key=key,
        title=title,
        description=" ".join(words),
        marks=frame.marks,
        legend=() if legend is None else [LegendEntry("s0", legend[0], "full"), LegendEntry("s0", legend[1], "open")],
        table=Table(header, rows),
        height=height,
    )


def _draw_interval(frame: Frame, each: Estimate, top: float) -> None:
    y, x = top + 25, frame.at_x(each.value)
    text = shortened(each.name, _MAX_INTERVAL_NAME)
    end = min(WIDTH - RIGHT, _LEFT + 6 + len(text) * _CHARACTER)
    frame.add("path", class_="halo", d=f"M{_LEFT + 1:g} {top + 10:g}H{end:g}")
    frame.add("text", text, class_="name", x=_LEFT + 3, y=top + 13, href=each.href)
    low, high = frame.at_x(each.low), frame.at_x(each.high)
    tooltip = f"{each.name}: {number_text(each.value)}, {_between(each)}"
    frame.add(
        "path",
        class_="whisker s0",
        d=f"M{low:g} {y:g}H{high:g}M{low:g} {y - 4:g}v8M{high:g} {y - 4:g}v8",
        tooltip=tooltip,
    )
    size = _DIAMOND
    diamond = f"M{x - size:g} {y:g}L{x:g} {y - size:g}L{x + size:g} {y:g}L{x:g} {y + size:g}Z"
    frame.add("path", class_=f"diamond s0{' full' if each.is_marked else ''}", d=diamond, tooltip=tooltip)


def _between(each: Estimate) -> str:
    if each.low == each.high:
        return "no interval"
    return f"{number_text(each.low)} to {number_text(each.high)}"
