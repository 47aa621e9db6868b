"""Exactness on toy spaces with a tabular policy and analytic flows."""

import pytest
import torch

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.metrics.exact import (
    StateGraph,
    analytic_flows,
    analytic_log_prob,
    enumerate_states,
    forward_scores,
    jensen_shannon,
    l1_distance,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
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


@pytest.fixture(scope="module", params=SPACES)
def space(request) -> tuple[Environment, StateGraph, int, float]:
    env, num_classes, distance = SPACES[request.param]
    return env, enumerate_states(env), num_classes, distance


def random_log_reward(graph: StateGraph) -> torch.Tensor:
    return 2 * torch.randn(len(graph), generator=torch.Generator().manual_seed(7))


class TabularPolicy(Policy):
    """Logits looked up by the identity of the state: the log-flows of its actions."""

    def __init__(self, context: GraphBuildingEnvContext, graph: StateGraph, log_prob: torch.Tensor) -> None:
        super().__init__()
        self.context, self.env = context, context.env
        self.table: dict[str, dict[tuple[str, bool], float]] = {}
        after = self.env.apply(graph.states[graph.parent], graph.action)
        for i, parent in enumerate(graph.parent.tolist()):
            key = self.env.coloured_graph(graph.states, parent).canonical_key()
            child = self.env.coloured_graph(after, i).canonical_key()
            stop = bool(graph.stops[i])
            self.table.setdefault(key, {})[child, stop] = float(log_prob[i])
        self.states = graph.states

    def forward(self, batch, conditioning):
        """Look every state up that `encode` announced; a Batch alone does not carry names."""
        graph, action = self.env.forward_masks(self.states).positions()
        after = self.env.apply(self.states[graph], action)
        values = []
        for i, (g, kind) in enumerate(zip(graph.tolist(), action.kind.tolist(), strict=True)):
            key = self.env.coloured_graph(self.states, g).canonical_key()
            values.append(self.table[key][self.env.coloured_graph(after, i).canonical_key(), kind == 0])
        logits, start = [], 0
        for mask in self.context.masks(batch):
            num = int(mask.sum())
            filled = torch.zeros(mask.shape, dtype=torch.float64)
            filled[mask] = torch.tensor(values[start : start + num], dtype=torch.float64)
            logits.append(filled)
            start += num
        return self.context.categorical(batch, logits), torch.zeros(len(conditioning))


class RememberingContext(GraphBuildingEnvContext):
    """Passes the states to the tabular policy before it evaluates their batch."""

    policy: TabularPolicy

    def to_batch(self, states):
        self.policy.states = states
        return super().to_batch(states)


def tabular(env: Environment, graph: StateGraph, log_prob: torch.Tensor) -> tuple[RememberingContext, TabularPolicy]:
    context = RememberingContext(env)
    context.policy = TabularPolicy(context, graph, log_prob)
    return context, context.policy


def pushed_forward(graph: StateGraph, context: RememberingContext, policy: TabularPolicy) -> torch.Tensor:
    def score(states):
        return policy(context.to_batch(states), torch.zeros(len(states), 1))[0].log_probs()

    return terminating_distribution(graph, policy_log_prob(graph, score))


def test_policy_log_prob_evaluates_states_in_chunks(space):
    env, graph, *_ = space
    context, policy = tabular(env, graph, analytic_log_prob(graph, torch.zeros(len(graph)))[0])
    num_states: list[int] = []

    def score(states):
        num_states.append(len(states))
        return policy(context.to_batch(states), torch.zeros(len(states), 1))[0].log_probs()

    policy_log_prob(graph, score, chunk=100)
    assert num_states == [100] * (len(graph) // 100) + [len(graph) % 100]


def test_analytic_flows_sample_in_proportion_to_reward(space):
    env, graph, num_classes, _ = space
    assert len(graph.terminal) == num_classes
    log_reward = random_log_reward(graph)
    log_prob, log_z = analytic_log_prob(graph, log_reward + graph.num_automorphisms.log())
    target = target_distribution(graph, log_reward)
    context, policy = tabular(env, graph, log_prob)
    assert l1_distance(pushed_forward(graph, context, policy), target) < 1e-6
    assert log_z == pytest.approx(float(log_reward[graph.terminal].double().logsumexp(0)), abs=1e-6)


def test_uncorrected_flows_have_published_distance(space):
    env, graph, _, distance = space
    uniform = torch.zeros(len(graph))
    context, policy = tabular(env, graph, analytic_log_prob(graph, uniform)[0])
    result = pushed_forward(graph, context, policy)
    assert l1_distance(result, target_distribution(graph, uniform)) == pytest.approx(distance, abs=5.1e-5)
    divided = target_distribution(graph, uniform - graph.num_automorphisms.log())
    assert l1_distance(result, divided) < 1e-6


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("correct_symmetries", [True, False])
@pytest.mark.parametrize("name", ["connected_5", "two_coloured_4", "dag_4_two_types"])
def test_analytic_flows_have_zero_trajectory_balance_loss(name, correct_symmetries, backwards):
    env = SPACES[name][0]
    graph = enumerate_states(env)
    log_reward = random_log_reward(graph)
    scaled = log_reward + (graph.num_automorphisms.log() if correct_symmetries else 0)
    log_prob, log_z = analytic_log_prob(graph, scaled)
    context, policy = tabular(env, graph, log_prob)
    config = AlgoConfig(symmetry="reward" if correct_symmetries else "none")
    objective = TrajectoryBalance(context, config)
    torch.nn.init.constant_(objective.log_z.base, log_z)
    conditioning = Conditioning(torch.zeros(16, 1), torch.ones(16))
    generator = torch.Generator().manual_seed(3)
    if backwards:
        choice = graph.terminal[torch.randint(len(graph.terminal), (16,), generator=generator)]
        batch = sample_backward(context, graph.states[choice], conditioning=conditioning, generator=generator)
    else:
        batch = sample_forward(context, policy, conditioning=conditioning, generator=generator, random_action_prob=0.3)
    index = {env.coloured_graph(graph.states, i).canonical_key(): i for i in range(len(graph))}
    ends = [index[env.coloured_graph(batch.terminal, i).canonical_key()] for i in range(16)]
    rewarded = batch.with_rewards(log_reward[ends])
    assert float(objective.loss(policy, rewarded).value.detach()) < 1e-9
    # Negative control: the wrong treatment of symmetries must show, unless nothing here is symmetric.
    objective.reader.scales_rewards = not correct_symmetries
    if bool((batch.log_symmetry > 0).any()):
        assert float(objective.loss(policy, rewarded).value.detach()) > 1e-3


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
