"""Correlations, intervals, Pareto fronts and hypervolumes of objectives that are maximised, modes and best objects.

Letters: N points, K objectives. scipy.stats takes a second: the functions that need it import it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")
LEVEL = 0.95
_NUM_RESAMPLES = 2_000


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95 % interval; the ends are NaN for a single observation."""

    value: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        """Return whether a value is between the ends."""
        return self.low <= value <= self.high

    def within(self, low: float, high: float) -> Interval:
        """Return the part within the range of the estimated figure.

        It covers the true value as often as the whole: the true value is never outside of its range. A bound on the
        wrong side of the estimate is not that of the figure, and is ignored.
        """
        low, high = (-math.inf if low > self.value else low), (math.inf if high < self.value else high)
        return Interval(
            self.value, *(end if math.isnan(end) else min(max(end, low), high) for end in (self.low, self.high))
        )


def standard_errors(samples: Sequence[Sequence[float]], groups: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard errors of K means, and their degrees of freedom, [K] each; NaN without any.

    The variance is pooled over all samples. With the group of each sample it is that of the group, in which the pooled
    variance counts as two degrees of freedom (a moderated variance: Smyth 2004, section 4, with d_0 = 2).
    """
    values = [np.asarray(sample, dtype=float) for sample in samples]
    num = np.array([len(sample) for sample in values], dtype=float)
    squares = np.array([((sample - sample.mean()) ** 2).sum() for sample in values])
    num_freedom, total = np.full(len(num), (num - 1).sum()), np.full(len(num), squares.sum())
    with np.errstate(invalid="ignore"):
        variance = total / num_freedom
        if len(groups):
            is_same = np.asarray(groups)[:, None] == np.asarray(groups)
            num_freedom = (is_same @ (num - 1) + 2) * (num_freedom > 0)
            variance = (is_same @ squares + 2 * variance) / num_freedom
        return np.sqrt(variance / num), num_freedom


def simultaneous_intervals(samples: Sequence[Sequence[float]], groups: Sequence[int] = ()) -> list[Interval]:
    """Return the mean of each sample with intervals that cover all true means at once, at 95 %.

    Valid for any of them afterwards, also for that of the largest mean. Student's t with the variance of
    `standard_errors`, and Šidák's level 0.95^(1/K) of each of K intervals (Šidák 1967). A single observation in every
    sample has no interval.
    """
    means = [float(np.mean(sample)) for sample in samples]
    error, num_freedom = standard_errors(samples, groups)
    if not num_freedom.any():
        return [Interval(mean, math.nan, math.nan) for mean in means]
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes a second

    margins = stdtrit(num_freedom, (1 + LEVEL ** (1 / len(means))) / 2) * error
    return [Interval(mean, mean - margin, mean + margin) for mean, margin in zip(means, margins.tolist(), strict=True)]


def difference_margin(errors: Sequence[tuple[float, float]], *, num: int = 1) -> float:
    """Return half the 95 % interval of a difference of two means with their standard errors and degrees of freedom.

    Student's t with Welch's degrees of freedom (Welch 1947), at Šidák's level of each of `num` differences.
    """
    variances = [error**2 for error, _ in errors]
    if not (total := math.fsum(variances)):  # NaN for a single observation
        return 0.0
    shares = math.fsum((each / total) ** 2 / number for each, (_, number) in zip(variances, errors, strict=True))
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes a second

    return float(stdtrit(1 / shares if shares else math.inf, (1 + LEVEL ** (1 / num)) / 2)) * math.sqrt(total)


def standard_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of a mean and its degrees of freedom; NaN of a single observation."""
    error, num_freedom = standard_errors([values])
    return float(error[0]), float(num_freedom[0]) or math.nan


def bootstrap(statistic: Callable[..., np.ndarray], samples: Sequence[np.ndarray], *, seed: int) -> Interval:
    """Return a statistic of N observations with its interval.

    The bias-corrected and accelerated bootstrap (Efron 1987), or percentiles of the finite resampled statistics if
    that is undefined.
    The `statistic` maps arrays along the keyword `axis`; `samples`, an array [N] for each argument, are resampled
    together.
    """
    value = float(statistic(*samples, axis=-1))
    if len(samples[0]) < 2:
        return Interval(value, math.nan, math.nan)
    from scipy import stats

    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            samples,
            statistic,
            n_resamples=_NUM_RESAMPLES,
            paired=True,
            vectorized=True,
            confidence_level=LEVEL,
            method="BCa",
            rng=np.random.default_rng(seed),
        )
    low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
    defined = result.bootstrap_distribution[np.isfinite(result.bootstrap_distribution)]
    if not (math.isfinite(low) and math.isfinite(high)) and len(defined):
        low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(value, low, high)


