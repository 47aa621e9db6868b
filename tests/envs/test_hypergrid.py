"""Hypergrids: number of states and trajectories, terminal objects, and errors."""

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.config import EnvConfig, HypergridConfig
from gflownet.envs.slots import HypergridContext, HypergridEnv
from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import IllegalAction


@pytest.mark.parametrize(("num_dims", "side"), [(1, 2), (2, 8), (3, 4), (4, 3)])
def test_hypergrid_every_cell_is_a_terminal_state(num_dims, side):
    graph = enumerate_states(HypergridEnv(num_dims, side))
    assert len(graph) == len(graph.terminal) == side**num_dims
    coordinates = graph.states.node_attr[..., 0].long() + 1
    assert torch.equal(graph.level, coordinates.sum(1))
    # Along each dimension, every cell except the last has one move.
    assert int((~graph.stops).sum()) == num_dims * (side - 1) * side ** (num_dims - 1)


def raise_to(env: HypergridEnv, coordinate: int, dim: int = 0) -> GraphAction:
    return GraphAction(Kind.SetNodeAttr, source=dim, attribute="coordinate", value=coordinate)


def test_hypergrid_terminal_object_holds_coordinates():
    env = HypergridEnv(2, 8)
    states = env.initial_states(1)
    assert env.terminal(states, 0).values == ("0/7", "0/7")
    for dim, coordinate in ((1, 1), (0, 1), (1, 2)):
        states = env.step(states, env.encode_batch([raise_to(env, coordinate, dim)]))
    assert env.terminal(states, 0).values == ("1/7", "2/7")


@pytest.mark.parametrize(("coordinate", "legal"), [(1, True), (2, False), (7, False)])
def test_hypergrid_raises_a_coordinate_by_one(coordinate, legal):
    env = HypergridEnv(2, 8)
    action = env.encode_batch([raise_to(env, coordinate)])
    if legal:
        assert env.terminal(env.step(env.initial_states(1), action), 0)["x0"] == "1/7"
    else:
        with pytest.raises(IllegalAction, match="a coordinate is raised by one at a time"):
            env.step(env.initial_states(1), action)


def test_hypergrid_lowering_zero_coordinate_is_illegal():
    env = HypergridEnv(2, 8)
    lower = env.encode_batch([GraphAction(Kind.RemoveNodeAttr, source=0, attribute="coordinate")])
    with pytest.raises(IllegalAction, match="the coordinate is 0"):
        env.step(env.initial_states(1), lower)


def test_hypergrid_context_from_config():
    config = EnvConfig(hypergrid=HypergridConfig(num_dims=3, side=4))
    env = HypergridContext.from_config(config, input_sizes=(), output_sizes=(), num_cond_dim=1).env
    assert isinstance(env, HypergridEnv)
    assert len(enumerate_states(env)) == 64


@pytest.mark.parametrize(("num_dims", "side"), [(0, 8), (2, 1)])
def test_hypergrid_invalid_sizes_raise(num_dims, side):
    with pytest.raises(ValueError, match=rf"expected num_dims >= 1 and side >= 2, got {num_dims} and {side}"):
        HypergridEnv(num_dims, side)
