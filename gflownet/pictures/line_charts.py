"""Charts of curves with bands, thinned out to a few hundred points, and of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gflownet.errors import counted
from gflownet.pictures.chart import Chart, Frame, LegendEntry, Table, colour_class, number_text, scale_of

MAX_POINTS = 300  # of a curve
NUM_TABLE_ROWS = 10


@dataclass(frozen=True)
class Line:
    """A curve; places where y is not finite are gaps."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None  # of a band
    high: Sequence[float] | None = None
    is_faint: bool = False  # raw values behind their mean: no table column
    colour: int | None = None  # position in the palette; None: that of the line


def line_chart(
    key: str,
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    note: str = "",
    is_log: bool | None = None,
    start: float | None = None,
) -> Chart | None:
    """Return a chart of curves, None without a finite value.

    The legend names all lines but faint ones. `is_log` and `start` are of the vertical axis; None: by the values.
    """
    everything, lines = lines, [_thinned(line) for line in lines if np.isfinite(np.asarray(line.y, float)).any()]
    ends = [value for line in lines for values in (line.y, line.low, line.high) for value in values or ()]
    y, x = scale_of(ends, is_log=is_log, start=start), scale_of(at for line in lines for at in line.x)
    if x is None or y is None:
        return None
    frame = Frame(x, y, x_label, y_label + (" (log scale)" if y.is_log else ""))
    frame.draw_axes()
    legend = []
    for index, line in enumerate(lines):
        style = colour_class(index if line.colour is None else line.colour)
        _draw(frame, line, style)
        if not line.is_faint:
            legend.append(LegendEntry(style, line.name))
    named = [line for line in lines if not line.is_faint]
    return Chart(
        key=key,
        title=title,
        description=" ".join(_words(line) for line in named),
        marks=frame.marks,
        legend=legend if len(legend) > 1 or len(lines) > 1 else (),
        table=_table([line for line in everything if not line.is_faint], x_label),
        note=note,
    )


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and the `window - 1` before it, as far as they are finite."""
    array = np.asarray(values, dtype=float)
    is_finite = np.isfinite(array)
    sums, counts = np.cumsum(np.where(is_finite, array, 0.0)), np.cumsum(is_finite)
    sums[window:], counts[window:] = sums[window:] - sums[:-window].copy(), counts[window:] - counts[:-window].copy()
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(is_finite & (counts > 0), sums / counts, np.nan).tolist()


def thinned(values: Sequence[float], max_points: int = MAX_POINTS) -> list[int]:
    """Return the positions that a curve needs: the ends, and minimum and maximum of equal stretches between."""
    if len(values) <= max_points:
        return list(range(len(values)))
    edges = np.linspace(0, len(values), max_points // 2 + 1).astype(int).tolist()
    array = np.asarray(values, dtype=float)
    is_finite = np.isfinite(array)
    lows, highs = np.where(is_finite, array, np.inf), np.where(is_finite, array, -np.inf)
    places = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        places |= {start + int(lows[start:stop].argmin()), start + int(highs[start:stop].argmax())}
    return sorted(places)


def _thinned(line: Line) -> Line:
    places = thinned(line.y)
    x, y, low, high = (
        None if values is None else [values[i] for i in places] for values in (line.x, line.y, line.low, line.high)
    )
    return replace(line, x=x, y=y, low=low, high=high)


def _draw(frame: Frame, line: Line, style: str) -> None:
    if line.low is not None and line.high is not None:
        places = [i for i, _ in enumerate(line.y) if math.isfinite(line.low[i]) and math.isfinite(line.high[i])]
        upper = [f"{frame.at_x(line.x[i]):g} {frame.at_y(line.high[i]):g}" for i in places]
        lower = [f"{frame.at_x(line.x[i]):g} {frame.at_y(line.low[i]):g}" for i in reversed(places)]
        if places:
            frame.add("path", class_=f"band {style}", d="M" + "L".join([*upper, *lower]) + "Z")
    points = list(zip(line.x, line.y, strict=True))
    faint = " faint" if line.is_faint else ""
    frame.add("path", class_=f"line {style}{faint}", d=_path(frame, points), tooltip=line.name)
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) == 1:  # a line of one point is invisible
        (x, y), *_ = finite
        frame.add("circle", class_=f"dot {style}", cx=frame.at_x(x), cy=frame.at_y(y), r="3", tooltip=line.name)


def _path(frame: Frame, points: Iterable[tuple[float, float]]) -> str:
    commands, is_down = list[str](), False
    for x, y in points:
        if not math.isfinite(y):
            is_down = False
            continue
        commands.append(f"{'L' if is_down else 'M'}{frame.at_x(x):g} {frame.at_y(y):g}")
        is_down = True
    return "".join(commands)


def _words(line: Line) -> str:
    finite = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    (first_x, first), (last_x, last) = finite[0], finite[-1]
    values = [y for _, y in finite]
    return (
        f"{line.name}: {number_text(first)} at {number_text(first_x)}, {number_text(last)} at {number_text(last_x)}, "
        f"between {number_text(min(values))} and {number_text(max(values))}."
    )


def _table(lines: Sequence[Line], x_label: str) -> Table:
    """Return the values of the lines at a few places."""
    places = max((line.x for line in lines), key=len)
    chosen = sorted({places[round(i)] for i in np.linspace(0, len(places) - 1, NUM_TABLE_ROWS).tolist()})
    positions = set(chosen)
    by_place = [{x: y for x, y in zip(line.x, line.y, strict=True) if x in positions} for line in lines]
    rows = [[number_text(x), *(number_text(values.get(x)) for values in by_place)] for x in chosen]
    return Table([x_label, *(line.name for line in lines)], rows)


@dataclass(frozen=True)
class Highlight:
    """A highlighted point."""

    x: float
    y: float
    name: str
    href: str = ""  # of the element it links to


def scatter_chart(
    key: str,
    title: str,
    points: Sequence[tuple[float, float]],
    highlights: Sequence[Highlight],
    *,
    x_label: str,
    y_label: str,
    names: Sequence[str],
    is_joined: bool = False,
    note: str = "",
) -> Chart | None:
    """Return a scatter chart, None without a finite point.

    `highlights` are drawn on top, joined in their order where `is_joined`. The legend has `names` of both.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    front = [(each.x, each.y) for each in highlights]
    x, y = scale_of(at for at, _ in (*finite, *front)), scale_of(at for _, at in (*finite, *front))
    if x is None or y is None:
        return None
    frame = Frame(x, y, x_label + (" (log scale)" if x.is_log else ""), y_label + (" (log scale)" if y.is_log else ""))
    frame.draw_axes()
    pixels = sorted({(round(frame.at_x(a)), round(frame.at_y(b))) for a, b in finite})
    if pixels:
        frame.add("path", class_="dots s0", d="".join(f"M{a} {b}h0" for a, b in pixels), tooltip=names[0])
    if is_joined and len(front) > 1:
        corners = "L".join(f"{frame.at_x(a):g} {frame.at_y(b):g}" for a, b in front)
        frame.add("path", class_="line s1 faint", d=f"M{corners}")
    for each in highlights:
        at = {"cx": frame.at_x(each.x), "cy": frame.at_y(each.y), "r": "5"}
        frame.add("circle", class_="dot s1", tooltip=each.name, href=each.href, **at)
    legend = [LegendEntry("s0", names[0], "dot")] + ([LegendEntry("s1", names[1], "dot")] if highlights else [])
    return Chart(
        key=key,
        title=title,
        description=f"{counted(len(finite), 'point')}; highlighted: {len(highlights)}.",
        marks=frame.marks,
        legend=legend,
        note=note,
    )