def pearson(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the correlation along an axis, in [-1, 1]; NaN for constant values (Pearson 1895)."""
    a, b = (x - x.mean(axis, keepdims=True) for x in (a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip((a * b).sum(axis) / np.sqrt((a * a).sum(axis) * (b * b).sum(axis)), -1.0, 1.0)


def spearman(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the correlation of the ranks along an axis; equal values share their mean rank (Spearman 1904)."""
    from scipy.stats import rankdata

    return pearson(rankdata(a, axis=axis), rankdata(b, axis=axis), axis)


def non_dominated(points: np.ndarray) -> np.ndarray:
    """Return which points [N, K] are on the Pareto front, [N] bool; equal points are all on the front or none is.

    A point dominates another if it is not worse in any objective and better in at least one.

    Raises:
        ValueError: not a table of numbers, or a number is NaN.
    """
    points = _checked(points)
    is_on_front = np.zeros(len(points), dtype=bool)
    # A point comes after those that dominate it in descending lexicographic order: the first candidate is on the front.
    candidates = np.lexsort(points.T[::-1])[::-1]
    while len(candidates):
        first = points[candidates[0]]
        is_equal = (points[candidates] == first).all(1)
        is_on_front[candidates[is_equal]] = True
        candidates = candidates[(points[candidates] > first).any(1)]
    return is_on_front


def hypervolume(points: np.ndarray, reference: np.ndarray | None = None) -> float:
    """Return the exact volume dominated by the points [N, K] above the reference [K], the origin by default.

    A point that is not above the reference in every objective adds nothing. Computed by exclusive contributions (WFG:
    While, Bradstreet and Barone 2012, sections III and IV) of each point relative to the later ones.

    Raises:
        ValueError: not a table of numbers, or a number is NaN.
    """
    points = _checked(points)
    points = points - (0.0 if reference is None else np.asarray(reference, dtype=np.float64))
    points = points[(points > 0).all(1)]
    return _volume(points)


def largest_addition(points: np.ndarray, chosen: Sequence[int], candidates: Iterable[int]) -> int:
    """Return the first candidate of points [N, K] that adds most to the hypervolume of the chosen ones."""
    return max(candidates, key=lambda place: hypervolume(points[[*chosen, place]]))


def _volume(points: np.ndarray) -> float:
    """Return the volume dominated by points above the origin."""
    if not len(points):
        return 0.0
    if points.shape[1] == 1:
        return float(points.max())
    if points.shape[1] == 2:
        return _area(points)
    points = np.unique(points[non_dominated(points)], axis=0)
    points = points[points[:, -1].argsort(kind="stable")]
    total = 0.0
    for place, point in enumerate(points):
        # Later points are at least as high in the last objective, so the overlap is as high as the point itself.
        overlap = np.minimum(points[place + 1 :, :-1], point[:-1])
        total += float(point[-1]) * (float(point[:-1].prod()) - _volume(overlap))
    return total


def _area(points: np.ndarray) -> float:
    """Return the area dominated by points of two objectives, as a sum of strips."""
    widths, heights = points[points[:, 0].argsort()[::-1]].T
    reached = np.maximum.accumulate(heights)
    return float((widths * np.diff(reached, prepend=0.0)).sum())


def _checked(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or not points.shape[1]:
        raise ValueError(f"points: expected a table [N, K] with K >= 1, got the shape {points.shape}")
    if np.isnan(points).any():
        raise ValueError("points: expected numbers, got NaN")
    return points


def find_modes(
    objects: Sequence[T],
    scores: Sequence[float],
    *,
    threshold: float,
    key: Callable[[T], Hashable],
    distance: Callable[[T, T], float] | None = None,
    min_distance: float = 0.0,
) -> list[int]:
    """Return the positions of the modes, best first.

    A mode is a distinct object with a score of at least `threshold` and, if a distance is given, at least
    `min_distance` from every better mode (as Bengio et al. 2021 count modes of molecules, by similarity).

    `threshold` is the minimum score of a mode, `min_distance` between two modes; equal objects have equal keys.
    """
    modes: list[int] = []
    for index in _best_distinct([key(each) for each in objects], scores):
        if scores[index] < threshold:
            break
        if distance is None or all(distance(objects[index], objects[mode]) >= min_distance for mode in modes):
            modes.append(index)
    return modes


def top_k_mean(keys: Sequence[Hashable], scores: Sequence[float], *, k: int) -> float:
    """Return the mean score of the k best distinct objects, each with its best score; of all if there are fewer.

    Raises:
        ValueError: there is no object, or k is not positive.
    """
    best = [scores[index] for index in _best_distinct(keys, scores)[: max(k, 0)]]
    if not best:
        raise ValueError(f"top_k_mean: expected k >= 1 and an object, got k={k} and {len(keys)} objects")
    return sum(best) / len(best)


def _best_distinct(keys: Sequence[Hashable], scores: Sequence[float]) -> list[int]:
    """Return the position of each distinct key with its best score, best first."""
    best: dict[Hashable, int] = {}
    for index in sorted(range(len(keys)), key=lambda i: -scores[i]):
        best.setdefault(keys[index], index)
    return list(best.values())
