"""Shared behaviour of slot environments: state identities, conversion of objects to states, and errors."""

from __future__ import annotations

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.config import BitSequenceConfig, EnvConfig, HypergridConfig
from gflownet.envs.slots import BitSequenceContext, BitSequenceEnv, HypergridContext, HypergridEnv, SlotEnv, bits_of
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphAction, GraphActionType
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import IllegalAction
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


def test_cell_env_stop_with_empty_slot_is_illegal():
    env = ENVIRONMENTS["cells"]()
    with pytest.raises(ValueError, match="a place has no value"):
        env.step(env.initial_states(1), env.encode_batch([GraphAction(GraphActionType.Stop)]))


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


@pytest.mark.parametrize(("num_bits", "word_bits"), [(4, 1), (6, 2), (8, 4), (9, 3), (6, 6)])
def test_bit_sequence_states_form_a_tree(num_bits, word_bits):
    env = BitSequenceEnv(num_bits, word_bits)
    graph = enumerate_states(env)
    assert len(graph) == sum(2**length for length in range(0, num_bits + 1, word_bits))
    texts = [bits_of(env.terminal(graph.states, i)) for i in graph.terminal.tolist()]
    assert sorted(texts) == [format(value, f"0{num_bits}b") for value in range(2**num_bits)]
    assert torch.equal(graph.child[~graph.stops].bincount(minlength=len(graph))[1:], torch.ones(len(graph) - 1).long())
    assert graph.num_backward.tolist() == [0] + [1] * (len(graph) - 1)


def write(place: int, word: str) -> GraphAction:
    return GraphAction(Kind.SetNodeAttr, source=place, attribute="word", value=word)


def test_bit_sequence_appends_words_left_to_right_and_removes_last():
    env = BitSequenceEnv(6, 2)
    states = env.initial_states(1)
    with pytest.raises(IllegalAction, match="places are filled from left to right"):
        env.step(states, env.encode_batch([write(1, "01")]))
    states = env.step(states, env.encode_batch([write(0, "01")]))
    with pytest.raises(IllegalAction, match="places are filled from left to right"):
        env.step(states, env.encode_batch([write(0, "11")]))
    states = env.step(states, env.encode_batch([write(1, "11")]))
    with pytest.raises(IllegalAction, match="a place is empty"):
        env.step(states, env.encode_batch([GraphAction(Kind.Stop)]))
    first, last = (env.encode_batch([GraphAction(Kind.RemoveNodeAttr, source=i, attribute="word")]) for i in (0, 1))
    with pytest.raises(IllegalAction, match="the place filled last is emptied first"):
        env.step(states, first)
    assert env.forward_masks(env.step(states, last)).masks[Kind.SetNodeAttr].nonzero()[:, 1].unique().tolist() == [1]
    complete = env.step(states, env.encode_batch([write(2, "00")]))
    assert bits_of(env.terminal(complete, 0)) == "011100"


def test_bit_sequence_context_from_config():
    config = EnvConfig(bit_sequence=BitSequenceConfig(num_bits=8, word_bits=4))
    env = BitSequenceContext.from_config(config, input_sizes=(), output_sizes=(), num_cond_dim=1).env
    assert len(enumerate_states(env).terminal) == 256


@pytest.mark.parametrize(("num_bits", "word_bits"), [(7, 2), (0, 1), (8, 0), (7, 7)])
def test_bit_sequence_invalid_lengths_raise(num_bits, word_bits):
    expected = rf"expected word_bits from 1 to 6 and num_bits a multiple of it, got {word_bits} and {num_bits}"
    with pytest.raises(ValueError, match=expected):
        BitSequenceEnv(num_bits, word_bits)
