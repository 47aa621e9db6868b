"""Bit sequences (Malkin et al. 2022, section 5.3): a fixed number of words is written from left to right.

Letters: B states, L words of k bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.envs.slots import SlotEnv
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.states import UNSET, Attribute, GraphStates

MAX_WORD_BITS = 6  # a state stores a word in seven bits


class BitSequenceEnv(SlotEnv):
    """Sequences of `num_bits` bits in words of `word_bits`; a trajectory stops when the last word is written."""

    def __init__(self, num_bits: int, word_bits: int) -> None:
        if not 1 <= word_bits <= MAX_WORD_BITS or num_bits < 1 or num_bits % word_bits:
            raise ValueError(
                f"bit_sequence: expected word_bits from 1 to {MAX_WORD_BITS} and num_bits a multiple of it, "
                f"got {word_bits} and {num_bits}"
            )
        words = tuple(format(word, f"0{word_bits}b") for word in range(2**word_bits))
        super().__init__([f"word{i}" for i in range(num_bits // word_bits)], Attribute("word", words))

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of writing a word: at the first empty place."""
        is_empty = states.node_attr[:, :, 0] == UNSET
        num_written = (~is_empty).sum(1, keepdim=True)
        return {
            Kind.Stop: [Rule("a word is missing", ~is_empty.any(1)[:, None, None])],
            Kind.SetNodeAttr: [Rule("words are written from left to right", (self._places == num_written)[:, :, None])],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        """Return the rule of erasing a word: the last one."""
        num_written = (states.node_attr[:, :, 0] != UNSET).sum(1, keepdim=True)
        is_last = (self._places == num_written - 1)[:, :, None]
        return {Kind.RemoveNodeAttr: [Rule("the word written last is erased first", is_last)]}

    @cached_property
    def _places(self) -> Tensor:
        return torch.arange(self.vocabulary.max_nodes)


class BitSequenceContext(GraphBuildingEnvContext):
    """Context of bit sequences, from the options under `env.bit_sequence`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> BitSequenceEnv:
        """Return the environment; the sizes of the task are not used."""
        bits = config.bit_sequence
        return BitSequenceEnv(bits.num_bits, bits.word_bits)


def bits_of(sequence: Assignment) -> str:
    """Return a finished sequence as text of zeros and ones."""
    return "".join(str(word) for word in sequence.values)
