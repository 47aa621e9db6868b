"""Batched sampling of trajectories, forward and backward."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from gflownet.certificate.exact import enumerate_states, policy_log_prob, terminating_distribution
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.replay import action_sequences
from gflownet.learning.sampler import distinct_candidates, sample_backward, sample_forward, uniform_states
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.answer import distinct
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from tests.contracts.environments import ENVIRONMENTS, capped_cells, operation_graphs
from tests.learning.policies import keys, opinionated, unconditional
from tests.oracles.backward_actions import backward_scores
from tests.oracles.chi_square import p_value
from tests.oracles.networkx_states import num_automorphisms, oracle_of, to_networkx

SAMPLED = {
    name: ENVIRONMENTS[name]
    for name in ("undirected_attributes", "directed", "computation_graph_ordered", "computation_graph_recurrent")
}
SAMPLED["undirected_5"] = lambda: GraphBuildingEnv(["a"], max_nodes=5, min_nodes=3)


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


def forward(env: Environment, *, num: int, seed: int, epsilon: float = 0.0, stop: float = 0.0) -> TrajectoryBatch:
    context = GraphBuildingEnvContext(env)
    return sample_forward(
        context,
        BiasedPolicy(context, stop),
        conditioning=unconditional(num),
        generator=torch.Generator().manual_seed(seed),
        random_action_prob=epsilon,
    )


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
            assert keys(env, arrived) == keys(env, expected)
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
    batch = forward(env, num=4, seed=1, stop=-2.0)
    check_valid(env, batch, up_to_order=False)


@pytest.mark.parametrize("name", SAMPLED)
def test_sample_backward_trajectories_are_valid(name):
    env = SAMPLED[name]()
    terminal = forward(env, num=4, seed=2, stop=-4.0).terminal
    generator = torch.Generator().manual_seed(3)
    batch = sample_backward(GraphBuildingEnvContext(env), terminal, conditioning=unconditional(4), generator=generator)
    assert bool(batch.terminal.equals(terminal).all())
    check_valid(env, batch, up_to_order=True)


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
    context, generators = GraphBuildingEnvContext(env), [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    backward = [
        sample_backward(context, first.terminal, conditioning=unconditional(8), generator=generator)
        for generator in generators
    ]
    assert same(backward[0], backward[1])
    assert not same(backward[0], backward[2])


def test_sample_backward_uniform_parents():
    env, num = ENVIRONMENTS["undirected"](), 1_000
    graph = enumerate_states(env)
    parents_of = [Counter(keys(env, state)[0] for _, state in env.parents(graph.states, i)) for i in range(len(graph))]
    index = max(range(len(graph)), key=lambda i: len(parents_of[i]))
    terminal = graph.states[torch.full((num,), index)]
    generator = torch.Generator().manual_seed(12)
    batch = sample_backward(
        GraphBuildingEnvContext(env), terminal, conditioning=unconditional(num), generator=generator
    )
    before_last = batch.trajectory.argsort(stable=True)[torch.bincount(batch.trajectory).cumsum(0) - 2]
    parents = parents_of[index]
    assert len(parents) > 3
    expected = {parent: multiplicity / parents.total() for parent, multiplicity in parents.items()}
    assert p_value(Counter(keys(env, batch.states[before_last])), expected) > 1e-3


def num_nodes(candidate) -> int:
    return len(candidate.to_dict()["nodes"])


def uniform_candidates(env, num: int, generator: torch.Generator):
    return distinct_candidates(env, num, lambda size: uniform_states(env, size, generator=generator))


def test_first_candidate_is_an_unbiased_sample():
    """After one node, Stop and AddNode are the two actions. Short trajectories must not come first."""
    env = GraphBuildingEnv(["a"], max_nodes=2)
    generator, num = torch.Generator().manual_seed(0), 40
    sizes = [num_nodes(uniform_candidates(env, 1, generator)[0]) for _ in range(num)]
    assert 1 in sizes
    assert abs(sizes.count(1) - num / 2) < 3.5 * (num / 4) ** 0.5


def test_candidates_are_different_and_repeatable():
    env = GraphBuildingEnv(["a", "b"], max_nodes=4)
    first, second = (uniform_candidates(env, 40, torch.Generator().manual_seed(1)) for _ in range(2))
    keys = [candidate.canonical_key() for candidate in first]
    assert len(set(keys)) == len(keys) == 40
    assert keys == [candidate.canonical_key() for candidate in second]


def test_small_space_has_fewer_candidates():
    env = GraphBuildingEnv(["a", "b"], max_nodes=1)
    assert len(uniform_candidates(env, 50, torch.Generator().manual_seed(0))) == 2
    assert uniform_candidates(env, 0, torch.Generator()) == []


NUM = 1_000


@pytest.mark.parametrize(("temperature", "epsilon"), [(1.0, 0.0), (0.4, 0.0), (2.5, 0.3)])
def test_exploration_temperature_before_uniform_mixture(temperature, epsilon):
    env = GraphBuildingEnv(["a", "b"], max_nodes=3)
    context, policy = opinionated(env)
    graph = enumerate_states(env)

    @torch.no_grad()
    def score(states, temperature, epsilon):
        categorical, _ = policy(context.to_batch(states), torch.zeros(len(states), 1))
        owner, log_p = categorical.log_probs()
        weights = (log_p.double() / temperature).exp()
        share = weights / torch.zeros(len(states), dtype=torch.float64).index_add(0, owner, weights)[owner]
        return owner, ((1 - epsilon) * share + epsilon / torch.bincount(owner)[owner]).log()

    def distribution(*exploration):
        log_prob = policy_log_prob(graph, lambda states: score(states, *exploration))
        return dict(zip(known, terminating_distribution(graph, log_prob)[graph.terminal].tolist(), strict=True))

    known = keys(env, graph.states[graph.terminal])
    generator = torch.Generator().manual_seed(1)
    options = {"random_action_prob": epsilon, "temperature": temperature}
    batch = sample_forward(context, policy, conditioning=unconditional(NUM), generator=generator, **options)
    counts = Counter(keys(env, batch.terminal))
    assert p_value(counts, distribution(temperature, epsilon)) > 1e-3
    assert p_value(counts, distribution(0.4 if temperature == 1.0 else 1.0, epsilon)) < 1e-6
    assert epsilon == 0.0 or p_value(counts, distribution(temperature, 0.0)) < 1e-6


@pytest.mark.parametrize(
    ("name", "dense"),
    [
        pytest.param("computation_graph_ordered", True, marks=pytest.mark.slow),
        ("computation_graph_ordered", False),
        pytest.param("undirected_attributes", True, marks=pytest.mark.slow),
        pytest.param("directed_attributes", False, marks=pytest.mark.slow),
    ],
)
def test_sample_backward_learned_policy_frequencies(name, dense):
    """Frequencies of intermediate states of backward trajectories against exact probabilities."""
    env = ENVIRONMENTS[name]()
    context, policy = opinionated(env, two_way=True, dense=dense, sharpness=7.0)
    graph, told = enumerate_states(env), unconditional(NUM)
    generator = torch.Generator().manual_seed(2)
    deepest = int(graph.terminal[graph.level[graph.terminal].argmax()])
    ends = graph.states[torch.full((NUM,), deepest)]
    batch = sample_backward(context, ends, conditioning=told, generator=generator, policy=policy)
    uniform = sample_backward(context, ends, conditioning=told, generator=generator)
    assert set(batch.origin.tolist()) == {int(Origin.RESAMPLED)}
    num_ways = env.backward_masks(batch.states).num_actions()
    step, successor = batch.successors()
    assert torch.allclose(batch.log_backward[step], -num_ways[successor].log()), "the log of the uniform one"

    expected = visits(env, graph, context, policy, deepest)
    level = int(graph.level[deepest]) // 2
    middle = {key: p for key, (depth, p) in expected.items() if depth == level}
    assert sum(middle.values()) == pytest.approx(1.0)
    assert len(middle) > 1
    for sampled, follows in ((batch, True), (uniform, False)):
        order = sampled.trajectory.argsort(stable=True)
        starts = torch.bincount(sampled.trajectory).cumsum(0) - torch.bincount(sampled.trajectory)
        passed = Counter(keys(env, sampled.states[order[starts + level]]))
        assert (p_value(passed, middle) > 1e-3) == follows


def visits(env, graph, context, policy, start: int) -> dict[str, tuple[int, float]]:
    score = backward_scores(context, policy, torch.zeros(1))
    mass = {start: 1.0}
    names = keys(env, graph.states)
    position = {name: i for i, name in enumerate(names)}
    for s in sorted(range(len(graph)), key=lambda i: -int(graph.level[i])):
        if mass.get(s, 0.0) == 0 or int(graph.level[s]) == 0:
            continue
        one = graph.states[s : s + 1]
        _, actions = env.backward_masks(one).positions()
        _, log_p = score(one)
        before = env.apply(graph.states[torch.full((len(actions),), s)], actions)
        for name, p in zip(keys(env, before), log_p.exp().tolist(), strict=True):
            mass[position[name]] = mass.get(position[name], 0.0) + mass[s] * p
    return {names[s]: (int(graph.level[s]), p) for s, p in mass.items()}


LIMITED = {"operation_graph": lambda: operation_graphs(max_parameters=420), "cells": capped_cells}


def limited(env: Environment, num: int, *, encoding: float = 0.0) -> Conditioning:
    """Return a random cap of the first metric for each trajectory, under equal encodings."""
    generator, own = torch.Generator().manual_seed(5), torch.tensor(env.vocabulary.caps)
    limit = own.repeat(num, 1)
    limit[:, 0] = torch.randint(env.smallest_sizes[0], int(own[0]) + 1, (num,), generator=generator)
    return Conditioning(torch.full((num, 1), encoding), torch.ones(num), limit)


@pytest.mark.parametrize("name", LIMITED)
def test_trajectories_keep_their_limits(name):
    env, generator = LIMITED[name](), torch.Generator().manual_seed(1)
    context, policy = opinionated(env)
    told = limited(env, 256)
    assert told.limit is not None
    # Equal encodings: masks of equal graphs with other caps differ, and are not shared.
    fresh = sample_forward(context, policy, conditioning=told, generator=generator, random_action_prob=0.3)
    assert torch.equal(fresh.terminal.limit, told.limit)
    assert torch.equal(fresh.states.limit, told.limit[fresh.trajectory])
    sizes = env.sizes(fresh.terminal)
    assert bool((sizes <= told.limit).all())
    assert len(sizes.unique(dim=0)) > 5

    # Any cap from the size on: also the smallest, under which each step has to be legal.
    for limit in (sizes, sizes + 1):
        other = Conditioning(told.encoding, told.beta, limit)
        back = sample_backward(context, fresh.terminal, conditioning=other, generator=generator)
        assert torch.equal(back.terminal.limit, limit)
        assert torch.equal(back.states.limit, limit[back.trajectory])
        assert bool(env.forward_masks(back.states).contains(back.actions).all())
        smaller = back.states.with_limit((sizes - 1)[back.trajectory])
        assert not bool(env.forward_masks(smaller).contains(back.actions).all())
        walked = action_sequences(env, back).walk(env, conditioning=other, origin=Origin.REMEMBERED)
        assert torch.equal(walked.terminal.limit, limit)
        assert torch.equal(env.identify(walked.terminal), env.identify(fresh.terminal))
    kept = sample_backward(context, fresh.terminal, conditioning=unconditional(256), generator=generator)
    assert torch.equal(kept.terminal.limit, told.limit)  # those of the states, without limits of the conditioning

    restored = GraphStates(**fresh.states.state_dict())
    for states in (restored, fresh.states.clone(), fresh.states.truncated(fresh.states.largest)):
        assert torch.equal(states.limit, fresh.states.limit)
    assert torch.equal(fresh.part(3, 9).terminal.limit, told.limit[3:9])
    assert torch.equal(TrajectoryBatch.cat([fresh, back]).terminal.limit, torch.cat([told.limit, limit]))


def test_equal_graphs_with_other_limits_are_distinct():
    env = operation_graphs(max_parameters=420)
    states = env.initial_states(4).with_limit(torch.tensor([[420], [30], [420], [31]]))
    _, owner = distinct(states, torch.zeros(4, 1))
    assert owner[0] == owner[2]
    assert len(owner.unique()) == 3
    assert len(env.identify(states).unique()) == 1


def test_cap_below_the_smallest_network_raises():
    env = operation_graphs(max_parameters=420)
    context, policy = opinionated(env)
    told = Conditioning(torch.zeros(2, 1), torch.ones(2), torch.tensor([[420], [19]]))
    with pytest.raises(UserError, match=r"^max_parameters: expected at least 20, the smallest network's, got 19$"):
        sample_forward(context, policy, conditioning=told, generator=torch.Generator())
