"""Warping of scores."""

import pytest
import torch

from gflownet.search.surrogate import Warping

SCORES = torch.tensor([0.0, 80.0, 81.0, 82.0, 84.0, 85.0])


def test_warp_is_increasing_and_inverted_by_unwarp():
    warping = Warping.of(SCORES)
    scores = torch.linspace(-100, 200, 301, dtype=torch.float64)
    values = warping.warp(scores)
    assert bool((values[1:] > values[:-1]).all())
    torch.testing.assert_close(warping.unwarp(values), scores)


def test_warp_units_are_median_and_upper_tenth():
    scores = torch.arange(101.0)
    assert Warping.of(scores).warp(torch.tensor([50.0, 90.0, 130.0])).tolist() == [0.0, 1.0, 2.0]


def test_warp_scale_is_bounded_for_nearly_equal_scores():
    scores = torch.tensor([0.0] + [0.5] * 8 + [0.5 + 1e-9, 0.5 + 2e-9, 1.0], dtype=torch.float64)
    assert Warping.of(scores).scale == pytest.approx(0.05 * float(scores.std(correction=0)))


def test_warp_compresses_low_scores_logarithmically():
    values = Warping.of(torch.arange(101.0)).warp(torch.tensor([-1e6, 10.0]))
    assert values[0] == pytest.approx(-torch.log1p(torch.tensor((1e6 + 50) / 40, dtype=torch.float64)))
    assert values[1] == pytest.approx(-torch.log(torch.tensor(2.0, dtype=torch.float64)))


@pytest.mark.parametrize("scores", [[3.0], [3.0, 3.0, 3.0], [0.0, 3.0, 3.0, 3.0, 3.0]])
def test_warp_of_equal_scores_is_zero_with_finite_scale(scores):
    warping = Warping.of(torch.tensor(scores))
    assert float(warping.warp(torch.tensor([3.0]))) == 0.0
    assert warping.scale > 0
    assert bool(warping.warp(torch.tensor([-5.0, 9.0])).isfinite().all())
