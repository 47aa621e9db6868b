"""Named decisions of a construction on every kind of environment."""

import random

import pytest
import torch

from gflownet.data.sampler import uniform_states
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.search.tpe import construct, decisions_of
from tests.contracts.environments import ENVIRONMENTS
from tests.search.terminal_states import ENVIRONMENT_NAMES


@pytest.fixture(params=ENVIRONMENT_NAMES)
def env(request) -> Environment:
    return ENVIRONMENTS[request.param]()


def test_decisions_of_construct_the_same_state(env):
    states = uniform_states(env, 4, generator=torch.Generator().manual_seed(1))
    for index in range(4):
        decisions = {decision.name: decision for decision in decisions_of(env, states[index : index + 1])}

        def choose(name: str, size: int, decisions=decisions) -> int:
            assert decisions[name].num_choices == size
            return decisions[name].choice

        state = construct(env, choose)
        assert env.identify(state).tolist() == env.identify(states[index : index + 1]).tolist()


def test_construct_replaces_illegal_choices(env):
    source, sizes, codes = random.Random(0), {}, set()
    for _ in range(8):

        def choose(name: str, size: int) -> int:
            assert sizes.setdefault(name, size) == size, "one name, one number of choices"
            return source.randrange(size)

        state = construct(env, choose)
        assert bool(env.forward_masks(state).masks[GraphActionType.Stop].all())
        codes.add(int(env.identify(state)[0]))
    assert len(codes) > 1
