"""Curves of a comparison with bands, as SVG."""

from __future__ import annotations

import numpy as np

from gflownet.comparison.accounting import Accounting, Quantity
from gflownet.comparison.result import Comparison
from gflownet.metrics.mean_intervals import mean_intervals
from gflownet.pictures.chart import Chart, svg_of
from gflownet.pictures.line_charts import Line, line_chart

_NUM_PLACES = 200  # of a curve
# Share of the budget after which the curves decide the range of the axis: the first evaluations are far below.
_START_SHARE = 0.2
_TITLES = {
    Quantity.BEST: "best score",
    Quantity.TEST: "test score of the best",
    Quantity.NEAR_BEST: "architectures within 1 % of the best",
    Quantity.TOP_TEST: "architectures of the top 1 % by test",
}
_COSTS = {Accounting.EVALUATIONS: "new evaluations (repeats free)", Accounting.PROPOSALS: "proposals (each one counts)"}


def draw(comparison: Comparison) -> str:
    """Return an SVG document: one row for each known quantity, one column for each accounting.

    Lines are means over the seeds, bands their 95 % intervals.
    """
    quantities = [quantity for quantity in _TITLES if quantity in comparison.quantities]
    charts = [_chart(comparison, quantity, accounting) for quantity in quantities for accounting in Accounting]
    return svg_of(*(chart for chart in charts if chart is not None), num_columns=len(Accounting))


def _chart(comparison: Comparison, quantity: Quantity, accounting: Accounting) -> Chart | None:
    at = np.unique(np.linspace(1, comparison.num_evaluations, _NUM_PLACES).round())
    lines = []
    for label in comparison.labels:
        values = comparison.values(label, quantity, at, accounting=accounting)
        low, high = mean_intervals(values) if len(values) > 1 else (None, None)
        ends = (None, None) if low is None or high is None else (low.tolist(), high.tolist())
        lines.append(Line(label, at.tolist(), values.mean(axis=0).tolist(), *ends))
    if quantity is Quantity.BEST and comparison.references.is_optimum:
        lines.append(Line("best of the space", at.tolist(), [comparison.references.best] * len(at), is_faint=True))
    start = at >= min(_START_SHARE * comparison.num_evaluations, at[-1])
    return line_chart(
        f"{quantity}-{accounting}",
        _TITLES[quantity],
        lines,
        x_label=_COSTS[accounting],
        y_label="",
        is_log=False,
        from_x=float(at[start][0]),
    )
