"""The Gaussian process compared with explicit inverses, with itself in other orders, and at its limits."""

import numpy as np
import pytest
import torch

from gflownet.search.config import SurrogateConfig
from gflownet.search.features import Points
from gflownet.search.gaussian_process import GaussianProcess
from gflownet.search.regression import (
    CrossCovariance,
    Hyperparameters,
    Regression,
    best_and_random,
    fit_hyperparameters,
    log_likelihoods,
)
from tests.contracts.environments import computation_graphs
from tests.oracles import gaussian_process as oracle
from tests.search.terminal_states import random_terminal_states

NUM = 40


@pytest.fixture(scope="module")
def env():
    return computation_graphs(max_hidden_nodes=4, max_edges=8)


@pytest.fixture(scope="module")
def states(env):
    return random_terminal_states(env, 3 * NUM, seed=0)


def process(env) -> GaussianProcess:
    return GaussianProcess(env, SurrogateConfig(), seed=0)


def scores_of(states) -> torch.Tensor:
    return states.num_nodes.double() + states.has_edge.sum((1, 2)).double().sqrt() + (states.node_type == 3).sum(1)


WEIGHTS = [-1.0, -3.0, -torch.inf, 2.0, 0.5, -2.0, -1.0, -3.0, 0.0, -4.0]
HYPERPARAMETERS = Hyperparameters(torch.tensor(WEIGHTS, dtype=torch.float64), -5.0)