def front_chart(
    key: str,
    title: str,
    fronts: Sequence[tuple[str, Sequence[tuple[float, float, float, float]]]],
    *,
    x_label: str,
    y_label: str,
) -> Chart | None:
    """Return named fronts of (cost, mean, low, high), the best mean up to each cost as steps; None without a point.

    The first front has filled marks, the others open ones. The ends of an unknown interval are NaN.
    """
    points = [point for _, each in fronts for point in each]
    x, y = scale_of((at for at, *_ in points), is_log=True), scale_of(end for _, *ends in points for end in ends)
    if x is None or y is None:
        return None
    frame = Frame(x, y, x_label + (" (log scale)" if x.is_log else ""), y_label)
    frame.draw_axes()
    forms = ("full", "open")
    for index, (name, front) in enumerate(fronts):
        style, best, steps = f"s{index}", -math.inf, ""
        for at, mean, low, high in sorted(front):
            if mean > best:
                pixel = f"{frame.at_x(at):g} {frame.at_y(mean):g}"
                steps, best = f"{steps}H{frame.at_x(at):g}V{frame.at_y(mean):g}" if steps else f"M{pixel}", mean
            _draw_mean(frame, at, mean, low, high, style=f"{style} {forms[min(index, 1)]}", tooltip=name)
        if steps:
            frame.add("path", class_=f"line {style} faint", d=f"{steps}H{frame.at_x(x.high):g}", tooltip=name)
    rows = [[name, number_text(at), number_text(mean)] for name, front in fronts for at, mean, *_ in sorted(front)]
    return Chart(
        key=key,
        title=title,
        description=" ".join(f"{name}: {counted(len(front), 'architecture')}." for name, front in fronts),
        marks=frame.marks,
        legend=[LegendEntry(f"s{k}", name, forms[min(k, 1)]) for k, (name, _) in enumerate(fronts)],
        table=Table(["of", x_label, y_label], rows),
    )


def _draw_mean(frame: Frame, at: float, mean: float, low: float, high: float, *, style: str, tooltip: str) -> None:
    """Add a mean and its vertical interval."""
    x, y = frame.at_x(at), frame.at_y(mean)
    if math.isfinite(low + high):
        bottom, top = frame.at_y(low), frame.at_y(high)
        ends = f"M{x:g} {bottom:g}V{top:g}M{x - 4:g} {bottom:g}h8M{x - 4:g} {top:g}h8"
        frame.add("path", class_=f"whisker {style}", d=ends, tooltip=tooltip)
    corners = f"M{x - 5:g} {y:g}L{x:g} {y - 5:g}L{x + 5:g} {y:g}L{x:g} {y + 5:g}Z"
    frame.add(
        "path", class_=f"diamond {style}", d=corners, tooltip=f"{tooltip}: {number_text(mean)} at {number_text(at)}"
    )
