"""What environments of named places share: identities, and the way back from objects to states."""

import pytest
import torch

from gflownet.envs.bit_sequence import BitSequenceEnv
from gflownet.envs.cell_space import CellEnv
from gflownet.envs.slots import SlotEnv
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphAction, GraphActionType
from gflownet.metrics.exact import enumerate_states
from tests.contracts.environments import ENVIRONMENTS

NAMES = ("hypergrid", "bit_sequence", "cells", "recurrent_stack")


@pytest.mark.parametrize("name", NAMES)
def test_no_two_states_have_one_identity(name):
    env = ENVIRONMENTS[name]()
    states = enumerate_states(env).states
    filled = {tuple(row) for row in states.node_attr.flatten(1).tolist()}
    assert len(filled) == len(states) == len(env.identify(states).unique())
    assert env.num_automorphisms(states) == [1] * len(states)


def test_identities_of_more_places_than_one_number_holds():
    """120 bits take 24 words of 33 values: three numbers, of which each counts."""
    env = BitSequenceEnv(120, 5)
    states = env.initial_states(24 * 33)
    places, values = torch.meshgrid(torch.arange(24), torch.arange(-1, 32), indexing="ij")
    states.node_attr[torch.arange(len(states)), places.flatten(), 0] = values.flatten().to(torch.int8)
    assert len(env.identify(states).unique()) == 24 * 32 + 1


@pytest.mark.parametrize("name", NAMES)
def test_objects_lead_back_to_their_states(name):
    env = ENVIRONMENTS[name]()
    graph = enumerate_states(env)
    terminal = graph.states[graph.terminal]
    objects = [env.terminal(terminal, i) for i in range(len(terminal))]
    again = env.states_of([Assignment.from_dict(candidate.to_dict()) for candidate in objects])
    assert bool(again.equals(terminal).all())


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("hypergrid", ("0/3", "3/3", "4/3"), r"graph 0: expected a coordinate out of .*'3/3'\], got '4/3'"),
        ("bit_sequence", ("00", "01", "2"), r"graph 0: expected a value out of \['00', '01', '10', '11'\], got '2'"),
        ("cells", ("none", "skip", "conv", "pool"), r"graph 0: expected a value out of .*'conv'\], got 'pool'"),
    ],
)
def test_values_and_places_that_are_none_of_its_own_are_named(name, values, message):
    env = ENVIRONMENTS[name]()
    assert isinstance(env, SlotEnv)
    with pytest.raises(ValueError, match=message):
        env.states_of([Assignment(env.vocabulary.node_types, values)])
    with pytest.raises(ValueError, match=r"graph 0: expected places \[.*\], got \['elsewhere'\]"):
        env.states_of([Assignment(("elsewhere",), values[:1])])


def test_an_empty_place_is_no_finished_cell():
    env = ENVIRONMENTS["cells"]()
    assert isinstance(env, CellEnv)
    with pytest.raises(ValueError, match="a place is empty"):
        env.step(env.initial_states(1), env.encode_batch([GraphAction(GraphActionType.Stop)]))
