"""95 % intervals of means over seeds. Letters: S seeds, X places of a curve."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
# From this number of seeds on means are resampled; resampled means of fewer values cover too little.
_MIN_RESAMPLED = 8
_NUM_RESAMPLES = 10_000
_SEED = 0  # of the resampling, so that a repeated report has the same intervals


def mean_intervals(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95 % intervals of the means over seeds, [X] each; NaN for one seed.

    Percentiles of resampled means, at levels that make up for few seeds (Hesterberg 2015, expanded percentile
    interval); with less than 8 seeds Student's t interval.

    Args:
        values: [S, X], finite.
    """
    num_seeds, num_places = values.shape
    if num_seeds < 2:
        return np.full(num_places, math.nan), np.full(num_places, math.nan)
    student = float(stdtrit(num_seeds - 1, (1 + LEVEL) / 2))
    if num_seeds < _MIN_RESAMPLED:
        mean, margin = values.mean(axis=0), student * values.std(axis=0, ddof=1) / math.sqrt(num_seeds)
        return mean - margin, mean + margin
    generator = np.random.default_rng(_SEED)
    weights = generator.multinomial(num_seeds, [1 / num_seeds] * num_seeds, size=_NUM_RESAMPLES) / num_seeds
    tail = NormalDist().cdf(-student * math.sqrt(num_seeds / (num_seeds - 1)))
    low, high = np.quantile(weights @ values, [tail, 1 - tail], axis=0)
    return low, high
