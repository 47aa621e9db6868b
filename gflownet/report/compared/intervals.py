"""Intervals of means within the range of a figure."""

from __future__ import annotations

import math

import numpy as np

from gflownet.metrics.mean_intervals import mean_intervals

# The best of accuracies and scaled rewards; a task may define larger scores.
MAX_SCORE = 1.0


def bounded_intervals(values: np.ndarray, *, upper: float = math.inf) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of `mean_intervals` of values [S, X], each between 0 and `upper`.

    A bound that a value exceeds is not that of the figure: it is ignored.
    """
    low, high = mean_intervals(values)
    low = low if (values < 0).any() else np.maximum(low, 0.0)
    return low, high if (values > upper).any() else np.minimum(high, upper)
