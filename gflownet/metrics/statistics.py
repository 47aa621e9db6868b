"""Correlations of two lists of values and bootstrap intervals of statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

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


def simultaneous_intervals(samples: Sequence[Sequence[float]]) -> list[Interval]:
    """Return the mean of each sample with intervals that cover all true means at once, at 95 %.

    Valid for any of them afterwards, also for that of the largest mean. Student's t with the variance pooled over the
    samples and Šidák's level 0.95^(1/K) of each of K intervals (Šidák 1967). A single observation in every sample
    has no interval.
    """
    values = [np.asarray(sample, dtype=float) for sample in samples]
    num_freedom = sum(len(sample) - 1 for sample in values)
    means = [float(sample.mean()) for sample in values]
    if not num_freedom:
        return [Interval(mean, math.nan, math.nan) for mean in means]
    deviation = math.sqrt(sum(float(((sample - sample.mean()) ** 2).sum()) for sample in values) / num_freedom)
    quantile = float(stats.t.ppf((1 + LEVEL ** (1 / len(values))) / 2, num_freedom))
    margins = [quantile * deviation / math.sqrt(len(sample)) for sample in values]
    return [Interval(mean, mean - margin, mean + margin) for mean, margin in zip(means, margins, strict=True)]


def bootstrap(statistic: Callable[..., np.ndarray], samples: Sequence[np.ndarray], *, seed: int) -> Interval:
    """Return a statistic of N observations with its interval.

    The bias-corrected and accelerated bootstrap (Efron 1987), or percentiles of the finite resampled statistics if
    that is undefined.

    Args:
        statistic: maps arrays to their statistic along the keyword `axis`.
        samples: one array [N] for each argument of the statistic; they are resampled together.
        seed: of the resampling.
    """
    value = float(statistic(*samples, axis=-1))
    if len(samples[0]) < 2:
        return Interval(value, math.nan, math.nan)
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
    return pearson(stats.rankdata(a, axis=axis), stats.rankdata(b, axis=axis), axis)
