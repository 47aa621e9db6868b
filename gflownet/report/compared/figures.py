"""Final figures of runs and curves of groups: means over seeds with 95 % intervals within the range of the figure.

S: seeds of a group, X: places of a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from gflownet.errors import counted
from gflownet.evaluation.statistics import difference_margin, standard_error
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.pictures.line_charts import moving_mean
from gflownet.report.compared.groups import Group
from gflownet.report.page.run_data import RunData
from gflownet.report.verdict import ENDS, verdict_of

_LEVEL = 0.95
# The best of accuracies and scaled rewards; a task may define larger scores.
MAX_SCORE = 1.0


def mean_intervals(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of Student's 95 % intervals of the means of values [S, X] over seeds, [X] each; NaN for one."""
    num_seeds, num_places = values.shape
    if num_seeds < 2:
        return np.full(num_places, math.nan), np.full(num_places, math.nan)
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(num_seeds)
    margin = float(stdtrit(num_seeds - 1, (1 + _LEVEL) / 2)) * error
    return mean - margin, mean + margin


def bounded_intervals(values: np.ndarray, *, upper: float = math.inf) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of `mean_intervals` of values [S, X], each between 0 and `upper`.

    A bound that a value exceeds is not that of the figure: it is ignored.
    """
    low, high = mean_intervals(values)
    low = low if (values < 0).any() else np.maximum(low, 0.0)
    return low, high if (values > upper).any() else np.minimum(high, upper)


@dataclass(frozen=True)
class MeanDifference:
    """The mean difference of a figure between two sides: of shared seeds seed by seed, or of all seeds of each."""

    mean: float  # first minus second; NaN where a value is unknown
    low: float  # ends of the 95 % interval, NaN for one seed
    high: float
    num_seeds: int  # of the smaller side

    @property
    def figures(self) -> str:
        """Return mean and interval as text."""
        return f"{self.mean:+.4f}" + ("" if math.isnan(self.low) else f" [{self.low:+.4f}, {self.high:+.4f}]")

    def line(self, first: str, second: str) -> str:
        """Return the verdict with the difference."""
        verdict = verdict_of(self.mean, (self.high - self.low) / 2, self.num_seeds)
        return f"{first}: {verdict} {ENDS[verdict]} {second}, {self.figures}, {counted(self.num_seeds, 'seed')}"


def paired_difference(first: np.ndarray, second: np.ndarray) -> MeanDifference:
    """Return the mean difference of the values [S] of two sides, a place per shared seed."""
    values = first - second
    (low,), (high,) = mean_intervals(values[:, None])
    return MeanDifference(float(values.mean()), float(low), float(high), len(values))


def unpaired_difference(first: np.ndarray, second: np.ndarray) -> MeanDifference:
    """Return the difference of the means of values [S] of two sides, with Welch's interval."""
    mean = float(first.mean() - second.mean())
    margin = difference_margin([standard_error(side.tolist()) for side in (first, second)])
    return MeanDifference(mean, mean - margin, mean + margin, min(len(first), len(second)))


@dataclass(frozen=True)
class FigureKind:
    """A final figure of a run."""

    key: str
    title: str
    unit: str
    read: Callable[[RunData], float]  # NaN where the run has none
    upper: float = math.inf  # largest possible value; the smallest one is 0


@dataclass(frozen=True)
class Estimate:
    """A figure of a group."""

    values: tuple[float, ...]  # of each run; NaN: unknown
    mean: float  # of the known values; NaN without one
    low: float  # ends of the 95 % interval of the mean; NaN with less than two known values
    high: float


def best_score(run: RunData) -> float:
    """Return the best score of the search within evaluation.constraints."""
    return math.nan if run.best_score is None else run.best_score


def test_score(run: RunData) -> float:
    """Return the test score of rank 0: the mean over the trainings of the final stage, where there was one."""
    scores = [each.test_score for each in run.results.finalists[:1] if each.test_score is not None]
    return scores[0] if scores else math.nan


def final_score(run: RunData) -> float:
    """Return the mean validation score of rank 0 in the final stage."""
    sides = [each.final for each in run.results.finalists[:1] if each.final is not None]
    return sides[0].mean if sides else math.nan


def failed_percentage(run: RunData) -> float:
    """Return the percentage of evaluations without a score."""
    num_failed = sum(record.status is not EvaluationStatus.OK for record in run.searched)
    return 100 * num_failed / len(run.searched) if run.searched else math.nan


FIGURES = (
    FigureKind("best_score", "best score in the search", "", best_score, upper=MAX_SCORE),
    FigureKind("final_score", "mean score of rank 0, new seeds", "", final_score, upper=MAX_SCORE),
    FigureKind("test_score", "test score of rank 0", "", test_score, upper=MAX_SCORE),
    FigureKind("evaluations", "evaluations", "", lambda run: float(len(run.searched))),
    FigureKind("failed", "failed evaluations", "%", failed_percentage, upper=100.0),
    FigureKind("seconds", "time", "s", lambda run: sum(run.status.seconds.values()) if run.status else math.nan),
)


def figures_of(group: Group) -> Mapping[str, Estimate]:
    """Return the estimates of a group by the key of the figure."""
    return {kind.key: estimate_of([kind.read(run) for run in group.runs], upper=kind.upper) for kind in FIGURES}


def estimate_of(values: Sequence[float], *, upper: float = math.inf) -> Estimate:
    """Return the mean of the finite values, with its interval between 0 and `upper`."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not finite.size:
        return Estimate(tuple(values), math.nan, math.nan, math.nan)
    (low,), (high,) = bounded_intervals(finite[:, None], upper=upper)
    return Estimate(tuple(values), float(finite.mean()), float(low), float(high))


NUM_PLACES = 200
WINDOW = 10  # evaluations in the moving mean


@dataclass(frozen=True)
class CurveKind:
    """A chart of the comparison."""

    key: str
    title: str
    x_label: str
    by_time: bool
    is_smoothed: bool


_SECONDS = "seconds of evaluations"
CURVES = (
    CurveKind("best-evaluations", "Best score by evaluations", "evaluations", by_time=False, is_smoothed=False),
    CurveKind("best-time", "Best score by time", _SECONDS, by_time=True, is_smoothed=False),
    CurveKind("mean-evaluations", "Mean score by evaluations", "evaluations", by_time=False, is_smoothed=True),
    CurveKind("mean-time", "Mean score by time", _SECONDS, by_time=True, is_smoothed=True),
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
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if end < start:
        return None
    places = np.linspace(start, end, NUM_PLACES if end > start else 1)
    rows = [
        np.interp(places, x, y) if kind.is_smoothed else y[np.searchsorted(x, places, side="right") - 1]
        for x, y in curves
    ]
    values = np.stack(rows)  # [S, X]
    low, high = bounded_intervals(values, upper=MAX_SCORE)
    return GroupCurve(places.tolist(), values.mean(axis=0).tolist(), low.tolist(), high.tolist())


def _run_curve(run: RunData, kind: CurveKind) -> tuple[np.ndarray, np.ndarray] | None:
    """Return places and scores of the evaluations of a run in order of their store, None without a score."""
    feasible = {id(record) for record in run.feasible}
    scores = np.array([record.score if id(record) in feasible else math.nan for record in run.searched])
    if not np.isfinite(scores).any():
        return None
    x = np.cumsum([record.seconds for record in run.searched]) if kind.by_time else np.arange(1.0, len(scores) + 1)
    y = np.array(moving_mean(scores.tolist(), WINDOW)) if kind.is_smoothed else np.fmax.accumulate(scores)
    is_known = np.isfinite(y)
    return x[is_known], y[is_known]
