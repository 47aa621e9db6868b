"""Graph building with trajectories of one fixed length."""

import pytest
import torch

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import IllegalAction
from tests.fixed_length_env import FixedLengthGraphBuildingEnv


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(("max_nodes", "num_actions"), [(7, 12), (4, 7), (3, 1)])
def test_fixed_length_env_trajectory_length(max_nodes, num_actions, directed):
    env = FixedLengthGraphBuildingEnv(["a", "b"], max_nodes=max_nodes, num_actions=num_actions, directed=directed)
    generator = torch.Generator().manual_seed(1)
    states = env.initial_states(60)
    for _ in range(num_actions):
        actions = env.forward_masks(states).sample_uniform(generator)  # raises if no action is legal
        assert bool((actions.kind != Kind.Stop).all())
        states = env.step(states, actions)
    actions = env.forward_masks(states).sample_uniform(generator)
    assert bool((actions.kind == Kind.Stop).all())
    assert env.forward_masks(states).num_actions().tolist() == [1] * 60


def test_fixed_length_env_error_messages():
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


@pytest.mark.parametrize("num_actions", [0, 8])
def test_fixed_length_env_invalid_length_raises(num_actions):
    message = rf"^num_actions: expected 1 to 7 with max_nodes=4, got {num_actions}$"
    with pytest.raises(ValueError, match=message):
        FixedLengthGraphBuildingEnv(["a"], max_nodes=4, num_actions=num_actions)
