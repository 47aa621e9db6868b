"""Mutations of terminal states on every kind of environment."""

from collections import Counter

import pytest
import torch

from gflownet.data.uniform import uniform_states
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.search.mutations import default_max_undone, mutated, neighbours, undone
from tests.contracts.environments import ENVIRONMENTS
from tests.oracles.chi_square import p_value
from tests.search.terminal_states import ENVIRONMENT_NAMES


@pytest.fixture(params=ENVIRONMENT_NAMES)
def env(request) -> Environment:
    return ENVIRONMENTS[request.param]()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_mutated_returns_terminal_states(env):
    states = uniform_states(env, 12, generator=generator())
    children = mutated(env, states, generator(1), max_undone=3)
    assert bool(env.forward_masks(children).masks[GraphActionType.Stop].all())
    assert len(set(env.identify(children).tolist()) - set(env.identify(states).tolist())) > 0
    again = mutated(env, states, generator(1), max_undone=3)
    assert bool(children.equals(again).all())


def test_undone_takes_the_number_of_steps(env):
    states = uniform_states(env, 8, generator=generator())
    num_steps = torch.tensor([0, 1, 2, 99] * 2)
    parents = undone(env, states, num_steps, generator(1))
    assert bool(parents[num_steps == 0].equals(states[num_steps == 0]).all())
    single = [code for i in (1, 5) for code in parent_codes(env, states, i)]
    assert set(env.identify(parents[num_steps == 1]).tolist()) <= set(single)
    initial = env.identify(env.initial_states(1)).tolist()
    assert env.identify(parents[num_steps == 99]).tolist() == initial * 2


def parent_codes(env: Environment, states, index: int) -> list[int]:
    return [int(env.identify(parent)[0]) for _, parent in env.parents(states, index)]


def test_mutated_changes_each_place_and_value_equally_often():
    env = ENVIRONMENTS["cells"]()
    parent = uniform_states(env, 1, generator=generator())
    children = mutated(env, parent[torch.zeros(6_000, dtype=torch.int64)], generator(2))
    changed = (children.node_attr != parent.node_attr).flatten(1)
    assert int(changed.sum(1).max()) == 1
    probabilities = dict.fromkeys(env.identify(neighbours(env, parent)).tolist(), 1 / 8)
    assert p_value(Counter(env.identify(children).tolist()), probabilities) > 1e-3


def test_neighbours_of_places_are_all_single_changes():
    env = ENVIRONMENTS["cells"]()
    state = uniform_states(env, 1, generator=generator())
    others = neighbours(env, state)
    assert len(others) == 8, "4 places with 2 other operations"
    assert ((others.node_attr != state.node_attr).flatten(1).sum(1) == 1).all()
    assert len(set(env.identify(others).tolist())) == 8


def test_neighbours_are_terminal_and_symmetric(env):
    state = uniform_states(env, 1, generator=generator(3))
    others = neighbours(env, state)
    assert bool(env.forward_masks(others).masks[GraphActionType.Stop].all())
    codes = env.identify(others).tolist()
    own = int(env.identify(state)[0])
    assert len(set(codes)) == len(codes)
    assert own not in codes
    for index in range(min(len(others), 3)):
        assert own in env.identify(neighbours(env, others[index : index + 1])).tolist()


def test_default_max_undone_of_places_and_graphs():
    assert default_max_undone(ENVIRONMENTS["cells"]()) == 1
    assert default_max_undone(ENVIRONMENTS["choices"]()) > 1
    assert default_max_undone(ENVIRONMENTS["computation_graph"]()) > 1
