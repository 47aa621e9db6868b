"""The policy trained on an acquisition, against the exact distribution on a small space."""

import math

import pytest
import torch

from gflownet.errors import UserError
from gflownet.metrics.exact import (
    StateGraph,
    enumerate_states,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.search.amortised import Rewards, updates_within
from gflownet.search.amortised_search import SurrogateGFlowNet
from tests.search.searches import build, method_of, proposals

RIDGE = "search.surrogate.name=tests.search.toy_surrogates:RidgeRegression"
UPDATES = "search.proposals.num_updates=50"
FEW = ("search.proposals.num_updates=1", "search.proposals.num_mutations=16", "search.proposals.num_sampled=16")
SEARCH = ("search.proposals.num_enumerated=0", "search.batch_size=4", "opt.learning_rate=0.01", "model.num_emb=32")


def distance(method: SurrogateGFlowNet, graph: StateGraph, beta: float) -> float:
    """Return the total variation between the policy and acquisition^beta."""
    assert method.policy is not None
    encoding = method.policy.conditioning(1).encoding[0]
    scores = forward_scores(method.setup.context, method.policy.learner.sampling, encoding)
    target = torch.zeros(len(graph), dtype=torch.float64)
    log_values = method.log_values(graph.states[graph.terminal], torch.Generator().manual_seed(0))
    target[graph.terminal] = (beta * log_values).softmax(0)
    return total_variation(terminating_distribution(graph, policy_log_prob(graph, scores)), target)


def gflownet_of(trainer) -> SurrogateGFlowNet:
    method = method_of(trainer)[0]
    assert isinstance(method, SurrogateGFlowNet)
    return method


@pytest.fixture(scope="module")
def graph() -> StateGraph:
    return enumerate_states(build("random").env)


def test_policy_follows_the_acquisition(graph):
    trainer = build("surrogate_gflownet", RIDGE, *SEARCH, "search.acquisition.beta=1", "search.num_initial=8", UPDATES)
    method, distances = gflownet_of(trainer), []
    for _ in proposals(trainer, 5, batch_size=4):
        if method.policy is not None and method.policy.num_updates:
            distances.append(distance(method, graph, 1.0))
    assert len(distances) == 4
    assert max(distances) < 0.3
    assert distances[-1] < 0.15


def test_search_repeats_with_the_same_seed():
    def codes(seed: int) -> list[int]:
        trainer = build("surrogate_gflownet", RIDGE, *SEARCH, *FEW, f"seed={seed}", "search.num_initial=4")
        batches = list(proposals(trainer, 4, batch_size=4))
        return [code for states in batches for code in trainer.env.identify(states).tolist()]

    first = codes(0)
    assert len(first) == len(set(first))
    assert codes(0) == first
    assert codes(1) != first


def test_search_continues_from_its_state():
    options = (RIDGE, *SEARCH, *FEW, "search.num_initial=4")
    whole, interrupted, resumed = (build("surrogate_gflownet", *options) for _ in range(3))
    *_, last = proposals(whole, 4, batch_size=4)
    list(proposals(interrupted, 3, batch_size=4))
    method, history = method_of(interrupted)
    state = method.state_dict()
    method_of(resumed)[1].load_state_dict(history.state_dict())
    gflownet_of(resumed).load_state_dict(state)
    continued = gflownet_of(resumed).propose(4, 4)
    assert torch.equal(whole.env.identify(last), whole.env.identify(continued))
    assert torch.equal(gflownet_of(resumed).propose(4, 4).node_attr, continued.node_attr)


def test_small_space_needs_no_policy():
    assert gflownet_of(build("surrogate_gflownet", RIDGE)).policy is None


def test_rewards_are_predicted_once_per_architecture():
    trainer, calls = build("random"), []
    states = trainer.env.initial_states(3)
    states.node_attr[1:] = 1

    def log_values(batch):
        calls.append(len(batch))
        return batch.node_attr.double().sum((1, 2))

    rewards = Rewards(trainer.env, log_values, beta=2.0, maximum=4.0)
    assert rewards(states).tolist() == [-16.0, 0.0, 0.0]
    assert rewards(states[:2]).tolist() == [-16.0, 0.0]
    assert calls == [2]
    assert float(rewards.of_values(torch.tensor([-1e9]))) == -50


@pytest.mark.parametrize(
    ("overhead", "used", "update", "num"),
    [(0.25, 1.0, 0.1, 15), (0.25, 2.4, 0.1, 2), (0.25, 9.0, 0.1, 2), (0.25, 0.0, 0.0, 2), (math.inf, 9.0, 0.1, 50)],
)
def test_updates_within_share_of_evaluation_seconds(overhead, used, update, num):
    assert updates_within(overhead=overhead, evaluation_s=10.0, used_s=used, update_s=update, maximum=50) == num


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("surrogate_gflownet", "algo.method=a2c", "algo.method: expected an objective that samples .* got a2c"),
        ("surrogate", "algo.method=fl_db", "algo.method: expected an objective that learns from rewards of .*fl_db"),
    ],
)
def test_check_config_refuses(method, option, message):
    with pytest.raises(UserError, match=message):
        build(method, option)
