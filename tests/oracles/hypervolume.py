"""Expected hypervolume improvement by Monte Carlo and by a grid of candidate values."""

from __future__ import annotations

import numpy as np

from gflownet.evaluation.statistics import hypervolume


def improvement(point: np.ndarray, front: np.ndarray, reference: np.ndarray) -> float:
    """Return the volume that a point [K] adds to the points [n, K]."""
    return hypervolume(np.vstack([front, point]), reference) - hypervolume(front, reference)


def sampled_expectation(
    mean: np.ndarray, std: np.ndarray, front: np.ndarray, reference: np.ndarray, *, num: int
) -> tuple[float, float]:
    """Return the expected improvement of a normal candidate [K] from `num` samples, and its standard error."""
    samples = mean + std * np.random.default_rng(0).standard_normal((num, len(mean)))
    values = [improvement(sample, front, reference) for sample in samples]
    return float(np.mean(values)), float(np.std(values) / np.sqrt(num))


def integrated_expectation(
    mean: np.ndarray, std: np.ndarray, front: np.ndarray, reference: np.ndarray, *, num: int
) -> float:
    """Return the expected improvement of a normal candidate of two objectives by the midpoint rule."""
    steps = (np.arange(num) + 0.5) / num * 16 - 8
    weights = np.exp(-(steps**2) / 2)
    weights /= weights.sum()
    return sum(
        first * second * improvement(mean + std * np.array([a, b]), front, reference)
        for a, first in zip(steps, weights, strict=True)
        for b, second in zip(steps, weights, strict=True)
    )
