"""Final figures of runs, and their means over seeds with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gflownet.evaluation.status import EvaluationStatus
from gflownet.report.compared.groups import Group
from gflownet.report.compared.intervals import MAX_SCORE, bounded_intervals
from gflownet.report.page.run_data import RunData, figure_of, mapping_of, number_of


@dataclass(frozen=True)
class FigureKind:
    """A final figure of a run."""

    key: str
    title: str
    unit: str
    read: Callable[[RunData], float]  # NaN where the run has none
    is_lower_better: bool = False
    upper: float = math.inf  # largest possible value; the smallest one is 0
    is_compared: bool = True  # whether one group can be better than another


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
    top = run.top[0] if run.top else {}
    scores = [score for score in mapping_of(top.get("final")).get("test_scores") or [] if number_of(score) is not None]
    return float(np.mean(scores)) if scores else figure_of(top.get("test_score"))


def final_score(run: RunData) -> float:
    """Return the mean validation score of rank 0 in the final stage."""
    top = run.top[0] if run.top else {}
    return figure_of(mapping_of(top.get("final")).get("mean"))


def num_evaluations(run: RunData) -> float:
    """Return the number of evaluations of the search."""
    return float(len(run.searched))


def failed_share(run: RunData) -> float:
    """Return the share of evaluations without a score."""
    num_failed = sum(record.status is not EvaluationStatus.OK for record in run.searched)
    return num_failed / len(run.searched) if run.searched else math.nan


def seconds_of(run: RunData) -> float:
    """Return the seconds of all phases of the run; of runs of earlier versions, of the search."""
    if run.status is not None and run.status.sessions:
        return sum(run.status.seconds.values())
    return figure_of(run.metrics[-1].get("seconds")) if run.metrics else math.nan


FIGURES = (
    FigureKind("best_score", "best score in the search", "", best_score, upper=MAX_SCORE),
    FigureKind("final_score", "mean score of rank 0, new seeds", "", final_score, upper=MAX_SCORE),
    FigureKind("test_score", "test score of rank 0", "", test_score, upper=MAX_SCORE),
    FigureKind("evaluations", "evaluations", "", num_evaluations, is_compared=False),
    FigureKind(
        "failed", "failed evaluations", "%", lambda run: 100 * failed_share(run), is_lower_better=True, upper=100.0
    ),
    FigureKind("seconds", "time", "s", seconds_of, is_lower_better=True),
)


def figures_of(group: Group) -> Mapping[str, Estimate]:
    """Return the estimates of a group by the key of the figure."""
    return {kind.key: estimate_of([kind.read(run) for run in group.runs], upper=kind.upper) for kind in FIGURES}


def estimate_of(values: Sequence[float], *, upper: float = math.inf) -> Estimate:
    """Return the mean of the finite values, with its interval between 0 and `upper`."""
    known = np.array([value for value in values if math.isfinite(value)])
    if not known.size:
        return Estimate(tuple(values), math.nan, math.nan, math.nan)
    (low,), (high,) = bounded_intervals(known[:, None], upper=upper)
    return Estimate(tuple(values), float(known.mean()), float(low), float(high))
