"""The Gaussian process compared with explicit inverses, with itself in other orders, and at its limits."""

import numpy as np
import pytest
import torch

from gflownet.search.config import SurrogateConfig
from gflownet.search.features import squared_distances
from gflownet.search.gaussian_process import (
    Conditional,
    GaussianProcess,
    Hyperparameters,
    Regression,
    best_and_random,
    log_likelihoods,
    most_probable,
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
SCALES = torch.linspace(0.5, 2.0, len(WEIGHTS), dtype=torch.float64)
HYPERPARAMETERS = Hyperparameters(torch.tensor(WEIGHTS, dtype=torch.float64), -5.0, SCALES)


def distances(first, second) -> torch.Tensor:
    return torch.stack([*squared_distances(first, second)])


def test_regression_matches_explicit_inverses(env, states):
    features, values = process(env).encode(states), scores_of(states).sin()
    conditional = Conditional(Regression(features[:NUM], values[:NUM], HYPERPARAMETERS), features[NUM:])
    weights = HYPERPARAMETERS.weights.exp2() / SCALES
    correlation = oracle.matern(torch.tensordot(weights, distances(features, features), 1).numpy())
    noise, known, cross = HYPERPARAMETERS.noise_variance, correlation[:NUM, :NUM], correlation[:NUM, NUM:]
    mean, std, _ = oracle.regress(known, cross, values[:NUM].numpy(), noise=noise)
    np.testing.assert_allclose(conditional.prediction.mean.numpy(), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(conditional.prediction.std.numpy(), std, rtol=1e-7)
    explained = cross[:, 7] @ np.linalg.inv(known + noise * np.eye(NUM)) @ cross
    variance = (conditional.prediction.noise**2) / noise
    np.testing.assert_allclose(conditional.covariances[7], variance * (correlation[NUM + 7, NUM:] - explained))


def test_log_likelihood_matches_explicit_determinant(env, states):
    features, values = process(env).encode(states[:NUM]), scores_of(states[:NUM])
    squared = distances(features, features)
    weights = torch.stack([HYPERPARAMETERS.weights, HYPERPARAMETERS.weights - 1])
    result = log_likelihoods(squared, values, weights, torch.tensor([-5.0, -3.0]).double())
    for index, noise in enumerate((2.0**-5 + 1e-8, 2.0**-3 + 1e-8)):
        correlation = oracle.matern(torch.tensordot(weights[index].exp2(), squared, 1).numpy())
        _, _, expected = oracle.regress(correlation, correlation, values.numpy(), noise=noise)
        assert float(result[index]) == pytest.approx(expected, rel=1e-9)


def test_hyperparameters_find_relevant_distance():
    """Values depend on the first of three distances; the third repeats the second."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(3, 60, generator=generator, dtype=torch.float64)
    points[2] = points[1]
    squared = (points[:, :, None] - points[:, None, :]).square()
    fitted = most_probable(squared, (6 * points[0]).sin())
    assert fitted.scales.tolist() == [float(each[each > 0].median()) for each in squared]
    assert fitted.weights[0] >= 0
    assert fitted.weights[1] <= -6
    assert fitted.weights[2] == -torch.inf
    assert fitted.noise == -9
    noisy = (6 * points[0]).sin() + torch.randn(60, generator=generator).double()
    assert most_probable(squared, noisy, fitted).noise >= -3


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
