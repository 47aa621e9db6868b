"""Extrapolation of learning curves, and rank correlation."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from gflownet.evaluation.halving import CurveExtrapolation, power_law, rank_correlation


@pytest.mark.parametrize("exponent", [0.25, 0.5, 1.0, 2.0])
def test_power_law_is_exact_on_power_laws(exponent):
    curve = [0.9 - 0.5 * place**-exponent for place in (1, 2, 3, 4)]
    assert power_law(curve, 4, 27) == pytest.approx(0.9 - 0.5 * 27**-exponent, abs=1e-9)


def test_power_law_spaces_points_evenly_up_to_the_fidelity():
    curve = [0.9 - 0.5 / place for place in (10, 20, 30)]
    assert power_law(curve, 30, 90) == pytest.approx(0.9 - 0.5 / 90, abs=1e-9)


@pytest.mark.parametrize("curve", [[0.4], [0.4, 0.4], [0.6, 0.5, 0.4]])
def test_power_law_of_a_curve_without_gain_is_its_last_value(curve):
    assert power_law(curve, len(curve), 27) == pytest.approx(0.4, abs=1e-12)


def test_first_candidate_is_extrapolated_by_its_own_curve():
    extrapolate = CurveExtrapolation(3, 27)
    curve = [0.9 - 0.5 / place for place in (1, 2, 3)]
    assert extrapolate(curve[-1], curve, best=1.0) == pytest.approx(power_law(curve, 3, 27))
    assert extrapolate(curve[-1], curve, best=0.8) == 0.8


def test_finished_trainings_reduce_the_gap_to_the_best():
    extrapolate = CurveExtrapolation(3, 27)
    extrapolate.add(0.5, 0.9)  # the best score seen
    extrapolate.add(0.7, 0.8)  # gaps 0.4 and 0.2 became 0 and 0.1
    assert extrapolate(0.3, [0.3], best=0.7) == pytest.approx((0.3 + 0.9 - 0.6 / 6) / 2)


def test_estimates_do_not_depend_on_the_order_of_finished_trainings():
    pairs = [(float(a), float(b)) for a, b in np.random.default_rng(0).random((50, 2))]
    estimates = []
    for order in (pairs, pairs[::-1], sorted(pairs)):
        extrapolate = CurveExtrapolation(3, 27)
        for pair in order:
            extrapolate.add(*pair)
        estimates.append(extrapolate(0.3, [0.1, 0.2, 0.3], best=1.0))
    assert estimates[0] == estimates[1] == estimates[2]


def test_estimates_are_finite_and_at_most_the_best():
    rng = np.random.default_rng(1)
    for _ in range(200):
        extrapolate = CurveExtrapolation(3, 27)
        scores = rng.integers(0, 4, size=(rng.integers(0, 4), 2)) / 3  # with ties and losses
        for score, final_score in scores.tolist():
            extrapolate.add(score, final_score)
        curve = (rng.integers(0, 4, size=3) / 3).tolist()
        best = max([curve[-1], *scores[:, 0].tolist()])
        assert 0 <= extrapolate(curve[-1], curve, best=best) <= max([best, *scores[:, 1].tolist()]) + 1e-12


def test_rank_correlation_equals_scipy():
    values = np.random.default_rng(2).integers(0, 6, size=(40, 2)).astype(float)
    pairs = [(a, b) for a, b in values.tolist()]
    expected, _ = spearmanr(values[:, 0], values[:, 1])
    assert rank_correlation(pairs) == pytest.approx(expected)
    assert rank_correlation(pairs[::-1]) == rank_correlation(pairs)


@pytest.mark.parametrize("pairs", [[], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]])
def test_rank_correlation_is_nan_where_it_is_not_defined(pairs):
    assert math.isnan(rank_correlation(pairs))
