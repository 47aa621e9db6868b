"""Bit sequences: number of states, order of the words, and errors."""

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.config import BitSequenceConfig, EnvConfig
from gflownet.envs.slots import BitSequenceContext, BitSequenceEnv, bits_of
from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import IllegalAction


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
    with pytest.raises(IllegalAction, match="words are written from left to right"):
        env.step(states, env.encode_batch([write(1, "01")]))
    states = env.step(states, env.encode_batch([write(0, "01")]))
    with pytest.raises(IllegalAction, match="words are written from left to right"):
        env.step(states, env.encode_batch([write(0, "11")]))
    states = env.step(states, env.encode_batch([write(1, "11")]))
    with pytest.raises(IllegalAction, match="a word is missing"):
        env.step(states, env.encode_batch([GraphAction(Kind.Stop)]))
    first, last = (env.encode_batch([GraphAction(Kind.RemoveNodeAttr, source=i, attribute="word")]) for i in (0, 1))
    with pytest.raises(IllegalAction, match="the word written last is erased first"):
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
