import math
from collections import Counter
from typing import Any

import pytest
import torch

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.exact import StateGraph, enumerate_states, policy_log_prob, terminating_distribution
from gflownet.policy.config import ModelConfig
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from tests.contracts.environments import ENVIRONMENTS, computation_graphs
from tests.oracles.networkx_states import num_automorphisms, oracle_of, to_networkx

NUM_SIGMAS = 4.5  # of a binomial; missed by chance about once in 150,000
SAMPLED = {
    name: ENVIRONMENTS[name]
    for name in ("undirected_attributes", "directed", "computation_graph_ordered", "computation_graph_recurrent")
}
SAMPLED["undirected_6"] = lambda: GraphBuildingEnv(["a"], max_nodes=6, min_nodes=4)
SAMPLED["computation_graph_2_hidden"] = lambda: computation_graphs(max_hidden_nodes=2, max_edges=5)


class BiasedPolicy(Policy):
    """The logit of Stop is given, by default by the conditioning; all others are 0."""

    def __init__(self, context: GraphBuildingEnvContext, stop: float | None = None) -> None:
        super().__init__()
        self.context, self.stop = context, stop
        self.batch_sizes: list[int] = []

    def forward(self, batch: Any, conditioning):
        assert len(conditioning) == batch.num_graphs
        self.batch_sizes.append(batch.num_graphs)
        masks, rows = self.context.masks(batch), SparseLayout(self.context).row_graphs(batch)
        stop = self.context.action_types.index(GraphActionType.Stop)
        logits = [torch.zeros(mask.shape) for mask in masks]
        logits[stop] = conditioning[rows[stop], :1] if self.stop is None else logits[stop] + self.stop
        categorical = GraphActionCategorical(logits, masks, row_graphs=rows, num_graphs=batch.num_graphs)
        return categorical, torch.zeros(batch.num_graphs)


def unconditional(num: int) -> Conditioning:
    return Conditioning(torch.zeros(num, 1), torch.ones(num))


def forward(env: Environment, *, num: int, seed: int, epsilon: float = 0.0, stop: float = 0.0) -> TrajectoryBatch:
    context = GraphBuildingEnvContext(env)
    return sample_forward(
        context,
        BiasedPolicy(context, stop),
        conditioning=unconditional(num),
        generator=torch.Generator().manual_seed(seed),
        random_action_prob=epsilon,
    )


def key(env: Environment, states: GraphStates, index: int = 0) -> str:
    return env.coloured_graph(states, index).canonical_key()


def check_valid(env: Environment, batch: TrajectoryBatch, *, up_to_order: bool) -> None:
    """Check every step of every trajectory; backward trajectories renumber nodes at each step."""
    oracle = oracle_of(env)
    for i in range(len(batch)):
        one = batch[i]
        last = len(one.actions) - 1
        assert bool(one.states[:1].equals(env.initial_states(1)).all())
        assert [k == GraphActionType.Stop for k in one.actions.kind.tolist()] == [False] * last + [True]
        assert bool(one.states[last:].equals(one.terminal).all())
        assert float(one.log_backward[last]) == 0.0
        after = env.step(one.states, one.actions)  # raises if one is illegal
        arrived, expected = after[:last], one.states[1:]
        if up_to_order:
            assert [key(env, arrived, t) for t in range(last)] == [key(env, expected, t) for t in range(last)]
        else:
            assert bool(arrived.equals(expected).all())
        counts = [len(oracle.backward(to_networkx(env, expected, t))) for t in range(last)]
        assert one.log_backward[:last].tolist() == pytest.approx([-math.log(c) for c in counts], abs=1e-6)
        symmetries = num_automorphisms(to_networkx(env, one.terminal, 0))
        assert one.log_symmetry == pytest.approx(math.log(symmetries), abs=1e-6)
        assert one.log_reward is None


@pytest.mark.parametrize("name", SAMPLED)
def test_sample_forward_trajectories_are_valid(name):
    env = SAMPLED[name]()
    batch = forward(env, num=6, seed=1, stop=-2.0)
    check_valid(env, batch, up_to_order=False)


@pytest.mark.parametrize("name", SAMPLED)
def test_sample_backward_trajectories_are_valid(name):
    env = SAMPLED[name]()
    terminal = forward(env, num=6, seed=2, stop=-4.0).terminal
    generator = torch.Generator().manual_seed(3)
    batch = sample_backward(GraphBuildingEnvContext(env), terminal, conditioning=unconditional(6), generator=generator)
    assert bool(batch.terminal.equals(terminal).all())
    check_valid(env, batch, up_to_order=True)


