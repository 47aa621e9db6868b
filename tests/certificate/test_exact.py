"""Exactness on toy spaces with analytic flows; policies: tests/certificate."""

import pytest
import torch

from gflownet.certificate.exact import (
    StateGraph,
    analytic_flows,
    enumerate_states,
    forward_scores,
    jensen_shannon,
    l1_distance,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from tests.oracles.backward_actions import (
    BackwardActions,
    backward_scores,
    class_log_backward,
    enumerate_backward,
    policy_log_backward,
)

# name: (environment, number of classes, L1 to the target of the uncorrected policy under a uniform reward)
SPACES = {
    "connected_4": (GraphBuildingEnv(["a"], max_nodes=4, min_nodes=4), 6, 0.5965),
    "connected_5": (GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5), 21, 0.6264),
    "connected_6": (GraphBuildingEnv(["a"], max_nodes=6, min_nodes=6), 112, 0.6254),
    "two_coloured_4": (GraphBuildingEnv(["a", "b"], max_nodes=4), 65, 0.4308),
    "two_coloured_5": (GraphBuildingEnv(["a", "b"], max_nodes=5), 419, 0.4365),
    "dag_4_two_types": (GraphBuildingEnv(["a", "b"], max_nodes=4, directed=True), 260, 0.1638),
    "dag_5_one_type": (GraphBuildingEnv(["a"], max_nodes=5, directed=True), 185, 0.2490),
}


FAST = ("connected_5", "two_coloured_4", "dag_4_two_types")


@pytest.fixture(
    scope="module", params=[name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SPACES]
)
def space(request) -> tuple[Environment, StateGraph, int, float]:
    env, num_classes, distance = SPACES[request.param]
    return env, enumerate_states(env), num_classes, distance


def random_log_reward(graph: StateGraph) -> torch.Tensor:
    return 2 * torch.randn(len(graph), generator=torch.Generator().manual_seed(7))


def test_policy_log_prob_evaluates_states_in_chunks(space):
    env, graph, *_ = space
    context = GraphBuildingEnvContext(env).with_layout(DenseTransformerPolicy.layout)
    policy = DenseTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8))
    num_states: list[int] = []

    def score(states):
        num_states.append(len(states))
        return policy(context.to_batch(states), torch.zeros(len(states), 1))[0].log_probs()

    policy_log_prob(graph, score, chunk=20)
    assert num_states == [min(20, len(graph) - first) for first in range(0, len(graph), 20)]


def test_analytic_flows_sample_in_proportion_to_reward(space):
    _, graph, num_classes, _ = space
    assert len(graph.terminal) == num_classes
    log_reward = random_log_reward(graph)
    flows = analytic_flows(graph, log_reward + graph.num_automorphisms.log())
    target = target_distribution(graph, log_reward)
    assert l1_distance(terminating_distribution(graph, flows.log_forward), target) < 1e-6
    assert flows.log_z == pytest.approx(float(log_reward[graph.terminal].double().logsumexp(0)), abs=1e-6)


def test_uncorrected_flows_have_published_distance(space):
    _, graph, _, distance = space
    uniform = torch.zeros(len(graph))
    result = terminating_distribution(graph, analytic_flows(graph, uniform).log_forward)
    assert l1_distance(result, target_distribution(graph, uniform)) == pytest.approx(distance, abs=5.1e-5)
    divided = target_distribution(graph, uniform - graph.num_automorphisms.log())
    assert l1_distance(result, divided) < 1e-6


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
        enumerate_states(SPACES["connected_5"][0], max_states=10)


def random_log_backward(env: Environment, graph: StateGraph, backward: BackwardActions) -> torch.Tensor:
    """Return a random backward policy [K] that, as any policy on graphs, treats equivalent actions alike."""
    _, orbit = env.identify_actions(graph.states[backward.child], backward.action).unique(return_inverse=True)
    logits = torch.randn(len(orbit), generator=torch.Generator().manual_seed(8), dtype=torch.float64)[orbit]
    total = torch.zeros(len(graph), dtype=torch.float64).index_add(0, backward.child, logits.exp())
    return logits - total.log()[backward.child]


