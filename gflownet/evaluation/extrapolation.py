"""Extrapolation of learning curves to the end of the training, from the curve and from finished trainings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Exponents p of the power laws a - b x^-p that are fitted to a curve.
_EXPONENTS = (0.25, 0.5, 1.0, 2.0)


class CurveExtrapolation:
    """Extrapolation from one fidelity to the full one.

    The mean of two predictions: a power law fitted to the candidate's own curve, and the gap to the best score, reduced
    by the factor by which finished trainings reduced theirs. Before the first finished training the power law alone.
    None is above the best score seen. Compared with other methods in docs/experiments.md.
    """

    def __init__(self, fidelity: int, max_fidelity: int) -> None:
        self.fidelity, self.max_fidelity = fidelity, max_fidelity
        self._scores: list[float] = []  # at `fidelity`, of finished trainings
        self._final_scores: list[float] = []

    def add(self, score: float, final_score: float) -> None:
        """Add a finished training: its scores at `fidelity` and at the end."""
        self._scores.append(score)
        self._final_scores.append(final_score)

    def __call__(self, score: float, curve: Sequence[float], *, best: float) -> float:
        """Return the estimated final score of a training.

        Args:
            score: at `fidelity`.
            curve: scores at evenly spaced places up to `fidelity`.
            best: largest score of all trainings at `fidelity`.
        """
        own = power_law(curve or [score], self.fidelity, self.max_fidelity) - (curve[-1] if curve else score) + score
        best = max([best, *self._final_scores])
        if not self._scores:
            return max(min(own, best), 0.0)
        # Exactly rounded sums, which do not depend on the order: a resumed run gets the same.
        gap = math.fsum(best - each for each in self._scores)
        final_gap = math.fsum(best - each for each in self._final_scores)
        by_others = best - (best - score) * (final_gap / gap if gap > 0 else 1.0)  # gaps are >= 0
        return max((min(own, best) + by_others) / 2, 0.0)


def power_law(curve: Sequence[float], fidelity: int, max_fidelity: int) -> float:
    """Return the value at `max_fidelity` of a - b x^-p, b >= 0, through the end of a curve.

    The exponent of the smallest squared error is chosen; the gain from `fidelity` on is added to the last value. The
    points of the curve are evenly spaced up to `fidelity`. One point has no gain.
    """
    values = np.asarray(curve, dtype=np.float64)
    last = float(values[-1])
    if len(values) < 2:
        return last
    places = fidelity * np.arange(1, len(values) + 1) / len(values)
    fits = []
    for exponent in _EXPONENTS[1:3] if len(values) == 2 else _EXPONENTS:
        x = places**-exponent
        centred = x - x.mean()
        slope = max(-float(centred @ (values - values.mean()) / (centred @ centred)), 0.0)
        residuals = values - values.mean() + slope * centred
        fits.append((float(residuals @ residuals), slope * (float(x[-1]) - max_fidelity**-exponent)))
    return last + min(fits)[1]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation of pairs, tied values with their mean rank; NaN where it is not defined."""
    if len(pairs) < 2:
        return math.nan
    first, second = (_ranks(np.asarray(values)) for values in zip(*sorted(pairs), strict=True))
    spread = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread > 0 else math.nan


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks minus their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse] - (len(values) + 1) / 2
