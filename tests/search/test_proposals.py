"""Pools of unknown candidates and sampling without replacement."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
import torch

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.history import History, ProposalOrigin
from gflownet.search.proposals import (
    SpreadDraws,
    accepted,
    distinct,
    even_weights,
    evolved,
    mutated,
    neighbours,
    origin_of,
    random_unknown,
    sampled_order,
    unknown_mask,
)
from tests.contracts.environments import ENVIRONMENTS
from tests.oracles.chi_square import p_value
from tests.search.terminal_states import ENVIRONMENT_NAMES


@pytest.fixture(params=ENVIRONMENT_NAMES)
def env(request) -> Environment:
    return ENVIRONMENTS[request.param]()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_mutated_is_another_terminal_state_and_reproducible(env):
    states = uniform_states(env, 8, generator=generator())
    children = mutated(env, states, generator(1))
    assert bool(env.forward_masks(children).masks[GraphActionType.Stop].all())
    assert bool((env.identify(children) != env.identify(states)).all()), "no isomorphic duplicates"
    assert bool(children.equals(mutated(env, states, generator(1))).all())


def test_mutated_changes_each_place_and_value_equally_often():
    env = ENVIRONMENTS["cells"]()
    parent = uniform_states(env, 1, generator=generator())
    children = mutated(env, parent[torch.zeros(6_000, dtype=torch.int64)], generator(2))
    changed = (children.node_attr != parent.node_attr).flatten(1)
    assert int(changed.sum(1).max()) == 1
    probabilities = dict.fromkeys(env.identify(neighbours(env, parent, generator(), num=1)).tolist(), 1 / 8)
    assert p_value(Counter(env.identify(children).tolist()), probabilities) > 1e-3


def test_neighbours_of_places_are_all_single_changes():
    env = ENVIRONMENTS["cells"]()
    state = uniform_states(env, 1, generator=generator())
    others = neighbours(env, state, generator(), num=1)
    assert len(others) == 8, "4 places with 2 other operations"
    assert ((others.node_attr != state.node_attr).flatten(1).sum(1) == 1).all()
    assert len(set(env.identify(others).tolist())) == 8


def test_neighbours_are_distinct_other_terminal_states(env):
    state = uniform_states(env, 1, generator=generator(3))
    others = neighbours(env, state, generator(), num=12)
    assert bool(env.forward_masks(others).masks[GraphActionType.Stop].all())
    assert len(distinct(env, others)) == len(others) > 0
    assert int(env.identify(state)) not in env.identify(others).tolist()


def evaluations(scores: list[float]) -> list[Evaluation]:
    return [Evaluation(score, EvaluationStatus.OK, 1.0, None, None, {}, False) for score in scores]


def test_sampled_order_has_the_probabilities_of_draws_without_replacement():
    weights, num = torch.tensor([1.0, 2.0, 5.0]), 4_000
    generator = torch.Generator().manual_seed(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(num):
        order = tuple(sampled_order(weights.log() / 2, generator, beta=2.0).tolist())
        counts[order] = counts.get(order, 0) + 1
    for order in permutations(range(3)):
        first, second, _ = (float(weights[i]) for i in order)
        expected = first / 8 * second / (8 - first)
        assert counts[order] / num == pytest.approx(expected, abs=4 * math.sqrt(expected / num))


def test_sampled_order_of_infinite_beta_is_sorted():
    weights = torch.tensor([0.1, 3.0, -2.0], dtype=torch.float64)
    assert sampled_order(weights, torch.Generator(), beta=math.inf).tolist() == [1, 0, 2]


def test_sampled_order_accepts_tiny_weights():
    order = sampled_order(torch.tensor([-1e6, -2e6, -math.inf]), torch.Generator().manual_seed(0))
    assert order.tolist() == [0, 1, 2]


def test_accepted_skips_refused_candidates_without_asking_for_more():
    states = uniform_states(ENVIRONMENTS["undirected"](), 6, generator=torch.Generator().manual_seed(0))
    asked: list[int] = []

    def is_refused(_, index: int) -> bool:
        asked.append(index)
        return index % 2 == 1

    assert accepted(states, torch.tensor([5, 4, 3, 2, 1, 0]), 2, is_refused).tolist() == [4, 2]
    assert asked == [5, 4, 3, 2]


def test_unknown_excludes_repeats_evaluated_and_in_flight():
    env = ENVIRONMENTS["undirected"]()
    history, states = History(env), uniform_states(env, 60, generator=torch.Generator().manual_seed(0))
    distinct = states[unknown_mask(history, states)]
    codes = env.identify(distinct)
    assert sorted(codes.tolist()) == sorted(set(env.identify(states).tolist()))
    history.add(distinct[:2], evaluations([0.1, 0.2]))
    history.start(distinct[2:4])
    assert env.identify(states[unknown_mask(history, states)]).tolist() == codes[4:].tolist()


def test_random_unknown_of_a_small_space_ends():
    env = ENVIRONMENTS["hypergrid"]()
    history = History(env)
    states = random_unknown(history, 200, torch.Generator().manual_seed(0))
    assert len(states) == len(env.identify(states).unique()) == 64


def test_evolved_pool_climbs_the_acquisition():
    env = ENVIRONMENTS["labelled_dag"]()
    history, start = History(env), env.initial_states(1)

    def num_edges(states):
        return states.has_edge.sum((1, 2)).double()

    options = {"num_mutations": 60, "generator": torch.Generator().manual_seed(0)}
    pool = evolved(
        history, start, num_edges, origin=origin_of((ProposalOrigin.POLICY, 1)), num_generations=8, **options
    )
    assert torch.equal(pool.log_values, num_edges(pool.states))
    assert float(pool.log_values.max()) == 6  # a complete directed acyclic graph of 4 nodes
    assert pool.origin.tolist() == [ProposalOrigin.POLICY] + [ProposalOrigin.MUTATION] * (len(pool) - 1)


def num_nodes(states: GraphStates) -> torch.Tensor:
    """Return the sizes of graphs, of which those with two nodes are refused."""
    return states.num_nodes.double().masked_fill(states.num_nodes == 2, torch.nan)


def test_share_of_random_draws_is_even_over_sizes():
    env, num = ENVIRONMENTS["undirected"](), 4_000
    of_uniform = uniform_states(env, num, generator=generator()).num_nodes.bincount(minlength=5) / num
    for share in (0.0, 0.5, 1.0):
        draws = SpreadDraws(env, num_nodes, even_share=share, generator=generator())
        shares = draws(num, generator(1)).num_nodes.bincount(minlength=5) / num
        even = (of_uniform > 0).double() * (torch.arange(len(of_uniform)) != 2)
        expected = share * even / even.sum() + (1 - share) * of_uniform
        assert torch.allclose(shares.double(), expected, atol=0.04), share


def test_random_draws_without_sizes_are_uniform_actions():
    env = ENVIRONMENTS["undirected"]()
    draws = SpreadDraws(
        env, lambda states: torch.full((len(states),), torch.nan), even_share=0.5, generator=generator()
    )
    assert draws.even_share == 0
    assert bool(draws(9, generator(1)).equals(uniform_states(env, 9, generator=generator(1))).all())


def test_even_weights_are_half_over_sizes_half_over_their_logarithms():
    sizes = torch.cat([torch.full((90,), 1.0), torch.full((9,), 1e3), torch.tensor([1e6, torch.nan])]).double()
    weights = even_weights(sizes)
    assert weights[:90].sum() == pytest.approx(1 / 3 + 1 / 2 * 90 / 99)  # with 1,000 in one bin of sizes
    assert weights[90:99].sum() == pytest.approx(1 / 3 + 1 / 2 * 9 / 99)
    assert weights[99:].tolist() == [pytest.approx(1 / 3 + 1 / 2), 0]
