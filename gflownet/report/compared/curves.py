"""Curves of groups: best and mean score by evaluations and by time, as means over seeds with 95 % intervals.

S: seeds of a group, X: places of a curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gflownet.metrics.mean_intervals import mean_intervals
from gflownet.pictures.line_charts import moving_mean
from gflownet.report.compared.groups import Group
from gflownet.report.page.run_data import RunData

NUM_PLACES = 200
# Steps in the moving mean of the mean score.
WINDOW = 10


@dataclass(frozen=True)
class CurveKind:
    """A chart of the comparison."""

    key: str
    title: str
    x_metric: str
    y_metric: str
    x_label: str
    is_smoothed: bool


CURVES = (
    CurveKind("best-evaluations", "Best score by evaluations", "num_distinct", "score_best", "evaluations", False),
    CurveKind("best-time", "Best score by time", "seconds", "score_best", "seconds of the search", False),
    CurveKind("mean-evaluations", "Mean score by evaluations", "num_distinct", "score_mean", "evaluations", True),
    CurveKind("mean-time", "Mean score by time", "seconds", "score_mean", "seconds of the search", True),
)


@dataclass(frozen=True)
class GroupCurve:
    """A curve of a group; the ends are NaN where less than two runs have a value."""

    x: list[float]  # [X], ascending
    mean: list[float]  # [X]
    low: list[float]  # [X], ends of the 95 % interval
    high: list[float]


def group_curve(group: Group, kind: CurveKind) -> GroupCurve | None:
    """Return the curve of a group, None without values.

    It covers the places that all runs with values have reached, so that a mean is always of the same runs.
    """
    curves = [curve for run in group.runs if (curve := _run_curve(run, kind)) is not None]
    if not curves:
        return None
    if len(curves) == 1:
        ((x, y),) = curves
        return GroupCurve(x.tolist(), y.tolist(), [math.nan] * len(x), [math.nan] * len(x))
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if end < start:
        return None
    places = np.linspace(start, end, NUM_PLACES if end > start else 1)
    values = np.stack([_at(places, x, y, is_step=not kind.is_smoothed) for x, y in curves])  # [S, X]
    low, high = mean_intervals(values)
    return GroupCurve(places.tolist(), values.mean(axis=0).tolist(), low.tolist(), high.tolist())


def _run_curve(run: RunData, kind: CurveKind) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the places and values of a run, ascending, None without a finite value."""
    points = [(row.get(kind.x_metric), row.get(kind.y_metric)) for row in run.metrics]
    known = [(float(x), float(y)) for x, y in points if isinstance(x, int | float) and isinstance(y, int | float)]
    if not known:
        return None
    x, y = np.array(known).T
    order = np.argsort(x, kind="stable")
    return x[order], _smoothed(y[order]) if kind.is_smoothed else y[order]


def _smoothed(values: np.ndarray) -> np.ndarray:
    return np.array(moving_mean(values.tolist(), WINDOW))


def _at(places: np.ndarray, x: np.ndarray, y: np.ndarray, *, is_step: bool) -> np.ndarray:
    """Return the values at places: of the last point before, or on the line between two points."""
    if not is_step:
        return np.interp(places, x, y)
    return y[np.searchsorted(x, places, side="right") - 1]
