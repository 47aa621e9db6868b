"""Acquisition functions, compared with 60 digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from gflownet.evaluation.statistics import hypervolume
from gflownet.search.acquisition import (
    boxes_above,
    log_expected_improvement,
    log_improvement,
    log_standard_improvement,
    pareto_front,
)
from gflownet.search.surrogate import Prediction
from tests.oracles.hypervolume import integrated_expectation, sampled_expectation

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
    values = log_improvement(PREDICTION, 1.5)
    points = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    density = torch.exp(-points.square() / 2) / math.sqrt(2 * math.pi) * (points[1] - points[0])
    scores = PREDICTION.mean[:, None] + PREDICTION.std[:, None] * points
    expected = ((scores - 1.5).clamp(min=0) * density).sum(1).log()
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)


CASES = [
    # points, reference, mean, std
    ([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0], [1.5, 1.5]], [0.0, 0.0], [2.2, 1.8], [0.5, 1.0]),
    ([[1.0, 3.0], [2.0, 2.0]], [0.0, 0.5], [1.5, 2.0], [0.6, 0.7]),
    ([[0.4, 0.6]], [0.5, 0.5], [1.0, 0.0], [0.1, 2.0]),  # no point above the reference
]


def tensors(*values) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


@pytest.mark.parametrize(("points", "reference", "mean", "std"), CASES)
def test_log_expected_improvement_of_two_objectives_equals_integration(points, reference, mean, std):
    expected = integrated_expectation(*map(np.array, (mean, std, points, reference)), num=60)
    points, reference, mean, std = tensors(points, reference, mean, std)
    value = log_expected_improvement(mean[None], std[None], boxes_above(points, reference))
    assert float(value.exp()) == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("num_objectives", [1, 3])
def test_log_expected_improvement_equals_the_mean_of_samples(num_objectives):
    generator = np.random.default_rng(num_objectives)
    points, reference = generator.random((7, num_objectives)), np.full(num_objectives, 0.1)
    mean, std = generator.random(num_objectives), 0.2 + generator.random(num_objectives)
    expected, error = sampled_expectation(mean, std, points, reference, num=1_000)
    boxes = boxes_above(torch.from_numpy(points), torch.from_numpy(reference))
    value = log_expected_improvement(torch.from_numpy(mean)[None], torch.from_numpy(std)[None], boxes)
    assert float(value.exp()) == pytest.approx(expected, abs=4 * error)


def test_log_expected_improvement_far_below_the_front_is_finite_and_ordered():
    points, reference = tensors([[1.0, 1.0]], [0.0, 0.0])
    mean = torch.tensor([[-10.0, -10.0], [-100.0, -100.0], [-1e4, -1e4]], dtype=torch.float64)
    value = log_expected_improvement(mean, torch.full_like(mean, 0.1), boxes_above(points, reference))
    assert bool(value.isfinite().all())
    assert value[0] > value[1] > value[2]


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
def test_boxes_are_disjoint_and_fill_the_rest(num_objectives):
    """Of the unit cube, the points cover their hypervolume and the boxes the rest."""
    points = torch.rand(9, num_objectives, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    boxes = boxes_above(points, torch.zeros(num_objectives, dtype=torch.float64))
    volumes = (boxes.upper.clamp(max=1.0) - boxes.lower).clamp(min=0.0).prod(1)
    assert float(volumes.sum()) == pytest.approx(1 - hypervolume(points.numpy()))


@pytest.mark.slow
def test_boxes_of_a_large_front_are_bounded():
    points = torch.randn(400, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).abs()
    points = points / points.norm(dim=1, keepdim=True)
    reference = torch.zeros(3, dtype=torch.float64)
    boxes = boxes_above(points, reference)
    assert len(pareto_front(points, reference)) == 400
    assert len(boxes) <= 4_096
    volumes = (boxes.upper.clamp(max=1.0) - boxes.lower).clamp(min=0.0).prod(1)
    assert float(volumes.sum()) == pytest.approx(1 - hypervolume(points.numpy()), rel=0.1)


def test_pareto_front_leaves_out_points_at_the_reference():
    points, reference = tensors([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.4, 0.4]], [0.0, 0.0])
    assert pareto_front(points, reference).tolist() == [[0.5, 0.5]]
    assert math.isinf(float(boxes_above(points[:0], reference).upper.max()))
