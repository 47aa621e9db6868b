"""Environments whose states are named places, each empty or with a value: no edges, no symmetries.

The hypergrid (Bengio et al. 2021): starting at the origin, each step raises one coordinate by one. Bit sequences
(Malkin et al. 2022, section 5.3): a fixed number of words is written from left to right.

Letters: B states, N places, V values; D dimensions of a grid, H coordinates of each; L words of k bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import GraphDescription, position_of
from gflownet.mdp.environment import SIZES, Environment, Rule, Rules
from gflownet.mdp.isomorphism import CanonicalForms, combine_codes
from gflownet.mdp.states import UNSET, Attribute, GraphStates, GraphVocabulary, Group, Numbers, ordered

_MAX_STATES = 8_192  # that are listed; the number of assignments is at most this
Caps = tuple[int | None, int | None]  # of `SIZES`; None: no cap
_BITS = 62  # bits of a code into which places are packed


class SlotEnv(Environment):
    """Each place is a node with its own type, present from the start; an action sets its one attribute."""

    terminal_type = Assignment
    runs_on_device = True

    def __init__(self, names: Sequence[str], attribute: Attribute, caps: Caps = (None, None)) -> None:
        known = {name: cap for name, cap in zip(SIZES, caps, strict=True) if cap is not None}
        super().__init__(
            GraphVocabulary(
                node_types=tuple(names),
                max_nodes=len(names),
                directed=True,
                node_attributes=(attribute,),
                limits=tuple(known),
                caps=tuple(known.values()),
            )
        )
        self.forward_types = (Kind.Stop, Kind.SetNodeAttr)
        self.backward_types = (Kind.RemoveNodeAttr,)
        self.values = attribute.values
        self._places_per_code = max(1, int(_BITS / torch.tensor(len(self.values) + 1.0).log2()))

    def initial_states(self, num: int) -> GraphStates:
        return GraphStates.with_nodes(num, self.vocabulary, self.vocabulary.max_nodes)

    def every_state(self) -> GraphStates | None:
        """Return all states that actions reach if they are few, None also where isomorphic ones have one code."""
        if (len(self.values) + 1) ** self.vocabulary.max_nodes > _MAX_STATES:
            return None
        levels = [self.initial_states(1)]
        codes = self.identify(levels[0])
        while len(levels[-1]):
            graph, actions = self.forward_masks(levels[-1]).without_stop().positions()
            after = self.apply(levels[-1][graph], actions)  # no state is on two levels: each fills one place more
            distinct, owner = SlotEnv.identify(self, after).unique(return_inverse=True)
            levels.append(after[torch.empty_like(distinct).scatter_(0, owner, torch.arange(len(owner)))])
            codes = torch.cat([codes, self.identify(levels[-1])])
            if len(codes.unique()) < len(codes):
                return None
        return GraphStates.cat(levels)

    def terminal(self, states: GraphStates, index: int) -> Assignment:
        filled = states.node_attr[index, :, 0].tolist()
        return Assignment(self.vocabulary.node_types, tuple(self.shown(value) for value in filled))

    def shown(self, position: int) -> int | str:
        """Return the value at a position of the vocabulary as shown by a terminal object."""
        value = self.values[position]
        return value if isinstance(value, int) else str(value)

    def describe(self, candidate: Assignment) -> GraphDescription:
        if candidate.names != self.vocabulary.node_types:
            raise ValueError(f"expected places {list(self.vocabulary.node_types)}, got {list(candidate.names)}")
        places = range(self.vocabulary.max_nodes)
        return GraphDescription(places, [[self.position(candidate.values[place])] for place in places])

    def position(self, value: int | float | str | bool) -> int:
        """Return the position of a shown value in the vocabulary."""
        return position_of(self.values, value, "value")

    def numbers(self, states: GraphStates) -> Numbers:
        """Return the rank of the value of each place with numbers, and which value each other place has."""
        columns: Numbers = []
        for place, name in enumerate(self.vocabulary.node_types):
            index = states.node_attr[:, place, 0].long()
            positions, values = self.offered(place)
            numbers = ordered(values)
            if numbers is None:
                columns += [
                    (f"{name} is {v}", Group.PLACES, index == at) for at, v in zip(positions, values, strict=True)
                ]
                continue
            rank = torch.full((len(self.values) + 1,), torch.nan, dtype=torch.float64)  # the last one: no value
            rank[torch.tensor(positions)] = numbers.argsort().argsort().double()
            columns.append((name, Group.SETTINGS, rank[index]))
            columns.append((f"{name} exists", Group.PLACES, index != UNSET))
        return columns

    def offered(self, place: int) -> tuple[Sequence[int], Sequence[Any]]:
        """Return the values that a place may have, and their positions in the vocabulary."""
        return range(len(self.values)), self.values

    def filled(self, states: GraphStates) -> Tensor:
        """Return which places have a value, [B, N] bool."""
        return states.node_attr[:, :, 0] != UNSET

    def identify(self, states: GraphStates) -> Tensor:
        """Return a code for each state, [B] int64, equal for equal states."""
        digits = states.node_attr[..., 0].long() + 1
        parts = zip(
            digits.split(self._places_per_code, 1), self._code_weights.split(self._places_per_code), strict=True
        )
        return combine_codes(*((part * weights).sum(1) for part, weights in parts))

    @cached_property
    def _code_weights(self) -> Tensor:
        """Return the weight of each place in its code, [N] int64."""
        base, places = len(self.values) + 1, range(self.vocabulary.max_nodes)
        return torch.tensor([base ** (place % self._places_per_code) for place in places], dtype=torch.int64)

    def canonical_forms(self, states: GraphStates) -> CanonicalForms:
        counts = torch.ones(len(states), dtype=torch.int64)
        return CanonicalForms(
            self.identify(states), counts, torch.arange(states.exists.shape[1]).repeat(len(states), 1)
        )

    def num_automorphisms(self, states: GraphStates) -> list[int]:
        return [1] * len(states)


class HypergridEnv(SlotEnv):
    """D coordinates from 0 to H - 1; a trajectory may stop anywhere. An empty place is coordinate 0."""

    def __init__(self, num_dims: int, side: int) -> None:
        if num_dims < 1 or side < 2:
            raise ValueError(f"hypergrid: expected num_dims >= 1 and side >= 2, got {num_dims} and {side}")
        names = [f"x{dim}" for dim in range(num_dims)]
        super().__init__(names, Attribute("coordinate", tuple(range(1, side)), counted=True))
        self.side = side

    def shown(self, position: int) -> str:
        """Return the coordinate over the largest one, so that a terminal object determines its reward."""
        return f"{position + 1}/{self.side - 1}"

    def position(self, value: int | str) -> int:
        """Return the coordinate as stored in a state."""
        return position_of([self.shown(position) for position in range(-1, self.side - 1)], value, "coordinate") - 1

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of raising a coordinate; Stop is always legal."""
        is_next = torch.arange(self.side - 1) == states.node_attr[:, :, :1] + 1
        return {
            Kind.Stop: [Rule("a trajectory may stop anywhere", torch.ones(1, 1, 1, dtype=torch.bool))],
            Kind.SetNodeAttr: [Rule("a coordinate is raised by one at a time", is_next)],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        return {Kind.RemoveNodeAttr: [Rule("the coordinate is 0", states.node_attr >= 0)]}


class HypergridContext(GraphBuildingEnvContext):
    """Context of hypergrids, from the options under `env.hypergrid`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> HypergridEnv:
        grid = config.hypergrid
        return HypergridEnv(grid.num_dims, grid.side)


MAX_WORD_BITS = 6  # a state stores a word in seven bits


class BitSequenceEnv(SlotEnv):
    """Sequences of `num_bits` bits in words of `word_bits`, from left to right; a trajectory stops after the last."""

    def __init__(self, num_bits: int, word_bits: int) -> None:
        if not 1 <= word_bits <= MAX_WORD_BITS or num_bits < 1 or num_bits % word_bits:
            raise ValueError(
                f"bit_sequence: expected word_bits from 1 to {MAX_WORD_BITS} and num_bits a multiple of it, "
                f"got {word_bits} and {num_bits}"
            )
        words = tuple(format(word, f"0{word_bits}b") for word in range(2**word_bits))
        super().__init__([f"word{i}" for i in range(num_bits // word_bits)], Attribute("word", words))

    def forward_rules(self, states: GraphStates) -> Rules:
        filled = self.filled(states)
        num_filled = filled.sum(1, keepdim=True)
        is_next = (torch.arange(self.vocabulary.max_nodes) == num_filled)[:, :, None]
        return {
            Kind.Stop: [Rule.of_graph("a place is empty", filled.all(1))],
            Kind.SetNodeAttr: [Rule("places are filled from left to right", is_next)],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        num_filled = self.filled(states).sum(1, keepdim=True)
        is_last = (torch.arange(self.vocabulary.max_nodes) == num_filled - 1)[:, :, None]
        return {Kind.RemoveNodeAttr: [Rule("the place filled last is emptied first", is_last)]}


class BitSequenceContext(GraphBuildingEnvContext):
    """Context of bit sequences, from the options under `env.bit_sequence`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> BitSequenceEnv:
        bits = config.bit_sequence
        return BitSequenceEnv(bits.num_bits, bits.word_bits)


def bits_of(sequence: Assignment) -> str:
    """Return a finished sequence as text of zeros and ones."""
    return "".join(str(word) for word in sequence.values)
