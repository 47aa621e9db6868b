"""Charts of intervals: a row for each estimate, with a line where there is no effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gflownet.report.page.axes import Scale, number_text, scale_of
from gflownet.report.page.bar_chart import shortened
from gflownet.report.page.chart import BOTTOM, RIGHT, TOP, WIDTH, Chart, Frame, LegendEntry, Table

_ROW = 36.0
_LEFT = 12.0
_DIAMOND = 5.0
_CHARACTER = 6.6  # width, pixels
_MAX_NAME = 60  # characters of a row


@dataclass(frozen=True)
class Estimate:
    """A named estimate with its interval; without one, both ends equal the value."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""  # behind the name
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
    zero: float | None = None,
    legend: tuple[str, str] | None = None,
    note: str = "",
) -> Chart | None:
    """Return estimates with intervals, one in each row; None without one.

    Args:
        key: unique in the page.
        title: of the chart.
        estimates: from top to bottom.
        x_label: of the axis.
        header: of the table: name, value, interval, and that of further cells.
        zero: place of a vertical line: no effect.
        legend: meaning of a filled and of an open mark.
        note: below the chart.
    """
    ends = [end for each in estimates for end in (each.low, each.high, each.value)]
    x = scale_of([*ends, *([] if zero is None else [zero])], is_log=False)
    if not estimates or x is None:
        return None
    height = TOP + BOTTOM + _ROW * len(estimates)
    frame = Frame(x, Scale(0.0, 1.0), x_label, "", height=height, left=_LEFT)
    frame.draw_axes(y_ticks=False)
    if zero is not None:
        at = frame.at_x(zero)
        frame.add("path", class_="zero", d=f"M{at:g} {TOP:g}V{height - BOTTOM:g}")
    for row, each in enumerate(estimates):
        _draw(frame, each, TOP + row * _ROW)
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
        note=note,
    )


def _draw(frame: Frame, each: Estimate, top: float) -> None:
    y, x = top + 25, frame.at_x(each.value)
    text = f"{shortened(each.name, _MAX_NAME - len(each.note))}  {each.note}".rstrip()
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
