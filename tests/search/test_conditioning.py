"""Batches of believed candidates, compared with a model that has them as observations, and spread designs."""

import torch

from gflownet.search.candidate_model import Believed, spread_order
from gflownet.search.config import SurrogateConfig
from gflownet.search.gaussian_process import GaussianProcess
from tests.contracts.environments import computation_graphs
from tests.search.terminal_states import random_terminal_states


def test_believed_candidates_shrink_deviations_as_observations_do():
    env = computation_graphs(max_hidden_nodes=4, max_edges=8)
    states = random_terminal_states(env, 60, seed=0)
    process = GaussianProcess(env, SurrogateConfig(), seed=0)
    features, scores = process.encode(states), states.has_edge.sum((1, 2)).double().sin()
    process.fit(features[:50], scores[:50])
    candidates, rows = features[50:], torch.tensor([3, 7])
    believed, before = Believed(process, candidates), process.predict(candidates)
    covariance = torch.stack([process.covariance(candidates, row) for row in range(10)])
    torch.testing.assert_close(covariance.diagonal(), before.latent_std.square(), rtol=1e-6, atol=1e-8)
    for row in rows.tolist():
        believed.add(row)
    observed = covariance[rows][:, rows] + before.noise**2 * torch.eye(2)
    explained = (covariance[:, rows] * torch.linalg.solve(observed, covariance[rows]).T).sum(1)
    expected = (before.std.square() - explained).clamp(min=before.noise**2).sqrt()
    torch.testing.assert_close(believed.prediction.std, expected, rtol=1e-6, atol=1e-8)
    assert torch.equal(believed.prediction.mean, before.mean)
    assert believed.best == float(before.mean[rows].max())


def test_spread_order_takes_the_farthest_of_four_points():
    points = torch.tensor([[0.0], [0.1], [1.0], [0.6], [0.1], [0.9], [0.5]], dtype=torch.float64)
    assert spread_order(points).tolist() == [0, 2, 6, 1, 3, 4, 5]
    assert spread_order(points[:1]).tolist() == [0]
