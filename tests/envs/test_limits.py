"""Caps of single trajectories: masks equal those of an environment with the cap as its own, and samples keep them."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.choice_limits import ListedSettings
from gflownet.envs.choice_places import read_places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.operation_graph import OperationGraphContext, OperationGraphEnv
from gflownet.graphs.typed import graph_cost
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.moves import Moves
from gflownet.mdp.states import NO_LIMIT, GraphStates
from gflownet.testing.contract import ContractError
from gflownet.testing.environments import EnvironmentContract, random_walk
from tests.contracts.environments import PLACES, capped_cells, operation_graphs


def cells(parameters: int | None, multiply_adds: int | None) -> ChoicesEnv:
    return capped_cells((parameters, multiply_adds))


def choices(parameters: int | None, multiply_adds: int | None) -> ChoicesEnv:
    places, caps = read_places(PLACES), (parameters, multiply_adds)
    values = {place.name: place.values for place in places.places}
    positions = [(s, [values[name].index(value) for name, value in s.items()]) for s in places.settings()]
    costs = [(s, (1 + sum(p), sum((i + 1) * (2 - x % 2) for i, x in enumerate(p)))) for s, p in positions]
    within = [(s, c) for s, c in costs if all(cap is None or x <= cap for x, cap in zip(c, caps, strict=True))]
    return ChoicesEnv(places, ListedSettings(places, *map(tuple, zip(*within, strict=True)), caps))  # type: ignore[arg-type]


@cache
def networks(parameters: int | None, multiply_adds: int | None, **changes: Any) -> OperationGraphEnv:
    options = {"max_hidden_nodes": 3, "max_edges": 7, **changes}
    return operation_graphs(max_parameters=parameters, max_multiply_adds=multiply_adds, **options)


def projected(parameters: int | None, multiply_adds: int | None) -> OperationGraphEnv:
    return networks(parameters, multiply_adds, inputs=((3, 8, 8), (2, 6, 7)), align="auto", max_edges=9)


@dataclass(frozen=True)
class Space:
    build: Any
    caps: tuple[int | None, int | None]  # the environment's own
    lower: tuple[tuple[int | None, int | None], ...]  # of trajectories


SPACES = {
    "networks": Space(networks, (900, None), ((160, None), (420, None))),
    "networks_both": Space(networks, (900, 30_000), ((420, 4_000),)),
    "projected": Space(projected, (700, None), ((300, None),)),
    "cells": Space(cells, (24, 30), ((14, 30), (24, 15), (17, 20))),
    "cells_one": Space(cells, (24, None), ((12, None), (17, None))),
    "choices": Space(choices, (5, 16), ((2, 16), (5, 9), (3, 12))),
}
CASES = [
    pytest.param(space, lower, id=f"{name}-{lower}", marks=[pytest.mark.slow] * (lower != space.lower[0]))
    for name, space in SPACES.items()
    for lower in space.lower
]


def limit_of(env: Environment, caps: tuple[int | None, int | None]) -> torch.Tensor:
    return torch.tensor([cap for cap in caps if cap is not None])


@pytest.mark.parametrize(("space", "lower"), CASES)
def test_masks_equal_those_of_an_environment_with_this_cap(space, lower):
    env, other = space.build(*space.caps), space.build(*lower)
    limit, own, num_changed = limit_of(env, lower), limit_of(env, space.caps), 0
    for states, actions in random_walk(other, num=30, seed=1):
        limited = states.with_limit(limit)
        for kind, mask in other.forward_masks(states).masks.items():
            assert torch.equal(env.forward_masks(limited).masks[kind], mask)
            num_changed += int((env.forward_masks(states.with_limit(own)).masks[kind] != mask).sum())
        for kind, mask in env.backward_masks(states).masks.items():
            assert torch.equal(env.backward_masks(limited).masks[kind], mask)
        if isinstance(env, OperationGraphEnv) and isinstance(other, OperationGraphEnv):
            features = OperationGraphContext(env).extra_node_features(limited)
            assert torch.equal(features, OperationGraphContext(other).extra_node_features(states))
        moves = actions.kind != GraphActionType.Stop
        assert torch.equal(env.apply(limited[moves], actions[moves]).limit, limited.limit[moves])
    assert num_changed  # the cap matters


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_random_caps_hold(space):
    env = space.build(*space.caps)
    smallest, own = torch.tensor(env.smallest_sizes), torch.tensor(env.vocabulary.caps)
    generator = torch.Generator().manual_seed(2)
    place = torch.rand(256, 1, generator=generator)
    # Caps above the environment's own count as its own. One metric is capped, as a condition does.
    limit = own.repeat(256, 1)
    limit[:, :1] = (smallest[:1] * (own[:1] * 1.5 / smallest[:1]) ** place).long()
    states = uniform_states(env, 256, generator=generator, limit=limit)
    sizes = env.sizes(states)
    assert torch.equal(states.limit, limit)
    assert bool((sizes <= limit.minimum(own)).all())
    assert bool((sizes > limit.amin(0)).any())


def test_sizes_bound_those_of_the_network():
    env = networks(900, 30_000)
    states = uniform_states(env, 200, generator=torch.Generator().manual_seed(0))
    real = [graph_cost(env.terminal(states, i)) for i in range(len(states))]
    sizes, real = env.sizes(states), torch.tensor([[cost.num_parameters, cost.multiply_adds] for cost in real])
    assert bool((real <= sizes).all())
    assert float((real == sizes).all(1).float().mean()) > 0.5


def test_environment_without_caps_has_no_limits():
    for build in (networks, cells, choices):
        env = build(None, None)
        assert env.vocabulary.limits == env.smallest_sizes == ()
        assert env.initial_states(3).limit.shape == env.sizes(env.initial_states(3)).shape == (3, 0)
        assert env.caps_of(env.initial_states(1)).tolist() == [[NO_LIMIT, NO_LIMIT]]


@pytest.mark.parametrize("name", ["networks_small", "cells", "choices"])
def test_limits_keep_the_contract(name):
    env = operation_graphs(max_parameters=420) if name == "networks_small" else SPACES[name].build(*SPACES[name].caps)
    EnvironmentContract(env).check_limits_reach_exactly_what_they_allow()


def test_masks_that_ignore_the_limit_break_the_contract(monkeypatch):
    env = operation_graphs(max_parameters=420)
    caps_of = env.caps_of
    monkeypatch.setattr(env, "caps_of", lambda states, *names: caps_of(env.initial_states(len(states)), *names))
    with pytest.raises(ContractError, match=r"expected the masks to keep a cap, got .* has {'parameters': "):
        EnvironmentContract(env).check_limits_reach_exactly_what_they_allow()


def test_smallest_sizes_are_the_smallest_cap_that_a_network_keeps():
    env = operation_graphs(max_parameters=420)
    cap = torch.tensor(env.smallest_sizes)
    assert len(enumerate_states(env, limit=cap).terminal)
    with pytest.raises(ValueError, match="max_parameters: expected at least 20, the smallest network's, got 19"):
        uniform_states(env, 1, generator=torch.Generator(), limit=cap[None] - 1)


@pytest.mark.parametrize("build", [cells, choices])
def test_caps_that_no_network_keeps_together_are_named(build):
    env = build(24, 30)
    sizes = enumerate_states(env)
    sizes = env.sizes(sizes.states[sizes.terminal])
    pairs = torch.cartesian_prod(*(column.unique() for column in sizes.T))
    kept = (sizes[None] <= pairs[:, None]).all(2).any(1)
    assert not bool(kept.all())
    generator = torch.Generator().manual_seed(0)
    assert bool(
        (env.sizes(uniform_states(env, int(kept.sum()), generator=generator, limit=pairs[kept])) <= pairs[kept]).all()
    )
    with pytest.raises(
        ValueError, match=r"expected a network with at most \d+ parameters and \d+ multiply_adds, got none"
    ):
        uniform_states(env, 1, generator=generator, limit=pairs[~kept][:1])


def test_moves_from_states_of_capped_trajectories_are_those_of_the_environment():
    env = networks(900, None)
    states = uniform_states(env, 40, generator=torch.Generator().manual_seed(0))
    own, capped = (Moves.of(env, each, torch.Generator().manual_seed(1)) for each in (states, at_size(env, states)))
    assert all(torch.equal(own.edits[move], capped.edits[move]) for move in own.edits)
    inside = env.forward_masks(at_size(env, states)).without_stop().num_actions().sum()
    assert inside < env.forward_masks(states).without_stop().num_actions().sum(), "else the caps would exclude nothing"


def at_size(env: Environment, states: GraphStates) -> GraphStates:
    return states.with_limit(env.sizes(states))
