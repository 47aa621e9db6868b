"""Exact distributions on toy spaces: evaluation in chunks, distances, limits; flows: tests/test_exact_spaces.py."""

import pytest
import torch

from gflownet.certificate.exact import (
    enumerate_states,
    forward_scores,
    jensen_shannon,
    l1_distance,
    policy_log_prob,
    total_variation,
)
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy


def test_policy_log_prob_evaluates_states_in_chunks():
    env = GraphBuildingEnv(["a", "b"], max_nodes=4)
    graph = enumerate_states(env)
    context = GraphBuildingEnvContext(env).with_layout(DenseTransformerPolicy.layout)
    torch.manual_seed(0)
    scores = forward_scores(
        context, DenseTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8)), torch.zeros(1)
    )
    num_states: list[int] = []

    def score(states):
        num_states.append(len(states))
        return scores(states)

    values = policy_log_prob(graph, score, chunk=20)
    assert num_states == [min(20, len(graph) - first) for first in range(0, len(graph), 20)]
    assert torch.allclose(values, policy_log_prob(graph, scores, chunk=512), atol=1e-5)
    totals = torch.zeros(len(graph), dtype=torch.float64).index_add(0, graph.parent, values.exp())
    assert torch.allclose(totals, torch.ones(()).double(), atol=1e-5)


def test_distances_on_known_distributions():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.5, 0.0, 0.5])
    assert l1_distance(p, q) == pytest.approx(1.0)
    assert total_variation(p, q) == pytest.approx(0.5)
    assert jensen_shannon(p, q) == pytest.approx(0.5 * 0.6931472)
    assert jensen_shannon(p, p) == 0.0
    least = torch.tensor([1.0, 5e-324], dtype=torch.float64)
    assert jensen_shannon(least, torch.tensor([1.0, 0.0], dtype=torch.float64)) < 1e-300


def test_enumerate_states_above_limit_raises():
    with pytest.raises(ValueError, match="expected at most 10 states"):
        enumerate_states(GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5), max_states=10)


def test_locate_unknown_state_raises():
    small, large = (GraphBuildingEnv(["a"], max_nodes=n) for n in (3, 4))
    graph = enumerate_states(small)
    order = torch.randperm(len(graph), generator=torch.Generator().manual_seed(0))
    assert torch.equal(graph.locate(small.identify(graph.states[order])), order)
    with pytest.raises(ValueError, match="expected enumerated states"):
        graph.locate(large.identify(enumerate_states(large).states))
