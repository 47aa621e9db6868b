"""The estimates of the exactness script: beside exact figures right ones hold, and wrong ones do not."""

import importlib
import math
from types import ModuleType

import pytest
import torch

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.metrics import certificate, estimates
from gflownet.metrics.exact import analytic_flows, enumerate_backward, enumerate_states
from gflownet.objectives.config import BackwardName

NEAR, MEAN_LOG_P = "small: states with p(x) within a factor of 1.5", "small: mean log p(x), same states"


@pytest.fixture
def estimated(monkeypatch, checkout) -> ModuleType:
    monkeypatch.syspath_prepend(str(checkout / "scripts"))
    return importlib.import_module("scripts.estimated")


def rows_of(estimated, *, backward_policy: BackwardName = "uniform", seed: int = 0):
    """Return what is found of a policy that has been trained for a moment on 65 classes, and which intervals hold."""
    space = estimated.Space("small", max_nodes=4, num_steps=20)
    trained = estimated.train(space.overrides(backward_policy, seed))
    return estimated.policy_rows("small", estimated.EnumeratedSpace.of(trained.trainer), trained, 256, seed=seed)


@pytest.mark.parametrize("backward_policy", ["uniform", "learned"])
def test_every_estimate_holds_and_those_without_symmetries_do_not(estimated, backward_policy):
    rows, held = rows_of(estimated, backward_policy=backward_policy)
    assert [row.name for row in rows if not row.holds] == []
    assert len([row for row in rows if row.goal]) == 17
    assert sum("without |Aut|" in row.name for row in rows) == 4
    assert sum(held) >= len(held) - 2


def without_symmetries(log_ratios, log_symmetry):
    return log_ratios.logsumexp(1) - math.log(log_ratios.shape[1])


def without_the_number_of_ways(log_ratios, log_symmetry):
    return log_ratios.logsumexp(1) - log_symmetry.double()


def times_symmetries(log_ratios, log_symmetry):
    return log_ratios.logsumexp(1) - math.log(log_ratios.shape[1]) + log_symmetry.double()


@pytest.mark.parametrize("wrong", [without_symmetries, without_the_number_of_ways, times_symmetries])
def test_a_wrong_estimate_of_what_is_sampled_does_not_hold(estimated, monkeypatch, wrong):
    for module in (estimated, certificate):
        monkeypatch.setattr(module, "terminating_log_prob", wrong)
    missed = {row.name for row in rows_of(estimated)[0] if not row.holds}
    assert {NEAR, MEAN_LOG_P} <= missed


def test_weights_without_symmetries_do_not_hold(estimated, monkeypatch):
    def wrong(log_ratios, log_reward, log_symmetry):
        return estimates.log_weights(log_ratios, log_reward, torch.zeros_like(log_symmetry))

    for module in (estimated, certificate):
        monkeypatch.setattr(module, "log_weights", wrong)
    missed = {row.name for row in rows_of(estimated)[0] if not row.holds}
    assert {"small: ELBO", "small: EUBO, from the target"} <= missed


def test_exact_bounds_meet_at_log_z_where_flows_balance_and_lie_on_their_sides_elsewhere(estimated):
    env = GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5)
    graph = enumerate_states(env)
    log_reward = torch.randn(len(graph), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_z = float(log_reward[graph.terminal].logsumexp(0))
    backward = enumerate_backward(env, graph)
    ladder = importlib.import_module("scripts.ladder")
    log_backward = backward.per_forward(ladder.random_log_backward(env, graph, backward))
    right = analytic_flows(graph, log_reward + graph.num_automorphisms.log(), log_backward).log_forward
    for drawn_by in (right, at_random := -graph.parent.bincount()[graph.parent].double().log()):
        found = estimated.mean_log_weight(graph, drawn_by, right, log_backward, log_reward)
        assert found == pytest.approx(log_z, abs=1e-9)
    lower, upper = (
        estimated.mean_log_weight(graph, drawn_by, at_random, log_backward, log_reward)
        for drawn_by in (at_random, right)
    )
    assert lower < log_z - 0.1
    assert upper > log_z + 0.1


def test_the_exact_flow_consistency_is_a_mean_over_subsets_without_repetition(estimated):
    log_prob, log_reward = torch.randn(2, 9, generator=torch.Generator().manual_seed(0)).double()
    every = torch.combinations(torch.arange(9), estimated.SUBSET_SIZE)
    exact = float(estimated.restricted_distances(log_prob[every], log_reward[every]).mean())
    assert estimated.mean_consistency(log_prob, log_reward, seed=0) == pytest.approx(exact, abs=0.01)
