"""Base of environments whose states are named places, each empty or with a value: no edges, no symmetries.

Letters: B states, N places, V values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.description import GraphDescription, position_of
from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import CanonicalForms, combine_codes
from gflownet.mdp.states import Attribute, GraphStates, GraphVocabulary

_BITS = 62  # bits of a code into which places are packed


class SlotEnv(Environment):
    """Each place is a node with its own type, present from the start; an action sets its one attribute."""

    terminal_type = Assignment

    def __init__(self, names: Sequence[str], attribute: Attribute) -> None:
        super().__init__(
            GraphVocabulary(node_types=tuple(names), max_nodes=len(names), directed=True, node_attributes=(attribute,))
        )
        self.forward_types = (Kind.Stop, Kind.SetNodeAttr)
        self.backward_types = (Kind.RemoveNodeAttr,)
        self.values = attribute.values
        self._places_per_code = max(1, int(_BITS / torch.tensor(len(self.values) + 1.0).log2()))

    def initial_states(self, num: int) -> GraphStates:
        """Return `num` states in which every place is empty."""
        return GraphStates.with_nodes(num, self.vocabulary, self.vocabulary.max_nodes)

    def terminal(self, states: GraphStates, index: int) -> Assignment:
        """Return the value of every place."""
        filled = states.node_attr[index, :, 0].tolist()
        return Assignment(self.vocabulary.node_types, tuple(self.shown(value) for value in filled))

    def shown(self, position: int) -> int | str:
        """Return the value at a position of the vocabulary as shown by a terminal object."""
        value = self.values[position]
        return value if isinstance(value, int) else str(value)

    def describe(self, candidate: Assignment) -> GraphDescription:
        """Return an assignment to these places in terms of the vocabulary."""
        if candidate.names != self.vocabulary.node_types:
            raise ValueError(f"expected places {list(self.vocabulary.node_types)}, got {list(candidate.names)}")
        places = range(self.vocabulary.max_nodes)
        return GraphDescription(places, [[self.position(candidate.values[place])] for place in places])

    def position(self, value: int | float | str | bool) -> int:
        """Return the position of a shown value in the vocabulary."""
        return position_of(self.values, value, "value")

    def identify(self, states: GraphStates) -> Tensor:
        """Return a code for each state, [B] int64, equal for equal states."""
        digits = states.node_attr[..., 0].long() + 1
        base = len(self.values) + 1
        codes = []
        for part in digits.split(self._places_per_code, 1):
            weights = torch.tensor([base**i for i in range(part.shape[1])], dtype=torch.int64)
            codes.append((part * weights).sum(1))
        return combine_codes(*codes)

    def canonical_forms(self, states: GraphStates) -> CanonicalForms:
        """Return the identities of the states and their places in order."""
        counts = torch.ones(len(states), dtype=torch.int64)
        return CanonicalForms(
            self.identify(states), counts, torch.arange(states.exists.shape[1]).repeat(len(states), 1)
        )

    def num_automorphisms(self, states: GraphStates) -> list[int]:
        """Return ones: all places have different types."""
        return [1] * len(states)