def test_regression_matches_explicit_inverses(env, states):
    features = process(env).encode(states)
    rows, values = torch.arange(NUM), scores_of(states).sin()
    regression = Regression(features, rows, HYPERPARAMETERS)
    regression.observe(values)
    prediction = CrossCovariance(features[NUM:]).predict(regression)
    observed = Points(features[rows])
    weights = HYPERPARAMETERS.weights.exp2() / observed.median_scales()
    squared = torch.tensordot(weights, Points(features).distances(observed), 1).numpy()
    correlation = oracle.matern(squared)
    noise = HYPERPARAMETERS.noise_variance
    mean, std, _ = oracle.regress(correlation[:, :NUM], correlation[:, NUM:], values[:NUM].numpy(), noise=noise)
    np.testing.assert_allclose(prediction.mean.numpy(), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(prediction.std.numpy(), std, rtol=1e-7)


def test_log_likelihood_matches_explicit_determinant(env, states):
    features, values = process(env).encode(states[:NUM]), scores_of(states[:NUM])
    squared = Points(features).distances(Points(features))
    weights = torch.stack([HYPERPARAMETERS.weights, HYPERPARAMETERS.weights - 1])
    result = log_likelihoods(squared, values, weights, torch.tensor([-5.0, -3.0]).double())
    for index, noise in enumerate((2.0**-5 + 1e-8, 2.0**-3 + 1e-8)):
        correlation = oracle.matern(torch.tensordot(weights[index].exp2(), squared, 1).numpy())
        _, _, expected = oracle.regress(correlation, correlation, values.numpy(), noise=noise)
        assert float(result[index]) == pytest.approx(expected, rel=1e-9)


def test_rows_added_one_by_one_match_rows_together(env, states):
    features, values = process(env).encode(states), scores_of(states)
    pool, fresh = CrossCovariance(features[NUM:]), CrossCovariance(features[NUM:])
    whole = Regression(features, torch.arange(NUM), HYPERPARAMETERS)
    grown = Regression(features, torch.arange(NUM), HYPERPARAMETERS)
    for regression in (whole, grown):
        regression.observe(values)
    pool.predict(grown)
    whole.append(features, torch.arange(NUM, 2 * NUM))
    for row in range(NUM, 2 * NUM):
        grown.append(features, torch.tensor([row]))
    for regression in (whole, grown):
        regression.observe(values)
    assert torch.equal(whole.factor, grown.factor)
    first, second = fresh.predict(whole), pool.predict(grown)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.std, second.std)
    noise = HYPERPARAMETERS.noise_variance
    points = Points(features[: 2 * NUM])
    covariance = oracle.matern(torch.tensordot(whole.weights, points.distances(points), 1).numpy())
    torch.testing.assert_close(whole.factor @ whole.factor.T, torch.tensor(covariance) + noise * torch.eye(2 * NUM))
    squared = torch.tensordot(whole.weights, Points(features).distances(points), 1).numpy()
    known = oracle.matern(squared)
    mean, std, _ = oracle.regress(known[:, : 2 * NUM], known[:, NUM:], values[: 2 * NUM].numpy(), noise=noise)
    np.testing.assert_allclose(second.mean.numpy(), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(second.std.numpy(), std, rtol=1e-7)


@pytest.mark.parametrize(("max_doubles", "tolerance"), [(2**23, 1e-12), pytest.param(0, 1e-5, marks=pytest.mark.slow)])
def test_covariances_in_parts_match_those_of_all(env, states, monkeypatch, max_doubles, tolerance):
    """Predictions that keep nothing, of 31 graphs at a time, in float64 and float32, with rows added."""
    features, values = process(env).encode(states), scores_of(states)
    regression = Regression(features, torch.arange(NUM), HYPERPARAMETERS)
    regression.append(features, torch.arange(NUM, 2 * NUM))
    regression.observe(values)
    whole = CrossCovariance(features)
    prediction, covariance = whole.predict(regression), whole.covariance(regression, 3 * NUM - 1)
    monkeypatch.setattr("gflownet.search.regression._MAX_DOUBLES", max_doubles)
    monkeypatch.setattr("gflownet.search.regression._MAX_ENTRIES", 13 * NUM)
    monkeypatch.setattr("gflownet.search.regression.MAX_KEPT_BYTES", 4 * NUM * 32)
    parts = CrossCovariance(features)
    torch.testing.assert_close(parts.predict(regression).mean, prediction.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(parts.predict(regression).std, prediction.std, rtol=10 * tolerance, atol=tolerance)
    torch.testing.assert_close(
        parts.covariance(regression, 3 * NUM - 1), covariance, rtol=tolerance, atol=10 * tolerance
    )
    assert not parts._blocks


def test_candidates_of_a_batch_leave_the_covariances_of_the_space(env, states):
    gp = process(env)
    features = gp.encode(states)
    gp.fit(features[:NUM], scores_of(states[:NUM]))
    gp.predict(features)
    cross = gp._crosses[0]
    for first in (0, 10, 20):
        gp.predict(features[first : first + 10])
        gp.predict(features)
        assert gp._crosses[0] is cross
    assert len(gp._crosses) == 2


def test_hyperparameters_find_relevant_distance():
    """Values depend on the first of three distances; the third repeats the second."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(3, 60, generator=generator, dtype=torch.float64)
    points[2] = points[1]
    squared = (points[:, :, None] - points[:, None, :]).square()
    squared /= torch.stack([each[each > 0].median() for each in squared])[:, None, None]
    fitted = fit_hyperparameters(squared, (6 * points[0]).sin(), Hyperparameters.initial(3))
    assert fitted.weights[0] >= 0
    assert fitted.weights[1] <= -6
    assert fitted.weights[2] == -torch.inf
    assert fitted.noise == -9
    noisy = (6 * points[0]).sin() + torch.randn(60, generator=generator).double()
    assert fit_hyperparameters(squared, noisy, fitted).noise >= -3


@pytest.mark.parametrize("scores", [torch.tensor([2.0]), torch.full((NUM,), 2.0)])
def test_equal_scores_are_predicted(env, states, scores):
    gp = process(env)
    features = gp.encode(states)
    gp.fit(features[: len(scores)], scores)
    prediction = gp.predict(features)
    torch.testing.assert_close(gp.unwarp(prediction.mean), torch.full((3 * NUM,), 2.0).double())
    assert bool((prediction.std > 0).all())


def test_repeated_architectures_are_averaged(env, states):
    gp = process(env)
    features = gp.encode(states[torch.zeros(50, dtype=torch.int64)])
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0))
    gp.fit(features, scores)
    assert float(gp.predict(features[:1]).mean) == pytest.approx(float(gp.warp(scores).mean()), abs=1e-3)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.tensor([1.0, torch.nan]), "finite scores, got nan for observation 1"),
        (torch.tensor([torch.inf, 1.0]), "finite scores, got inf for observation 0"),
        (torch.ones(3), r"expected 2 scores, at least one, got shape \[3\]"),
    ],
)
def test_invalid_scores_raise(env, states, scores, message):
    gp = process(env)
    with pytest.raises(ValueError, match=message):
        gp.fit(gp.encode(states[:2]), scores)


def test_number_of_rows_is_limited_to_best_and_random():
    values = torch.tensor([5.0, 1.0, 9.0, 2.0, 8.0, 0.0, 7.0])
    rows = best_and_random(values, 5, seed=3).tolist()
    assert {2, 4, 6} < set(rows)
    assert len(rows) == 5
    assert rows == sorted(rows)
    assert best_and_random(values, 7, seed=3).tolist() == list(range(7))
