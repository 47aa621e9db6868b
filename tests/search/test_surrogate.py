"""Warping of scores, and calibration of predictions."""

from __future__ import annotations

import pytest
import torch

from gflownet.search.surrogate import WINDOW, Calibration, Prediction, Warping


def test_warp_units_are_median_and_upper_tenth():
    scores = torch.arange(101.0)
    assert Warping.of(scores).warp(torch.tensor([50.0, 90.0, 130.0])).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("scores", [[3.0], [3.0, 3.0, 3.0], [0.0, 3.0, 3.0, 3.0, 3.0]])
def test_warp_of_equal_scores_is_zero_with_finite_scale(scores):
    warping = Warping.of(torch.tensor(scores))
    assert float(warping.warp(torch.tensor([3.0]))) == 0.0
    assert warping.scale > 0
    assert bool(warping.warp(torch.tensor([-5.0, 9.0])).isfinite().all())


def predictions(num: int, *, std: float, noise: float, seed: int = 0) -> tuple[Prediction, torch.Tensor]:
    """Return predictions with a stated and a real standard deviation of the error, and scores with variance 1."""
    generator = torch.Generator().manual_seed(seed)
    scores, errors = torch.randn(2, num, generator=generator, dtype=torch.float64)
    return Prediction(scores + noise * errors, torch.full((num,), std, dtype=torch.float64)), scores


@pytest.mark.parametrize(("std", "coverage"), [(0.3, 0.9), (0.15, 0.59), (0.9, 1.0)])
def test_coverage_is_the_share_within_intervals(std, coverage):
    calibration = Calibration()
    calibration.add(*predictions(2_000, std=std, noise=0.3), earlier_mean=0.0)
    assert calibration.metrics()["surrogate_coverage_all"] == pytest.approx(coverage, abs=0.03)


def test_metrics_are_of_the_latest_window():
    calibration = Calibration()
    calibration.add(*predictions(200, std=0.1, noise=30.0), earlier_mean=0.0)
    assert calibration.is_worse_than_mean
    calibration.add(*predictions(WINDOW, std=0.1, noise=0.01), earlier_mean=0.0)
    metrics = calibration.metrics()
    assert metrics["surrogate_coverage"] == 1
    assert metrics["surrogate_coverage_all"] == pytest.approx(0.2, abs=0.02)
    assert metrics["surrogate_explained"] > 0.99
    assert metrics["surrogate_rank_correlation"] > 0.99
    assert not calibration.is_worse_than_mean


def test_equal_scores_as_the_mean_predicts_are_no_success():
    calibration = Calibration()
    prediction = Prediction(torch.full((20,), 0.5, dtype=torch.float64), torch.ones(20))
    calibration.add(prediction, torch.zeros(20), earlier_mean=0.0)
    assert calibration.is_worse_than_mean


def test_state_restores_metrics():
    calibration, restored = Calibration(), Calibration()
    calibration.add(*predictions(70, std=0.3, noise=0.3), earlier_mean=0.1)
    restored.load_state_dict(calibration.state_dict())
    assert restored.metrics() == calibration.metrics()
