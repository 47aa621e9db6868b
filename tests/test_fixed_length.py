"""The environment of the sampling benchmark: every trajectory has the length that was asked for."""

import pytest
import torch

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import IllegalAction
from gflownet.metrics.exact import enumerate_states
from scripts.peers.fixed_length import FixedLengthGraphBuildingEnv


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(("max_nodes", "num_actions"), [(7, 12), (12, 24), (4, 7), (3, 1)])
def test_uniform_walks_stop_after_exactly_so_many_actions(max_nodes, num_actions, directed):
    env = FixedLengthGraphBuildingEnv(["a", "b"], max_nodes=max_nodes, num_actions=num_actions, directed=directed)
    generator = torch.Generator().manual_seed(1)
    states = env.initial_states(60)
    for _ in range(num_actions):
        actions = env.forward_masks(states).sample_uniform(generator)  # raises where nothing is legal
        assert bool((actions.kind != Kind.Stop).all())
        states = env.step(states, actions)
    actions = env.forward_masks(states).sample_uniform(generator)
    assert bool((actions.kind == Kind.Stop).all())
    assert env.forward_masks(states).num_actions().tolist() == [1] * 60


@pytest.mark.parametrize("directed", [False, True])
def test_no_state_of_a_small_space_is_stuck(directed):
    """All states, where random walks reach only the likely ones; a backward action undoes some forward action."""
    env = FixedLengthGraphBuildingEnv(["a"], max_nodes=4, num_actions=5, directed=directed)
    graph = enumerate_states(env)
    assert bool((env.forward_masks(graph.states).num_actions() > 0).all())
    for index in range(len(graph)):
        for action, parent in env.parents(graph.states, index):
            env.step(parent, env.encode_batch([action]))  # raises if it is illegal


def test_what_is_too_early_or_too_late_is_named():
    env = FixedLengthGraphBuildingEnv(["a"], max_nodes=4, num_actions=3)
    first, more = GraphAction(Kind.AddNode, value="a"), GraphAction(Kind.AddNode, 0, value="a")
    states = env.initial_states(1)
    for action in (first, more, more):
        if action is not first:
            with pytest.raises(IllegalAction, match=r"Stop\(\) is illegal: 3 actions have to be taken"):
                env.step(states, env.encode_batch([GraphAction(Kind.Stop)]))
        states = env.step(states, env.encode_batch([action]))
    for late in (more, GraphAction(Kind.AddEdge, 1, 2)):
        with pytest.raises(IllegalAction, match="is illegal: all 3 actions have been taken"):
            env.step(states, env.encode_batch([late]))


@pytest.mark.parametrize("num_actions", [0, 23])
def test_a_length_that_the_nodes_have_no_room_for_is_refused(num_actions):
    with pytest.raises(ValueError, match=rf"^num_actions: expected 1 to 22 with max_nodes=7, got {num_actions}$"):
        FixedLengthGraphBuildingEnv(["a"], max_nodes=7, num_actions=num_actions)
