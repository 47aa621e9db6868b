"""Pareto front and hypervolume of several objectives, all maximised.

Letters: N points, K objectives.
"""

from __future__ import annotations

import numpy as np


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
