"""The policy trained on an acquisition, against the exact distribution on a small space."""

import pytest
import torch

from gflownet.certificate.exact import (
    StateGraph,
    enumerate_states,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.errors import UserError
from gflownet.search.amortised_search import (
    AcquisitionTarget,
    AmortisedPolicy,
    PredictedOnce,
    SurrogateGFlowNet,
    no_conditioning,
)
from tests.search.searches import RIDGE, build, method_of, proposals

VARIED = "cond.temperature.sample_dist=uniform cond.temperature.dist_params=[1,2]"
UPDATES = "search.proposals.updates_per_evaluation=25"
SEARCH = ("search.batch_size=4", "opt.learning_rate=0.005", "model.num_emb=32")


def distance(method: SurrogateGFlowNet, graph: StateGraph, beta: float) -> float:
    encoding = no_conditioning(1, method.setup.context.num_cond_dim).encoding[0]
    scores = forward_scores(method.setup.context, method.policy.learner.sampling, encoding)
    target = torch.zeros(len(graph), dtype=torch.float64)
    log_values = method.log_values(graph.states[graph.terminal])
    target[graph.terminal] = (beta * log_values).softmax(0)
    return total_variation(terminating_distribution(graph, policy_log_prob(graph, scores)), target)


def gflownet_of(trainer) -> SurrogateGFlowNet:
    method = method_of(trainer)[0]
    assert isinstance(method, SurrogateGFlowNet)
    return method


def policy_of(trainer) -> AmortisedPolicy:
    return gflownet_of(trainer).policy


@pytest.fixture(scope="module")
def graph() -> StateGraph:
    return enumerate_states(build("random").env)


@pytest.mark.slow
def test_policy_follows_the_acquisition(graph):
    trainer = build("surrogate_gflownet", RIDGE, *SEARCH, "search.acquisition.beta=1", "search.num_initial=8", UPDATES)
    method, distances = gflownet_of(trainer), []
    for _ in proposals(trainer, 5, batch_size=4):
        if method.policy.num_updates:
            distances.append(distance(method, graph, 1.0))
    assert len(distances) == 4
    assert max(distances) < 0.35
    assert distances[-1] < 0.15


def test_updates_follow_the_number_of_evaluations():
    options = ("search.proposals.updates_per_evaluation=3", "search.num_initial=8", "budget.evaluations=20")
    trainer, num_updates = build("surrogate_gflownet", RIDGE, *SEARCH, *options), []
    for _ in proposals(trainer, 5, batch_size=4):
        num_updates.append(policy_of(trainer).num_updates)
    assert num_updates == [0, 24, 36, 48, 60]


def test_work_is_done_in_pieces_and_repeated_after_an_interruption():
    options = ("search.proposals.updates_per_evaluation=1.5", "search.num_initial=4")
    first, second = (build("surrogate_gflownet", RIDGE, *SEARCH, *options) for _ in range(2))
    for trainer in (first, second):
        list(proposals(trainer, 1, batch_size=4))
        method = gflownet_of(trainer)
        method.history.start(method.propose(2, 2).states)
        method._num_learned = policy_of(trainer).num_updates = 0
    work = gflownet_of(first).work(1)
    assert sum(1 for _ in zip(range(6), work, strict=False)) == 6
    assert policy_of(first).num_updates > policy_of(second).num_updates
    work.close()
    for trainer in (first, second):
        assert len(list(gflownet_of(trainer).work(1))) >= 6
    weights = [policy_of(trainer).learner.policy.state_dict() for trainer in (first, second)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_rewards_are_predicted_once_per_architecture():
    trainer, calls = build("random"), []
    states = trainer.env.initial_states(3)
    states.node_attr[1:] = 1

    def log_values(batch):
        calls.append(len(batch))
        return batch.node_attr.double().sum((1, 2))

    target = AcquisitionTarget(0, states[:0], PredictedOnce(trainer.env, log_values), beta=2.0, maximum=4.0)
    none = no_conditioning(3, 0)
    assert target.log_reward(states, none).tolist() == [-16.0, 0.0, 0.0]
    assert target.log_reward(states[:2], none).tolist() == [-16.0, 0.0]
    assert calls == [2]
    far = AcquisitionTarget(0, states[:0], PredictedOnce(trainer.env, log_values), beta=2.0, maximum=1e9)
    assert far.log_reward(states, none).tolist() == [-50.0] * 3


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("surrogate_gflownet", "algo.method=a2c", "algo.method: expected an objective that samples .* got a2c"),
        ("random", f"algo.method=vargrad {VARIED}", "algo.method: expected an objective for conditions .* got vargrad"),
        ("surrogate", "algo.method=fl_db", "algo.method: expected an objective that learns from rewards of .*fl_db"),
        pytest.param(
            "gflownet",
            "algo.method=ppo replay.use=false search.width=8",
            "search.width: expected 0 with algo.method=ppo",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_check_config_refuses(method, option, message):
    with pytest.raises(UserError, match=message):
        build(method, *option.split())
