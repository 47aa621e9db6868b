"""Acquisition functions, compared with 60 digits."""

import math
from typing import Any

import mpmath
import pytest
import torch

from gflownet.search.acquisition import (
    ExpectedImprovement,
    ThompsonSampling,
    UpperConfidenceBound,
    UpperConfidenceBoundConfig,
    log_standard_improvement,
)
from gflownet.search.surrogate import Prediction

PREDICTION = Prediction(torch.tensor([0.0, 1.0, 1.0]).double(), torch.tensor([1.0, 1.0, 2.0]).double())


def exact(z: float) -> Any:
    """Return log(phi(z) + z Phi(z))."""
    with mpmath.workdps(60):
        a = -mpmath.mpf(z)
        ratio = mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(a * a / 2) * mpmath.erfc(a / mpmath.sqrt(2))
        return -a * a / 2 - mpmath.log(2 * mpmath.pi) / 2 + mpmath.log(1 - a * ratio)


@pytest.mark.parametrize("z", [8.0, 1.0, 0.0, -0.99, -1.0, -1.01, -3.0, -10.0, -37.0, -40.0, -999.0, -1001.0, -5e3])
def test_log_expected_improvement_of_standard_normal(z):
    tensor = torch.tensor([z], dtype=torch.float64)
    # -z^2 / 2 dominates: the remainder is compared, up to the rounding of the sum.
    assert abs(float(log_standard_improvement(tensor)) - exact(z)) < 1e-9 + 4e-16 * z * z


def test_log_expected_improvement_is_increasing_and_finite():
    z = torch.cat([-torch.logspace(8, -8, 2_000), torch.logspace(-8, 8, 2_000)]).double()
    values = log_standard_improvement(z)
    assert bool(values.isfinite().all())
    assert bool((values[1:] > values[:-1]).all())


def test_expected_improvement_matches_quadrature():
    values = ExpectedImprovement().log_values(PREDICTION, 1.5, torch.Generator())
    points = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    density = torch.exp(-points.square() / 2) / math.sqrt(2 * math.pi) * (points[1] - points[0])
    scores = PREDICTION.mean[:, None] + PREDICTION.std[:, None] * points
    expected = ((scores - 1.5).clamp(min=0) * density).sum(1).log()
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)


def test_upper_confidence_bound():
    values = UpperConfidenceBound(UpperConfidenceBoundConfig(width=3.0)).log_values(PREDICTION, 0.5, torch.Generator())
    assert values.tolist() == [2.5, 3.5, 6.5]


def test_thompson_draws_have_predicted_moments():
    prediction = Prediction(torch.full((20_000,), 2.0).double(), torch.full((20_000,), 0.5).double())
    values = ThompsonSampling().log_values(prediction, 1.0, torch.Generator().manual_seed(0))
    assert abs(float(values.mean()) - 1.0) < 0.02
    assert abs(float(values.std()) - 0.5) < 0.02
    again = ThompsonSampling().log_values(prediction, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(values, again)
