"""Expected hypervolume improvement: against integration, far tails, and the decomposition into boxes."""

import math

import numpy as np
import pytest
import torch

from gflownet.metrics.statistics import hypervolume
from gflownet.search import multi_objective
from gflownet.search.acquisition import boxes_above, log_expected_improvement, pareto_front
from tests.oracles.hypervolume import improvement, integrated_expectation, sampled_expectation

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


@pytest.mark.parametrize("num_objectives", [2, 3, 4])
def test_log_expected_improvement_without_uncertainty_is_the_improvement(num_objectives):
    generator = np.random.default_rng(0)
    points, reference = generator.random((8, num_objectives)), np.zeros(num_objectives)
    boxes = boxes_above(torch.from_numpy(points), torch.from_numpy(reference))
    for point in 1.2 * generator.random((20, num_objectives)):
        mean = torch.from_numpy(point)[None]
        value = float(log_expected_improvement(mean, torch.full_like(mean, 1e-9), boxes).exp())
        assert value == pytest.approx(improvement(point, points, reference), abs=1e-7)


def test_log_expected_improvement_far_below_the_front_is_finite_and_ordered():
    points, reference = tensors([[1.0, 1.0]], [0.0, 0.0])
    mean = torch.tensor([[-10.0, -10.0], [-100.0, -100.0], [-1e4, -1e4]], dtype=torch.float64)
    value = log_expected_improvement(mean, torch.full_like(mean, 0.1), boxes_above(points, reference))
    assert bool(value.isfinite().all())
    assert value[0] > value[1] > value[2]


def test_log_expected_improvement_in_parts_is_equal(monkeypatch):
    points, mean = torch.rand(2, 30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    boxes = boxes_above(points, torch.zeros(3))
    expected = log_expected_improvement(mean, 0.1 + mean, boxes)
    monkeypatch.setattr(multi_objective, "_MAX_ENTRIES", 300)
    torch.testing.assert_close(log_expected_improvement(mean, 0.1 + mean, boxes), expected)


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
def test_boxes_are_disjoint_and_fill_the_rest(num_objectives):
    """Of the unit cube, the points cover their hypervolume and the boxes the rest."""
    points = torch.rand(9, num_objectives, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    boxes = boxes_above(points, torch.zeros(num_objectives, dtype=torch.float64))
    volumes = (boxes.upper.clamp(max=1.0) - boxes.lower).clamp(min=0.0).prod(1)
    assert float(volumes.sum()) == pytest.approx(1 - hypervolume(points.numpy()))


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
