"""Intervals over seeds: coverage, and known values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gflownet.comparison.result import summary_of
from gflownet.metrics.mean_intervals import mean_intervals


@pytest.mark.parametrize("num_seeds", [2, 3, 4, 5, 7, 8, 20])
def test_mean_intervals_cover_normal_means(num_seeds: int) -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, size=(num_seeds, 400))
    low, high = mean_intervals(samples)
    assert 0.92 <= ((low <= 3.0) & (high >= 3.0)).mean() <= 0.98


def test_mean_intervals_of_equal_values_have_no_width() -> None:
    low, high = mean_intervals(np.full((6, 2), 0.25))
    assert low == pytest.approx([0.25, 0.25])
    assert high == pytest.approx([0.25, 0.25])


def test_summary_of_known_values() -> None:
    summary = summary_of(np.array([1.0, 2.0, 3.0, 6.0]))
    assert (summary.mean, summary.median) == (3.0, 2.5)
    assert (summary.lower_quartile, summary.upper_quartile) == (1.75, 3.75)
    margin = 3.182446 * math.sqrt(14 / 3) / 2  # Student's t for 3 degrees of freedom
    assert (summary.low, summary.high) == pytest.approx((0.0, 3.0 + margin)), "a score is not negative"


def test_summary_of_one_seed_has_no_interval() -> None:
    summary = summary_of(np.array([0.5]))
    assert summary.mean == 0.5
    assert math.isnan(summary.low)


def test_summary_of_unknown_value_is_unknown() -> None:
    assert math.isnan(summary_of(np.array([0.5, math.nan])).mean)
