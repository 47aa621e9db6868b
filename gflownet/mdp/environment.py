"""The contract of an environment: rules of a Markov decision process for a whole batch of graphs at once.

A subclass defines the initial graph and, as named rules, the legal forward and backward actions. Steps, masks, errors
and parents follow from these. Transitions are counted labelled: interchangeable nodes count separately, both forward
and backward.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gflownet.graphs.canonical import Candidate, ColouredGraph
from gflownet.mdp.action import (
    BACKWARD_TYPES,
    FORWARD_TYPES,
    INVALID,
    PAIR_TYPES,
    ActionBatch,
    ActionMasks,
    GraphAction,
    GraphActionType,
)
from gflownet.mdp.categorical import refuse_invalid
from gflownet.mdp.description import GraphDescription, decode_action, described_graph, described_states, encode_action
from gflownet.mdp.isomorphism import CanonicalForms, StateIdentifier, canonical_forms
from gflownet.mdp.states import (
    ABSENT,
    NO_LIMIT,
    UNSET,
    GraphStates,
    GraphVocabulary,
    LabelledGraphs,
    Numbers,
    labelled_graphs,
    setting_numbers,
)
from gflownet.mdp.stepping import GraphEditor

SIZES = ("parameters", "multiply_adds")  # metrics that the environments of networks may cap


class IllegalAction(ValueError):  # noqa: N818 (public name)
    """An action violates a rule of its environment; the message contains the rule."""


class Rule(NamedTuple):
    """A condition of an action type; `holds` broadcasts to [B, N, C], for actions on pairs to [B, N, N, C]."""

    text: str
    holds: Tensor

    @classmethod
    def of_graph(cls, text: str, holds: Tensor) -> Rule:
        """Return the rule of a condition on each graph, [B]."""
        return cls(text, holds[:, None, None])

    @classmethod
    def of_pair(cls, text: str, holds: Tensor) -> Rule:
        """Return the rule of a condition on each pair of nodes, [B, N, N]."""
        return cls(text, holds[..., None])


Rules = Mapping[GraphActionType, Sequence[Rule]]


class Environment(ABC):
    """A Markov decision process that builds graphs; a state is terminal iff Stop is legal."""

    terminal_type: Any  # class of terminal objects; its `from_dict` reads their `to_dict`
    # Whether a copy with its tensors on a GPU steps and masks states there, without waiting for values in between.
    runs_on_device = False

    def __init__(self, vocabulary: GraphVocabulary) -> None:
        self.vocabulary = vocabulary
        self._editor = GraphEditor(vocabulary)
        self._identifier = StateIdentifier(vocabulary, self.coloured_graph)
        self.forward_types = tuple(kind for kind in FORWARD_TYPES if vocabulary.num_columns(kind) > 0)
        self.backward_types = tuple(kind for kind in BACKWARD_TYPES if vocabulary.num_columns(kind) > 0)

    @abstractmethod
    def initial_states(self, num: int) -> GraphStates:
        """Return `num` copies of the initial state, with the environment's own caps."""

    def sizes(self, states: GraphStates) -> Tensor:
        """Return the metrics of `vocabulary.limits` of terminal states, [B, K] int64, as the masks count them.

        An action never lowers a size, so that a trajectory into x is legal under every cap >= its size.
        """
        if self.vocabulary.limits:
            raise NotImplementedError(f"{type(self).__name__}: expected `sizes` for {self.vocabulary.limits}")
        return torch.empty_like(states.limit)

    @property
    def smallest_sizes(self) -> tuple[int, ...]:
        """Return the smallest cap of each of `vocabulary.limits` that a terminal state keeps, K numbers."""
        if self.vocabulary.limits:
            raise NotImplementedError(f"{type(self).__name__}: expected `smallest_sizes` for {self.vocabulary.limits}")
        return ()

    def caps_of(self, states: GraphStates, names: Sequence[str] = SIZES) -> Tensor:
        """Return the caps of metrics, [B, len(names)] int64: the smaller of the state's and the environment's own.

        Masks and features of a budget use them. NO_LIMIT for metrics that are not in `vocabulary.limits`.
        """
        highest = dict(zip(self.vocabulary.limits, self.vocabulary.caps, strict=True))
        of_states = dict(zip(highest, states.limit.unbind(1), strict=True))
        columns = [
            of_states[name].clamp(max=highest[name]) if name in highest else torch.full_like(states.num_nodes, NO_LIMIT)
            for name in names
        ]
        return torch.stack(columns, 1)

    @cached_property
    def limited(self) -> list[int]:
        """The positions in `SIZES` of the metrics in `vocabulary.limits`."""
        return [SIZES.index(name) for name in self.vocabulary.limits]

    def every_state(self) -> GraphStates | None:
        """Return all states, the initial one first, if they are few and have codes of their own; None by default."""
        return None

    @abstractmethod
    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of the forward actions, for every type of `forward_types`."""

    @abstractmethod
    def backward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of the backward actions: legal iff they undo a legal forward action."""

    @abstractmethod
    def terminal(self, states: GraphStates, index: int) -> Candidate:
        """Return the object of terminal state `index`, which a task evaluates."""

    def describe(self, candidate: Any) -> GraphDescription:
        """Return a terminal object in terms of the vocabulary, without checking that actions can build it.

        By default of the results of `coloured_graph`.

        Raises:
            ValueError: it has a node, an edge or a value that is not in the vocabulary.
        """
        if isinstance(candidate, ColouredGraph):
            return described_graph(self.vocabulary, candidate)
        raise ValueError(f"{type(self).__name__} has no `describe`, which is needed to read graphs from elsewhere")

    def is_readable(self, states: GraphStates) -> bool:
        """Return whether `describe` reads the objects of terminal states; True for a `describe` of its own."""
        if type(self).describe is not Environment.describe or not len(states):
            return True
        try:
            self.states_of([self.terminal(states, 0)])
        except ValueError:
            return False
        return True

    def states_of(self, candidates: Sequence[Any]) -> GraphStates:
        """Return the terminal states of B objects: the inverse of `terminal`, up to isomorphism.

        Raises:
            ValueError: an object is not a terminal object of this environment; the message names it by position.
        """
        descriptions = []
        for index, candidate in enumerate(candidates):
            try:
                descriptions.append(self.describe(candidate))
            except ValueError as error:
                raise ValueError(f"graph {index}: {error}") from None
        states = described_states(self.vocabulary, descriptions)
        may_stop = self.forward_masks(states).masks[GraphActionType.Stop].flatten(1).any(1).tolist()
        for index, candidate in enumerate(candidates):
            if not may_stop[index]:
                stop = ActionBatch(*(torch.zeros(len(states), dtype=torch.int64) for _ in range(3)))
                raise ValueError(f"graph {index}: {self._violation(states, index, stop)}")
            if self.terminal(states, index).canonical_key() != candidate.canonical_key():
                raise ValueError(f"graph {index}: expected a terminal object of this environment, got a different one")
        return states

    def ordered_nodes(self, states: GraphStates) -> Tensor:
        """Return which nodes rank their in-edges, [B, N] bool; none by default."""
        return torch.zeros_like(states.exists)

    def remarks(self) -> Sequence[str]:
        """Return lines about the search space that a run prints at its start."""
        return ()

    def forward_masks(self, states: GraphStates) -> ActionMasks:
        """Return which forward actions are legal."""
        return self._masks(states, self.forward_rules(states), self.forward_types)

    def backward_masks(self, states: GraphStates) -> ActionMasks:
        """Return which backward actions are legal."""
        return self._masks(states, self.backward_rules(states), self.backward_types)

    def read_ahead(self, states: GraphStates, actions: ActionBatch) -> tuple[ActionBatch, int]:
        """Return legal forward actions with their counts, and the largest number of nodes after the unfinished ones.

        The only wait for a device in a sampling step.

        Raises:
            FloatingPointError: an action is INVALID.
        """
        num_nodes = states.num_nodes + (actions.kind == int(GraphActionType.AddNode))
        largest = num_nodes.masked_fill_(actions.kind == int(GraphActionType.Stop), 0).amax(0, keepdim=True)
        *kinds, num = torch.cat([actions.kind, largest]).tolist()
        counts = Counter(kinds)
        if counts[INVALID]:
            refuse_invalid(torch.tensor(kinds, device="cpu"))
        return replace(actions, counts=counts), num

    def apply(self, states: GraphStates, actions: ActionBatch) -> GraphStates:
        """Return the states after one action each, without checking that the actions are legal."""
        return self._editor.apply(states, actions, self.ordered_nodes(states))

    def step(self, states: GraphStates, actions: ActionBatch) -> GraphStates:
        """Return the states after one forward or backward action each.

        Raises:
            IllegalAction: an action violates a rule; the message names the graph, the action and the rule.
        """
        legal = self.forward_masks(states).contains(actions) | self.backward_masks(states).contains(actions)
        if not bool(legal.all()):
            index = int((~legal).nonzero()[0])
            raise IllegalAction(f"graph {index}: {self._violation(states, index, actions)}")
        return self.apply(states, actions)

    def reverse(self, states: GraphStates, actions: ActionBatch) -> ActionBatch:
        """Return the actions from `step(states, actions)` back to `states`."""
        return self._editor.undo(states, actions)

    def parents(self, states: GraphStates, index: int) -> list[tuple[GraphAction, GraphStates]]:
        """Return every (forward action, parent state) into state `index`, one per legal backward action."""
        graphs, actions = self.backward_masks(states[index : index + 1]).positions()
        repeated = states[torch.full_like(graphs, index)]
        before, forward = self.apply(repeated, actions), self.reverse(repeated, actions)
        return [(self.decode(before, i, forward), before[i : i + 1]) for i in range(len(actions))]

    def coloured_graph(self, states: GraphStates, index: int) -> ColouredGraph:
        """Return state `index` with types, attributes and orders as colours; nodes stay in order."""
        state = states[index]
        n = int(state.num_nodes)
        types = self.vocabulary.node_types
        node_type, node_attr = state.node_type[:n].tolist(), state.node_attr[:n].tolist()
        nodes = tuple(
            f"{types[t]}|{_values(self.vocabulary.node_attributes, a)}"
            for t, a in zip(node_type, node_attr, strict=True)
        )
        edge_type, edge_attr, order = (x[:n, :n].tolist() for x in (state.edge_type, state.edge_attr, state.edge_order))
        names, attributes = self.vocabulary.edge_types, self.vocabulary.edge_attributes
        edges = {
            (s, t): f"{names[edge_type[s][t]]}|{_values(attributes, edge_attr[s][t])}|{order[s][t]}"
            for s in range(n)
            for t in range(n)
            if edge_type[s][t] != ABSENT and (self.vocabulary.directed or s < t)
        }
        return ColouredGraph(nodes, edges, directed=self.vocabulary.directed)

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        """Return the graphs from which a surrogate computes features, the same for isomorphic states."""
        return labelled_graphs(states)

    def numbers(self, states: GraphStates) -> Numbers:
        """Return numbers of terminal states for a surrogate, besides those of paths and types; the same for isomorphic.

        By default of the attributes of nodes: sums and extremes of those that are numbers, counts of other values.
        """
        return setting_numbers(self.vocabulary, states)

    def num_automorphisms(self, states: GraphStates) -> list[int]:
        """Return the number of automorphisms of each state."""
        return self._identifier.num_automorphisms(states)

    def identify(self, states: GraphStates) -> Tensor:
        """Return a code of each state, [B] int64, equal for two states of this environment iff they are isomorphic.

        Codes of 63 bits may collide: among a million states two do with a probability of 5e-8.
        """
        return self._identifier.identify(states)

    def canonical_forms(self, states: GraphStates) -> CanonicalForms:
        """Return codes and canonical node orders, unknown for the few states that need a long search.

        Nodes at the same place of two isomorphic states correspond, so an action on one state translates to the other
        (`ActionBatch.renamed`).
        """
        return canonical_forms(states)

    def identify_actions(self, states: GraphStates, actions: ActionBatch) -> Tensor:
        """Return a code of each state with an action, [B] int64.

        Two codes are equal iff an isomorphism of the states maps one action onto the other.
        """
        return self._identifier.identify_actions(states, actions)

    @cached_property
    def num_initial_automorphisms(self) -> int:
        """Return the number of automorphisms of the initial state."""
        return self.num_automorphisms(self.initial_states(1))[0]

    def encode(self, action: GraphAction) -> tuple[int, int, int]:
        """Return (kind, row, column) of an action in names.

        AddNode without a source adds the first node of an empty graph (row 0), in environments that start from one.
        The context's `action_to_index` rejects it for graphs that are not empty.

        Raises:
            ValueError: a type, attribute or value that is not in the vocabulary, a node above `max_nodes`, or a
                missing node.
        """
        kind = action.action_type
        is_first_node = kind == GraphActionType.AddNode and self._starts_empty
        if action.source is None and kind != GraphActionType.Stop and not is_first_node:
            raise ValueError(f"{action}: expected a source, got none")
        if action.target is None and kind in PAIR_TYPES:
            raise ValueError(f"{action}: expected a target, got none")
        return encode_action(self.vocabulary, action)

    def encode_batch(self, actions: Sequence[GraphAction]) -> ActionBatch:
        """Return actions in names, one per graph, as a batch."""
        columns = torch.tensor([self.encode(a) for a in actions], dtype=torch.int64).reshape(-1, 3).unbind(1)
        return ActionBatch(*columns)

    def decode(self, states: GraphStates, index: int, actions: ActionBatch) -> GraphAction:
        """Return action `index`, on state `index`, in names."""
        kind = GraphActionType(int(actions.kind[index]))
        action = decode_action(self.vocabulary, kind, int(actions.row[index]), int(actions.column[index]))
        is_first_node = kind == GraphActionType.AddNode and int(states.num_nodes[index]) == 0
        return replace(action, source=None) if is_first_node else action

    @cached_property
    def _starts_empty(self) -> bool:
        """Return whether trajectories start from a graph without nodes."""
        return int(self.initial_states(1).num_nodes[0]) == 0

    def _shape(self, num: int, kind: GraphActionType) -> tuple[int, ...]:
        n, columns = self.vocabulary.max_nodes, self.vocabulary.num_columns(kind)
        if kind == GraphActionType.Stop:
            return (num, 1, 1)
        return (num, n, n, columns) if kind in PAIR_TYPES else (num, n, columns)

    def _masks(self, states: GraphStates, rules: Rules, kinds: Sequence[GraphActionType]) -> ActionMasks:
        masks = {}
        for kind in kinds:
            holds = sorted((rule.holds for rule in rules[kind]), key=Tensor.numel)  # small ones are cheap to combine
            mask = functools.reduce(torch.logical_and, holds)
            shape = self._shape(len(states), kind)
            mask = mask if mask.shape == shape else mask.expand(shape)
            masks[kind] = mask.flatten(1, 2) if kind in PAIR_TYPES else mask
        return ActionMasks(masks)

    def _violation(self, states: GraphStates, index: int, actions: ActionBatch) -> str:
        kind = GraphActionType(int(actions.kind[index]))
        row, column = int(actions.row[index]), int(actions.column[index])
        rows, columns = self.vocabulary.num_rows(kind), self.vocabulary.num_columns(kind)
        if not (0 <= row < rows and 0 <= column < columns):
            return f"{kind.name} has no row {row}, column {column} in this environment"
        one = states[index : index + 1]
        rules = self.forward_rules(one) if kind in FORWARD_TYPES else self.backward_rules(one)
        position = (0, *divmod(row, self.vocabulary.max_nodes), column) if kind in PAIR_TYPES else (0, row, column)
        for rule in rules.get(kind, ()):
            if not bool(rule.holds.expand(self._shape(1, kind))[position]):
                return f"{self.decode(states, index, actions)} is illegal: {rule.text}"
        return f"{self.decode(states, index, actions)} is illegal in this environment"


def _values(attributes: Sequence, row: Sequence[int]) -> str:
    return ",".join("?" if v == UNSET else str(a.values[v]) for a, v in zip(attributes, row, strict=True))
