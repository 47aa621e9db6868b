"""Curves of a comparison with bands, as SVG and PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from gflownet.comparison.accounting import Accounting, Quantity
from gflownet.comparison.result import Comparison
from gflownet.metrics.mean_intervals import mean_intervals

# Inches, and pixels per inch of the PNG.
_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_HEIGHT, _PIXELS = 6.0, 3.6, 0.45, 150
_NUM_PLACES = 200  # of a curve
_BAND_OPACITY = 0.18
# Share of the budget after which the curves decide the range of the axis: the first evaluations are far below.
_START_SHARE = 0.2
_MARGIN = 0.08
# Okabe and Ito's colours, which people with colour blindness can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B6F47")
_LINES = ("-", "--", ":")  # another one where the colours repeat
_TITLES = {
    Quantity.BEST: "best score",
    Quantity.TEST: "test score of the best",
    Quantity.NEAR_BEST: "architectures within 1 % of the best",
    Quantity.TOP_TEST: "architectures of the top 1 % by test",
}
_COSTS = {Accounting.EVALUATIONS: "new evaluations (repeats free)", Accounting.PROPOSALS: "proposals (each one counts)"}


def draw(comparison: Comparison) -> Mapping[str, bytes]:
    """Return the picture in each format: svg, png.

    One row for each known quantity, one column for each accounting; lines are means over the seeds, bands their 95 %
    intervals.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    quantities = [quantity for quantity in _TITLES if quantity in comparison.quantities]
    # Text stays text in the SVG; ids and date do not depend on the time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "gflownet", "font.size": 10}):
        height = _PANEL_HEIGHT * len(quantities) + _LEGEND_HEIGHT
        figure = Figure(figsize=(2 * _PANEL_WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(quantities), len(Accounting), squeeze=False, sharey="row")
        for row, quantity in zip(grid, quantities, strict=True):
            for axes, accounting in zip(row, Accounting, strict=True):
                _draw_panel(axes, comparison, quantity, accounting)
            row[0].set_ylim(_range(comparison, quantity))
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6), frameon=False)
        return {kind: _saved(figure, kind) for kind in ("svg", "png")}


def _draw_panel(axes: Any, comparison: Comparison, quantity: Quantity, accounting: Accounting) -> None:
    at = _places(comparison)
    for index, label in enumerate(comparison.labels):
        values = comparison.values(label, quantity, at, accounting=accounting)
        known = np.isfinite(values).all(axis=0)  # not before the first evaluation
        line = _LINES[index // len(_COLOURS) % len(_LINES)]
        colour = _COLOURS[index % len(_COLOURS)]
        axes.plot(at[known], values[:, known].mean(axis=0), line, color=colour, label=label, linewidth=1.6)
        if len(values) > 1:
            low, high = mean_intervals(values[:, known])
            axes.fill_between(at[known], low, high, color=colour, alpha=_BAND_OPACITY, linewidth=0)
    if quantity is Quantity.BEST and comparison.references.is_optimum:
        axes.axhline(comparison.references.best, color="#64748b", linewidth=0.8, linestyle=(0, (6, 4)))
    axes.set_xlim(0, comparison.num_evaluations)
    axes.set_title(_TITLES[quantity], fontsize=10, loc="left")
    axes.set_xlabel(_COSTS[accounting])
    axes.grid(color="#e2e8f0", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _places(comparison: Comparison) -> np.ndarray:
    """Return the places of the curves: all from 1 to the budget, or `_NUM_PLACES` of them."""
    return np.unique(np.linspace(1, comparison.num_evaluations, _NUM_PLACES).round())


def _range(comparison: Comparison, quantity: Quantity) -> tuple[float, float]:
    """Return the ends of the vertical axis: all means and bands after the start of the search."""
    at = np.array([max(1.0, round(_START_SHARE * comparison.num_evaluations)), comparison.num_evaluations])
    ends = list[float]()
    for label in comparison.labels:
        for accounting in Accounting:
            values = comparison.values(label, quantity, at, accounting=accounting)
            ends += [*values.mean(axis=0), *(np.concatenate(mean_intervals(values)))]
    if quantity is Quantity.BEST and comparison.references.is_optimum:
        ends.append(comparison.references.best)
    finite = [end for end in ends if np.isfinite(end)]
    low, high = min(finite), max(finite)
    margin = _MARGIN * (high - low) or 0.01
    return low - margin, high + margin


def _saved(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=_PIXELS, metadata=metadata)
    return buffer.getvalue()