def test_sampler_counts_automorphisms():
    env = ENVIRONMENTS["undirected_fixed_size"]()
    batch = forward(env, num=40, seed=4)
    counts = [num_automorphisms(to_networkx(env, batch.terminal, i)) for i in range(40)]
    assert len(set(counts)) > 2
    assert batch.log_symmetry.exp().tolist() == pytest.approx(counts, rel=1e-5)


def test_sample_forward_drops_finished_graphs():
    env = ENVIRONMENTS["undirected"]()
    context = GraphBuildingEnvContext(env)
    policy = BiasedPolicy(context, 0.0)
    generator = torch.Generator().manual_seed(5)
    each_its_own = Conditioning(torch.arange(30.0)[:, None], torch.ones(30))  # so that no two states are the same
    batch = sample_forward(context, policy, conditioning=each_its_own, generator=generator)
    lengths = torch.bincount(batch.trajectory).tolist()
    assert policy.batch_sizes == [sum(length > t for length in lengths) for t in range(max(lengths))]
    assert min(lengths) < max(lengths)


def test_sample_forward_deduplicates_states():
    context = GraphBuildingEnvContext(ENVIRONMENTS["undirected"]())
    policy = BiasedPolicy(context, -5.0)
    generator = torch.Generator().manual_seed(7)
    sample_forward(context, policy, conditioning=unconditional(200), generator=generator)
    # Nothing; a node of two colours; two nodes of four colourings.
    assert policy.batch_sizes[:3] == [1, 2, 4]
    assert max(policy.batch_sizes) < 200


def test_sampler_conditioning_per_trajectory():
    """Half of the batch stops at once, the other half continues."""
    env = ENVIRONMENTS["undirected"]()
    context = GraphBuildingEnvContext(env)
    eager = torch.arange(20) % 3 == 0
    encoding = torch.where(eager, 60.0, -60.0)[:, None]
    conditioning = Conditioning(encoding, torch.arange(20.0))
    generator = torch.Generator().manual_seed(6)
    batch = sample_forward(context, BiasedPolicy(context), conditioning=conditioning, generator=generator)
    num_edges = batch.terminal.has_edge.flatten(1).sum(1) // 2
    assert torch.equal(batch.terminal.num_nodes == 1, eager)
    assert torch.equal(num_edges == 6, ~eager)  # all there is room for
    assert torch.equal(batch.conditioning, encoding)
    assert torch.equal(batch.beta, torch.arange(20.0))


def within_binomial_bounds(count: int, total: int, p: float) -> bool:
    return abs(count - p * total) <= NUM_SIGMAS * math.sqrt(total * p * (1 - p)) + 1e-9


def actions_by_state(env: Environment, batch: TrajectoryBatch) -> dict[str, Counter]:
    """Return how often each action was taken in each labelled state."""
    found: dict[str, Counter] = {}
    for i in range(len(batch.trajectory)):
        state = str((batch.states.node_type[i].tolist(), batch.states.edge_type[i].tolist()))
        found.setdefault(state, Counter())[str(env.decode(batch.states, i, batch.actions))] += 1
    return found


def test_sample_forward_epsilon_one_is_uniform():
    env = ENVIRONMENTS["directed"]()
    batch = forward(env, num=1_500, seed=7, epsilon=1.0, stop=30.0)
    num_legal = env.forward_masks(batch.states).num_actions().tolist()
    legal = {}
    for i, num in enumerate(num_legal):
        legal[str((batch.states.node_type[i].tolist(), batch.states.edge_type[i].tolist()))] = num
    checked = 0
    for state, counts in actions_by_state(env, batch).items():
        if counts.total() >= 100:
            assert len(counts) == legal[state]
            assert all(within_binomial_bounds(c, counts.total(), 1 / legal[state]) for c in counts.values())
            checked += 1
    assert checked > 5


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_sample_forward_epsilon_share(epsilon):
    """On a single node, 1 + 2 actions are legal, and a sure policy takes Stop."""
    env = ENVIRONMENTS["undirected"]()
    batch = forward(env, num=2_000, seed=8, epsilon=epsilon, stop=60.0)
    stopped = int((batch.terminal.num_nodes == 1).sum())
    assert within_binomial_bounds(stopped, 2_000, 1 - epsilon + epsilon / 3)


