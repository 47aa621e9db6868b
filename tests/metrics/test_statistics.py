"""Intervals of the means of several samples."""

import math

import numpy as np
import pytest
from scipy import stats

from gflownet.metrics.statistics import simultaneous_intervals


def test_interval_of_one_sample_is_student_t():
    sample = [0.91, 0.95, 0.93, 0.94]
    (interval,) = simultaneous_intervals([sample])
    low, high = stats.t.interval(0.95, 3, np.mean(sample), stats.sem(sample))
    assert (interval.value, interval.low, interval.high) == pytest.approx((np.mean(sample), low, high))


def test_intervals_cover_all_means_at_once():
    """Count over normal samples: 95 % of the runs cover all means, and the largest mean in particular."""
    generator, means = np.random.default_rng(0), np.array([0.0, 0.2, 0.4, 0.4])
    all_covered, best_covered, num_runs = 0, 0, 1_000
    for _ in range(num_runs):
        intervals = simultaneous_intervals(generator.normal(means[:, None], 1, (4, 5)).tolist())
        covered = [mean in interval for mean, interval in zip(means, intervals, strict=True)]
        all_covered += all(covered)
        best_covered += covered[int(np.argmax([interval.value for interval in intervals]))]
    assert 0.93 < all_covered / num_runs < 0.97  # a standard deviation is 0.007
    assert best_covered >= all_covered


def test_intervals_of_unequal_samples():
    intervals = simultaneous_intervals([[0.5], [0.4, 0.6], [0.3, 0.5, 0.4]])
    margins = [interval.high - interval.value for interval in intervals]
    assert margins == pytest.approx([margins[0], margins[0] / math.sqrt(2), margins[0] / math.sqrt(3)])
    deviation = math.sqrt((0.02 + 0.02) / 3)  # pooled
    assert margins[0] == pytest.approx(stats.t.ppf((1 + 0.95 ** (1 / 3)) / 2, 3) * deviation)


def test_single_observations_have_no_interval():
    intervals = simultaneous_intervals([[0.5], [0.7]])
    assert [interval.value for interval in intervals] == [0.5, 0.7]
    assert all(math.isnan(interval.low) and math.isnan(interval.high) for interval in intervals)
