"""Shared behaviour of slot environments: state identities, conversion of objects to states, and errors."""

import pytest
import torch

from gflownet.envs.cells import CellEnv
from gflownet.envs.slots import BitSequenceEnv, SlotEnv
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphAction, GraphActionType
from tests.contracts.environments import ENVIRONMENTS


def test_slot_env_identities_are_unique_beyond_64_bits():
    """120 bits take 24 words of 33 values, which need three integers."""
    env = BitSequenceEnv(120, 5)
    states = env.initial_states(24 * 33)
    places, values = torch.meshgrid(torch.arange(24), torch.arange(-1, 32), indexing="ij")
    states.node_attr[torch.arange(len(states)), places.flatten(), 0] = values.flatten().to(torch.int8)
    assert len(env.identify(states).unique()) == 24 * 32 + 1


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("hypergrid", ("0/3", "3/3", "4/3"), r"graph 0: expected a coordinate out of .*'3/3'\], got '4/3'"),
        ("bit_sequence", ("00", "01", "2"), r"graph 0: expected a value out of \['00', '01', '10', '11'\], got '2'"),
        ("cells", ("none", "skip", "conv", "pool"), r"graph 0: expected a value out of .*'conv'\], got 'pool'"),
    ],
)
def test_slot_env_unknown_values_and_places_raise(name, values, message):
    env = ENVIRONMENTS[name]()
    assert isinstance(env, SlotEnv)
    with pytest.raises(ValueError, match=message):
        env.states_of([Assignment(env.vocabulary.node_types, values)])
    with pytest.raises(ValueError, match=r"graph 0: expected places \[.*\], got \['elsewhere'\]"):
        env.states_of([Assignment(("elsewhere",), values[:1])])


def test_cell_env_stop_with_empty_slot_is_illegal():
    env = ENVIRONMENTS["cells"]()
    assert isinstance(env, CellEnv)
    with pytest.raises(ValueError, match="a place is empty"):
        env.step(env.initial_states(1), env.encode_batch([GraphAction(GraphActionType.Stop)]))
