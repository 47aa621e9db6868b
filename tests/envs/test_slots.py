"""Shared behaviour of slot environments: state identities, conversion of objects to states, and errors."""

from __future__ import annotations

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.slots import BitSequenceEnv, HypergridEnv, SlotEnv, bits_of
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
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
        ("cells", ("none", "skip", "conv", "pool"), r"graph 0: d: expected a value out of .*'conv'\], got 'pool'"),
    ],
)
def test_slot_env_unknown_values_and_places_raise(name, values, message):
    env = ENVIRONMENTS[name]()
    assert isinstance(env, SlotEnv)
    with pytest.raises(ValueError, match=message):
        env.states_of([Assignment(env.vocabulary.node_types, values)])
    with pytest.raises(ValueError, match=r"graph 0: expected places .*, got .*'elsewhere'"):
        env.states_of([Assignment(("elsewhere",), values[:1])])


def raise_to(env: HypergridEnv, coordinate: int, dim: int = 0) -> GraphAction:
    return GraphAction(Kind.SetNodeAttr, source=dim, attribute="coordinate", value=coordinate)


def test_hypergrid_terminal_object_holds_coordinates():
    env = HypergridEnv(2, 8)
    states = env.initial_states(1)
    assert env.terminal(states, 0).values == ("0/7", "0/7")
    for dim, coordinate in ((1, 1), (0, 1), (1, 2)):
        states = env.step(states, env.encode_batch([raise_to(env, coordinate, dim)]))
    assert env.terminal(states, 0).values == ("1/7", "2/7")


@pytest.mark.parametrize(("num_dims", "side"), [(0, 8), (2, 1)])
def test_hypergrid_invalid_sizes_raise(num_dims, side):
    with pytest.raises(ValueError, match=rf"expected num_dims >= 1 and side >= 2, got {num_dims} and {side}"):
        HypergridEnv(num_dims, side)


@pytest.mark.parametrize(("num_bits", "word_bits"), [(4, 1), (6, 2), (8, 4), (9, 3), (6, 6)])
def test_bit_sequence_states_form_a_tree(num_bits, word_bits):
    env = BitSequenceEnv(num_bits, word_bits)
    graph = enumerate_states(env)
    assert len(graph) == sum(2**length for length in range(0, num_bits + 1, word_bits))
    texts = [bits_of(env.terminal(graph.states, i)) for i in graph.terminal.tolist()]
    assert sorted(texts) == [format(value, f"0{num_bits}b") for value in range(2**num_bits)]
    assert torch.equal(graph.child[~graph.stops].bincount(minlength=len(graph))[1:], torch.ones(len(graph) - 1).long())
    assert graph.num_backward.tolist() == [0] + [1] * (len(graph) - 1)


@pytest.mark.parametrize(("num_bits", "word_bits"), [(7, 2), (0, 1), (8, 0), (7, 7)])
def test_bit_sequence_invalid_lengths_raise(num_bits, word_bits):
    expected = rf"expected word_bits from 1 to 6 and num_bits a multiple of it, got {word_bits} and {num_bits}"
    with pytest.raises(ValueError, match=expected):
        BitSequenceEnv(num_bits, word_bits)