def same(ours: TrajectoryBatch, theirs: TrajectoryBatch) -> bool:
    if len(ours.trajectory) != len(theirs.trajectory):
        return False
    equal = [bool(ours.states.equals(theirs.states).all()), bool(ours.terminal.equals(theirs.terminal).all())]
    equal += [torch.equal(getattr(ours.actions, n), getattr(theirs.actions, n)) for n in ("kind", "row", "column")]
    return all(equal) and torch.equal(ours.trajectory, theirs.trajectory)


def test_sampler_generator():
    env = ENVIRONMENTS["computation_graph_ordered"]()
    torch.manual_seed(0)
    first = forward(env, num=8, seed=9, epsilon=0.5)
    torch.manual_seed(1)
    assert same(first, forward(env, num=8, seed=9, epsilon=0.5))
    assert not same(first, forward(env, num=8, seed=10, epsilon=0.5))
    backward = [
        sample_backward(
            GraphBuildingEnvContext(env),
            first.terminal,
            conditioning=unconditional(8),
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (1, 1, 2)
    ]
    assert same(backward[0], backward[1])
    assert not same(backward[0], backward[2])


@pytest.fixture(scope="module")
def small_space() -> tuple[Environment, StateGraph, GraphBuildingEnvContext, Policy]:
    env = GraphBuildingEnv(["a", "b"], max_nodes=3)
    context = GraphBuildingEnvContext(env)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = GraphTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
        with torch.no_grad():  # an untrained network is close to uniform; let it have opinions
            for head in policy.heads.values():
                for parameter in head.parameters():
                    parameter.mul_(4)
    return env, enumerate_states(env), context, policy


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_sample_forward_terminal_frequencies(small_space, epsilon):
    env, graph, context, policy = small_space
    num = 6_000

    def score(states):
        with torch.no_grad():
            categorical, _ = policy(context.to_batch(states), torch.zeros(len(states), 1))
        return categorical.mixed(epsilon).log_probs()

    exact = terminating_distribution(graph, policy_log_prob(graph, score))
    assert float(exact.sum()) == pytest.approx(1.0, abs=1e-5)
    batch = sample_forward(
        context,
        policy,
        conditioning=unconditional(num),
        generator=torch.Generator().manual_seed(11),
        random_action_prob=epsilon,
    )
    counts = Counter(key(env, batch.terminal, i) for i in range(num))
    assert counts.total() == num
    for index in graph.terminal.tolist():
        p = float(exact[index])
        assert within_binomial_bounds(counts.pop(key(env, graph.states, index), 0), num, p), (index, p)
    assert not counts


def test_sample_backward_uniform_parents():
    env, num = ENVIRONMENTS["undirected"](), 3_000
    graph = enumerate_states(env)
    index = max(range(len(graph)), key=lambda i: len({key(env, state) for _, state in env.parents(graph.states, i)}))
    terminal = graph.states[torch.full((num,), index)]
    generator = torch.Generator().manual_seed(12)
    batch = sample_backward(
        GraphBuildingEnvContext(env), terminal, conditioning=unconditional(num), generator=generator
    )
    before_last = batch.trajectory.argsort(stable=True)[torch.bincount(batch.trajectory).cumsum(0) - 2]
    counts = Counter(key(env, batch.states, i) for i in before_last.tolist())
    parents = Counter(key(env, state) for _, state in env.parents(graph.states, index))
    assert counts.keys() == parents.keys()
    assert len(parents) > 3
    for parent, multiplicity in parents.items():
        assert within_binomial_bounds(counts[parent], num, multiplicity / parents.total())


def test_sample_backward_forward_actions_invert():
    """Stop comes last although backward sampling begins with it."""
    env = ENVIRONMENTS["directed_attributes"]()
    terminal = forward(env, num=5, seed=13, stop=-5.0).terminal
    generator = torch.Generator().manual_seed(14)
    batch = sample_backward(GraphBuildingEnvContext(env), terminal, conditioning=unconditional(5), generator=generator)
    assert isinstance(batch.actions, ActionBatch)
    assert bool((batch.actions.kind < GraphActionType.RemoveNode).all())
    assert int((batch.actions.kind == GraphActionType.Stop).sum()) == 5
