"""Intervals of the means of several samples."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from gflownet.evaluation.statistics import (
    find_modes,
    hypervolume,
    non_dominated,
    simultaneous_intervals,
    standard_errors,
    top_k_mean,
)


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


def test_intervals_of_groups_cover_each_group():
    """Small networks vary more than large ones: a variance pooled over both covers the noisy group too rarely."""
    generator, deviations = np.random.default_rng(1), np.repeat([0.05, 0.005], 6)
    num_covered = {False: np.zeros(2), True: np.zeros(2)}
    for _ in range(500):
        samples = generator.normal(0.0, deviations[:, None], (12, 3)).tolist()
        for has_groups, total in num_covered.items():
            intervals = simultaneous_intervals(samples, [0] * 6 + [1] * 6 if has_groups else ())
            total += [all(0.0 in each for each in half) for half in (intervals[:6], intervals[6:])]
    assert (num_covered[True] / 500 > 0.95).all(), "the level of half of the intervals is .975"
    assert num_covered[False][0] / 500 < 0.9


def test_standard_errors_of_groups_are_moderated():
    samples = [[0.1, 0.3], [0.2, 0.2, 0.5], [0.7], [0.4, 0.5]]
    errors, num_freedom = standard_errors(samples, [0, 0, 1, 1])
    squares = [sum((x - np.mean(sample)) ** 2 for x in sample) for sample in samples]
    pooled = sum(squares) / 4
    variances = [(squares[0] + squares[1] + 2 * pooled) / 5, (squares[3] + 2 * pooled) / 3]
    assert num_freedom.tolist() == [5, 5, 3, 3]
    expected = [math.sqrt(variances[i // 2] / len(sample)) for i, sample in enumerate(samples)]
    assert errors.tolist() == pytest.approx(expected)


def test_single_observations_have_no_interval():
    intervals = simultaneous_intervals([[0.5], [0.7]])
    assert [interval.value for interval in intervals] == [0.5, 0.7]
    assert all(math.isnan(interval.low) and math.isnan(interval.high) for interval in intervals)


def slow_front(points: np.ndarray) -> list[bool]:
    return [not any((other >= point).all() and (other > point).any() for other in points) for point in points]


def inclusion_exclusion(points: np.ndarray) -> float:
    """The volume of a union of boxes at the origin: an intersection has the smallest of their sides."""
    total = 0.0
    for size in range(1, len(points) + 1):
        for subset in combinations(points, size):
            total += (-1) ** (size + 1) * float(np.min(subset, axis=0).clip(min=0).prod())
    return total


def points_of(seed: int, num: int, num_objectives: int, *, levels: int | None) -> np.ndarray:
    """Random points; few levels make many ties."""
    rng = np.random.default_rng(seed)
    if levels is None:
        return rng.random((num, num_objectives))
    return rng.integers(0, levels, (num, num_objectives)) / levels


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
@pytest.mark.parametrize("levels", [None, 3])
def test_non_dominated_matches_pairwise_comparison(num_objectives, levels):
    for seed in range(25):
        points = points_of(seed, 40, num_objectives, levels=levels)
        assert non_dominated(points).tolist() == slow_front(points)


def test_non_dominated_distinguishes_last_bit():
    above = np.nextafter(0.1, 1.0)
    points = np.array([[0.1, 0.7, 0.2], [above, 0.7, 0.2], [0.1, 0.7, 0.2]])
    assert non_dominated(points).tolist() == [False, True, False]


def test_empty_front_and_volume():
    assert non_dominated(np.zeros((0, 3))).tolist() == []
    assert hypervolume(np.zeros((0, 3))) == 0.0


@pytest.mark.parametrize("num_objectives", [2, 3, 4])
@pytest.mark.parametrize("levels", [None, 4])
def test_hypervolume_matches_inclusion_exclusion(num_objectives, levels):
    for seed in range(12):
        points = points_of(seed, 8, num_objectives, levels=levels) - (0.1 if seed % 2 else 0.0)
        assert hypervolume(points) == pytest.approx(inclusion_exclusion(points), abs=1e-12)


@pytest.mark.parametrize("num_objectives", [2, 3, 4])
def test_hypervolume_of_large_front_matches_cell_count(num_objectives):
    """On points of a grid the volume is the number of dominated cells: no rounding, many points."""
    levels = 8
    points = points_of(num_objectives, 60, num_objectives, levels=levels)
    cells = np.stack(np.meshgrid(*[np.arange(levels)] * num_objectives, indexing="ij"), -1).reshape(-1, num_objectives)
    dominated = ((points[:, None, :] * levels) >= cells[None] + 1).all(2).any(0)
    assert hypervolume(points) == pytest.approx(dominated.sum() / levels**num_objectives, abs=1e-12)


def test_hypervolume_reference_point():
    points = np.array([[3.0, 2.0], [2.0, 3.0], [5.0, 1.0], [0.5, 9.0]])
    assert hypervolume(points, np.array([1.0, 1.0])) == pytest.approx(2 * 1 + 1 * 2 - 1 * 1)
    assert hypervolume(points, np.array([5.0, 9.0])) == 0.0


@pytest.mark.parametrize("function", [non_dominated, hypervolume])
@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.zeros(3), r"expected a table \[N, K\] with K >= 1, got the shape \(3,\)"),
        (np.zeros((3, 0)), r"expected a table \[N, K\] with K >= 1, got the shape \(3, 0\)"),
        (np.array([[1.0, np.nan]]), "expected numbers, got NaN"),
    ],
)
def test_pareto_invalid_points_raise(function, points, message):
    with pytest.raises(ValueError, match=rf"^points: {message}$"):
        function(points)


def _differences(a: str, b: str) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def test_find_modes():
    words, scores = ["000", "001", "000", "111", "110", "010"], [5.0, 4.0, 5.0, 3.0, 3.5, 1.0]
    assert find_modes(words, scores, threshold=3.0, key=str) == [0, 1, 4, 3]
    apart = find_modes(words, scores, threshold=3.0, key=str, distance=_differences, min_distance=2)
    assert apart == [0, 4]
    assert find_modes(words, scores, threshold=6.0, key=str) == []
    in_a_row = find_modes(["aa", "ab", "bb"], [3, 2, 1], threshold=0, key=str, distance=_differences, min_distance=2)
    assert in_a_row == [0, 2], "far from the better mode, near a better object that is none"


def test_top_k_mean_counts_distinct_objects():
    assert top_k_mean("aab", [4.0, 4.0, 1.0], k=2) == 2.5
    assert top_k_mean("aba", [4.0, 3.0, 1.0], k=1) == 4.0
    assert top_k_mean("ab", [4.0, 1.0], k=5) == 2.5
    with pytest.raises(ValueError, match="expected k >= 1 and an object, got k=0 and 1 objects"):
        top_k_mean("a", [1.0], k=0)
