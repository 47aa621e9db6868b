"""Scatter charts: all points as one element, and highlighted ones that link to an element of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.errors import counted
from gflownet.report.page.axes import number_text, scale_of
from gflownet.report.page.chart import Chart, Frame, LegendEntry, Table


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
    names: tuple[str, str],
    is_joined: bool = False,
    note: str = "",
) -> Chart | None:
    """Return a scatter chart, None without a finite point.

    Args:
        key: unique in the page.
        title: of the chart.
        points: (x, y).
        highlights: drawn on top.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        names: of points and highlights in the legend.
        is_joined: join the highlights by a line, in their order.
        note: below the chart.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    everything = [*finite, *((each.x, each.y) for each in highlights)]
    x, y = scale_of(at for at, _ in everything), scale_of(at for _, at in everything)
    if x is None or y is None:
        return None
    frame = Frame(x, y, x_label + (" (log scale)" if x.is_log else ""), y_label + (" (log scale)" if y.is_log else ""))
    frame.draw_axes()
    pixels = sorted({(round(frame.at_x(a)), round(frame.at_y(b))) for a, b in finite})
    if pixels:
        frame.add("path", class_="dots s0", d="".join(f"M{a} {b}h0" for a, b in pixels), tooltip=names[0])
    if is_joined and len(highlights) > 1:
        corners = "L".join(f"{frame.at_x(each.x):g} {frame.at_y(each.y):g}" for each in highlights)
        frame.add("path", class_="line s1 faint", d=f"M{corners}")
    for each in highlights:
        at = {"cx": frame.at_x(each.x), "cy": frame.at_y(each.y), "r": "5"}
        frame.add("circle", class_="dot s1", tooltip=each.name, href=each.href, **at)
    rows = [[each.name, number_text(each.x), number_text(each.y)] for each in highlights]
    return Chart(
        key=key,
        title=title,
        description=f"{counted(len(finite), 'point')}; highlighted: {len(highlights)}.",
        marks=frame.marks,
        legend=[LegendEntry("s0", names[0], "dot"), LegendEntry("s1", names[1], "dot")],
        table=Table([names[1], x_label, y_label], rows) if rows else None,
        note=note,
    )