def test_enumerate_backward_matches_parents(space):
    env, graph, _, _ = space
    backward = enumerate_backward(env, graph)
    assert torch.equal(backward.child.bincount(minlength=len(graph)), graph.num_backward)
    for index in range(0, len(graph), max(1, len(graph) // 20)):
        expected = sorted(
            env.coloured_graph(parent, 0).canonical_key() for _, parent in env.parents(graph.states, index)
        )
        result = backward.parent[backward.child == index].tolist()
        assert sorted(env.coloured_graph(graph.states, i).canonical_key() for i in result) == expected


def test_analytic_flows_of_any_backward_policy_match_reward(space):
    """In labelled counting with |Aut|, and with a wrong P_B the distribution is another one."""
    env, graph, _, _ = space
    backward = enumerate_backward(env, graph)
    log_backward = random_log_backward(env, graph, backward)
    log_reward = random_log_reward(graph)
    flows = analytic_flows(graph, log_reward + graph.num_automorphisms.log(), backward.per_forward(log_backward))
    target = target_distribution(graph, log_reward)
    assert l1_distance(terminating_distribution(graph, flows.log_forward), target) < 1e-9
    assert flows.log_z == pytest.approx(float(log_reward[graph.terminal].double().logsumexp(0)), abs=1e-9)
    uniform = analytic_flows(graph, log_reward + graph.num_automorphisms.log())
    assert float((flows.log_forward - uniform.log_forward).abs().max()) > 0.1
    shuffled = backward.per_forward(log_backward.roll(1))
    wrong = analytic_flows(graph, log_reward + graph.num_automorphisms.log(), shuffled)
    assert l1_distance(terminating_distribution(graph, wrong.log_forward), target) > 1e-2


def test_undoing_action_is_in_same_orbit():
    """n_forward(orbit) |Aut child| = n_backward(orbit) |Aut parent|, orbit by orbit, which class by class hides."""
    env = GraphBuildingEnv(["a"], max_nodes=6)
    graph = enumerate_states(env)
    backward = enumerate_backward(env, graph)
    _, orbit = env.identify_actions(graph.states[backward.child], backward.action).unique(return_inverse=True)
    assert len(orbit.unique()) > torch.stack([backward.child, backward.parent]).unique(dim=1).shape[1]
    num_backward = orbit.bincount().double()
    moves = ~graph.stops
    undoing = orbit[backward.undoing[moves]]
    num_forward = undoing.bincount(minlength=len(num_backward)).double()
    child, parent = (torch.zeros(len(num_backward), dtype=torch.int64) for _ in range(2))
    child[orbit], parent[orbit] = backward.child, backward.parent
    assert torch.equal(child[undoing], graph.child[moves])
    assert torch.equal(parent[undoing], graph.parent[moves])
    symmetries = graph.num_automorphisms
    assert torch.equal(num_forward * symmetries[child], num_backward * symmetries[parent])


def test_class_log_backward_needs_no_symmetry_correction(space):
    """Scheme 2 hits the reward as it is; labelled backward probabilities in its place do not (schemes mixed)."""
    _, graph, _, _ = space
    log_reward = random_log_reward(graph)
    target = target_distribution(graph, log_reward)
    log_backward = class_log_backward(graph)
    flows = analytic_flows(graph, log_reward, log_backward)
    assert l1_distance(terminating_distribution(graph, flows.log_forward), target) < 1e-9
    scaled = analytic_flows(graph, log_reward + graph.num_automorphisms.log(), log_backward)
    assert l1_distance(terminating_distribution(graph, scaled.log_forward), target) > 1e-2


def test_locate_unknown_state_raises():
    small, large = (GraphBuildingEnv(["a"], max_nodes=n) for n in (3, 4))
    graph = enumerate_states(small)
    order = torch.randperm(len(graph), generator=torch.Generator().manual_seed(0))
    assert torch.equal(graph.locate(small.identify(graph.states[order])), order)
    with pytest.raises(ValueError, match="expected enumerated states"):
        graph.locate(large.identify(enumerate_states(large).states))


def test_policy_scores_sum_to_one_forward_and_backward():
    """The distributions over the legal actions of every state sum to one for every chunk size."""
    env = GraphBuildingEnv(["a", "b"], max_nodes=4)
    graph = enumerate_states(env)
    backward = enumerate_backward(env, graph)
    context = GraphBuildingEnvContext(env).with_layout(DenseTransformerPolicy.layout).with_backward()
    torch.manual_seed(0)
    policy = DenseTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8))
    for owner, ask in (
        (
            graph.parent,
            lambda chunk: policy_log_prob(graph, forward_scores(context, policy, torch.zeros(1)), chunk=chunk),
        ),
        (
            backward.child,
            lambda chunk: policy_log_backward(
                graph, backward, backward_scores(context, policy, torch.zeros(1)), chunk=chunk
            ),
        ),
    ):
        values = ask(7)
        totals = torch.zeros(len(graph), dtype=torch.float64).index_add(0, owner, values.exp())
        assert torch.allclose(totals[owner], torch.ones(()).double(), atol=1e-5)
        assert torch.allclose(values, ask(512), atol=1e-5)
