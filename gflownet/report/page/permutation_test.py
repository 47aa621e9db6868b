"""Permutation test of many features at once: features whose mean difference is clear among all comparisons.

N: scores, F: features, P: permutations.
"""

from __future__ import annotations

import numpy as np

NUM_PERMUTATIONS = 499
# Scores above this number are left out at random: the time grows with the number of scores.
MAX_SCORES = 4_000
# Relative rounding of single precision: permutations with the observed statistic count as at least as large.
_ROUNDING = 1e-4


def clear_features(
    is_present: np.ndarray, scores: np.ndarray, *, level: float, generator: np.random.Generator
) -> np.ndarray:
    """Return the features [F] with a difference of means that is clear among all features.

    If no feature has an effect, any feature is clear in at most 1 - `level` of all cases, for every distribution of
    the scores: under a permutation of the scores all differences are chance. The statistic of a permutation is its
    largest standardised difference of means (max-T of Westfall and Young 1993).

    Args:
        is_present: whether an architecture has a feature [N, F]; each feature is present and absent.
        scores: of the architectures [N].
        level: 0.95 for a test at 5 %.
        generator: chooses the permutations.
    """
    if len(scores) > MAX_SCORES:
        chosen = generator.choice(len(scores), MAX_SCORES, replace=False)
        is_present, scores = is_present[chosen], scores[chosen]
    if not is_present.size or not np.ptp(scores):
        return np.zeros(is_present.shape[1], dtype=bool)
    centred = ((scores - scores.mean()) / scores.std()).astype(np.float32)
    num_with = is_present.sum(axis=0)
    # The variance of the sum of the scores with a feature, up to a factor that all features share.
    variance = np.maximum(num_with * (len(scores) - num_with) / len(scores), 0.5)
    table = (is_present / np.sqrt(variance)).astype(np.float32)  # [N, F]
    observed = np.abs(centred @ table)
    permuted = generator.permuted(np.tile(centred, (NUM_PERMUTATIONS, 1)), axis=1)  # [P, N]
    largest = np.abs(permuted @ table).max(axis=1)
    num_larger = (largest[:, None] >= observed * (1 - _ROUNDING)).sum(axis=0)
    return (1 + num_larger) / (1 + NUM_PERMUTATIONS) <= 1 - level + 1e-9
