"""Mutations of terminal states on every kind of environment."""

from collections import Counter

import pytest
import torch

from gflownet.data.sampler import uniform_states
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.search.proposals import distinct, mutated, neighbours
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
