"""Figures of several seeds with 95 % intervals of their means. S: seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gflownet.metrics.mean_intervals import mean_intervals


@dataclass(frozen=True)
class Summary:
    """A figure over S seeds; NaN where it is unknown."""

    mean: float
    low: float  # ends of the 95 % interval of the mean, NaN for one seed
    high: float
    median: float
    lower_quartile: float
    upper_quartile: float


def summary_of(values: np.ndarray) -> Summary:
    """Return the summary of one value per seed, [S]."""
    if not np.isfinite(values).all():
        return Summary(*[math.nan] * 6)
    low, high = mean_intervals(values[:, None])
    quartiles = np.quantile(values, [0.5, 0.25, 0.75])
    return Summary(float(values.mean()), float(low[0]), float(high[0]), *map(float, quartiles))
