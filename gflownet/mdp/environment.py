"""The contract of an environment: the rules of the game, for a whole batch of graphs at once.

A subclass says which graphs it starts from and, as named rules, which actions are legal forwards and backwards. Steps,
masks, errors and parents follow. Transitions are counted labelled: interchangeable nodes count apart, on both sides.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gflownet.graphs.canonical import Candidate, ColouredGraph
from gflownet.mdp.action import (
    BACKWARD_TYPES,
    FORWARD_TYPES,
    PAIR_TYPES,
    ActionBatch,
    ActionMasks,
    GraphAction,
    GraphActionType,
)
from gflownet.mdp.description import GraphDescription, described_states, position_of
from gflownet.mdp.identifier import CanonicalForms, Identifier
from gflownet.mdp.states import ABSENT, UNSET, GraphStates, GraphVocabulary
from gflownet.mdp.stepping import GraphEditor


class IllegalAction(ValueError):  # noqa: N818 (reads as what it is)
    """An action broke a rule of its environment; the message names the rule."""


class Rule(NamedTuple):
    """A condition of an action type; `holds` broadcasts to [B, N, C], on pairs to [B, N, N, C]."""

    text: str
    holds: Tensor


Rules = Mapping[GraphActionType, Sequence[Rule]]


class Environment(ABC):
    """A Markov decision process that builds graphs; every terminal state is a state on which Stop is legal."""

    terminal_type: ClassVar[Any]  # the class of terminal objects; its `from_dict` reads what their `to_dict` wrote

    def __init__(self, vocabulary: GraphVocabulary) -> None:
        self.vocabulary = vocabulary
        self._editor = GraphEditor(vocabulary)
        self._identifier = Identifier(vocabulary, self.coloured_graph)
        self.forward_types = tuple(kind for kind in FORWARD_TYPES if vocabulary.num_columns(kind) > 0)
        self.backward_types = tuple(kind for kind in BACKWARD_TYPES if vocabulary.num_columns(kind) > 0)

    @abstractmethod
    def initial_states(self, num: int) -> GraphStates:
        """Return `num` copies of the state every trajectory starts from."""

    @abstractmethod
    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of the forward actions, for every type of `forward_types`."""

    @abstractmethod
    def backward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of the backward actions: what undoes some legal forward action, and nothing else."""

    @abstractmethod
    def terminal(self, states: GraphStates, index: int) -> Candidate:
        """Return the object that terminal state `index` stands for: what a task evaluates."""

    def describe(self, candidate: Any) -> GraphDescription:
        """Return a terminal object in words of the vocabulary; whether it can be built is not asked here.

        Raises:
            ValueError: it has a node, an edge or a value that the vocabulary has not.
        """
        raise ValueError(f"{type(self).__name__} has no `describe`, which reads graphs that it has not built itself")

    def states_of(self, candidates: Sequence[Any]) -> GraphStates:
        """Return the terminal states of B objects: `terminal` the other way round, up to isomorphism.

        Raises:
            ValueError: one of them is none that this environment ends in; the message names it by position.
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
                raise ValueError(f"graph {index}: {self._complaint(states, index, stop)}")
            if self.terminal(states, index).canonical_key() != candidate.canonical_key():
                raise ValueError(f"graph {index}: expected what this environment builds, got more than it can say")
        return states

    def ordered_nodes(self, states: GraphStates) -> Tensor:
        """Return which nodes rank their in-edges, [B, N] bool (none, unless an environment says so)."""
        return torch.zeros_like(states.exists)

    def forward_masks(self, states: GraphStates) -> ActionMasks:
        """Return which forward actions are legal."""
        return self._masks(states, self.forward_rules(states), self.forward_types)

    def backward_masks(self, states: GraphStates) -> ActionMasks:
        """Return which backward actions are legal."""
        return self._masks(states, self.backward_rules(states), self.backward_types)

    def apply(self, states: GraphStates, actions: ActionBatch) -> GraphStates:
        """Return the states after one action each; the actions are taken to be legal."""
        return self._editor.apply(states, actions, self.ordered_nodes(states))

    def step(self, states: GraphStates, actions: ActionBatch) -> GraphStates:
        """Return the states after one forward or backward action each.

        Raises:
            IllegalAction: an action breaks a rule; the message names the graph, the action and the rule.
        """
        legal = self.forward_masks(states).contains(actions) | self.backward_masks(states).contains(actions)
        if not bool(legal.all()):
            index = int((~legal).nonzero()[0])
            raise IllegalAction(f"graph {index}: {self._complaint(states, index, actions)}")
        return self.apply(states, actions)

    def reverse(self, states: GraphStates, actions: ActionBatch) -> ActionBatch:
        """Return the actions that lead from `step(states, actions)` back to `states`."""
        return self._editor.undo(states, actions)

    def parents(self, states: GraphStates, index: int) -> list[tuple[GraphAction, GraphStates]]:
        """Return every (forward action, parent state) that leads to state `index`, one per legal backward action."""
        masks = self.backward_masks(states[index : index + 1])
        graphs, actions = masks.positions()
        repeated = states[torch.full_like(graphs, index)]
        before, forward = self.apply(repeated, actions), self.reverse(repeated, actions)
        return [(self.decode(before, i, forward), before[i : i + 1]) for i in range(len(actions))]

    def coloured_graph(self, states: GraphStates, index: int) -> ColouredGraph:
        """Return state `index` with everything that defines it as colours; nodes stay in order."""
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

    def num_automorphisms(self, states: GraphStates) -> list[int]:
        """Return the number of automorphisms of each state."""
        return self._identifier.num_automorphisms(states)

    def identify(self, states: GraphStates) -> Tensor:
        """Return a number for each state, [B] int64, that two states of this environment share iff they are isomorphic.

        Two others may share it by a collision of 63 bits: of a million states two do with a chance of 5e-8.
        """
        return self._identifier.identify(states)

    def canonical_forms(self, states: GraphStates) -> CanonicalForms:
        """Return isomorphism codes of the states and a canonical order of their nodes, where a short search finds one.

        Nodes at the same place of two isomorphic states correspond, so that an action on one state translates to the
        other (`ActionBatch.renamed`).
        """
        return self._identifier.canonical_forms(states)

    def identify_actions(self, states: GraphStates, actions: ActionBatch) -> Tensor:
        """Return a number for each state with an action, [B] int64, that two share iff they are isomorphic.

        That is, iff an isomorphism of the states maps the one's action onto the other's.
        """
        return self._identifier.identify_actions(states, actions)

    @cached_property
    def num_initial_automorphisms(self) -> int:
        """Return the number of automorphisms of the initial state."""
        return self.num_automorphisms(self.initial_states(1))[0]

    def encode(self, action: GraphAction) -> tuple[int, int, int]:
        """Return (kind, row, column) of an action in words.

        AddNode without a source adds the first node of an empty graph (row 0), in environments that start from one.
        Whether a graph is still empty is not known here: the context's `action_to_index` refuses it where it is not.

        Raises:
            ValueError: a type, attribute or value that the vocabulary does not have, a node no graph has room for, or
                no node where one is needed.
        """
        kind, vocabulary = action.action_type, self.vocabulary
        self._check_ends(action)
        for node in (action.source, action.target):
            if node is not None and not 0 <= node < vocabulary.max_nodes:
                raise ValueError(f"{action}: expected nodes 0 to {vocabulary.max_nodes - 1}, got {node}")
        row, column = action.source or 0, 0
        if kind in PAIR_TYPES:
            row = row * vocabulary.max_nodes + (action.target or 0)
        if kind == GraphActionType.AddNode:
            column = position_of(vocabulary.node_types, action.value, "node type")
        elif kind == GraphActionType.AddEdge:
            column = position_of(vocabulary.edge_types, action.value or vocabulary.edge_types[0], "edge type")
        elif kind in _ATTRIBUTE_TYPES:
            on_nodes = kind in (GraphActionType.SetNodeAttr, GraphActionType.RemoveNodeAttr)
            attributes = vocabulary.node_attributes if on_nodes else vocabulary.edge_attributes
            column = position_of([a.name for a in attributes], action.attribute, "attribute")
            if kind in (GraphActionType.SetNodeAttr, GraphActionType.SetEdgeAttr):
                value = position_of(attributes[column].values, action.value, f"value of {action.attribute}")
                columns = vocabulary.node_columns if on_nodes else vocabulary.edge_columns
                column = columns.index((column, value))
        return int(kind), row, column

    def encode_batch(self, actions: Sequence[GraphAction]) -> ActionBatch:
        """Return one action per graph by position."""
        columns = torch.tensor([self.encode(a) for a in actions], dtype=torch.int64).reshape(-1, 3).unbind(1)
        return ActionBatch(*columns)

    def decode(self, states: GraphStates, index: int, actions: ActionBatch) -> GraphAction:
        """Return action `index`, to be taken in state `index`, in words."""
        kind = GraphActionType(int(actions.kind[index]))
        row, column = int(actions.row[index]), int(actions.column[index])
        vocabulary, n = self.vocabulary, self.vocabulary.max_nodes
        if kind == GraphActionType.Stop:
            return GraphAction(kind)
        source, target = (row // n, row % n) if kind in PAIR_TYPES else (row, None)
        if kind == GraphActionType.AddNode:
            empty = int(states.num_nodes[index]) == 0
            return GraphAction(kind, None if empty else source, value=vocabulary.node_types[column])
        if kind == GraphActionType.AddEdge:
            return GraphAction(kind, source, target, value=vocabulary.edge_types[column])
        if kind not in _ATTRIBUTE_TYPES:
            return GraphAction(kind, source, target)
        on_nodes = kind in (GraphActionType.SetNodeAttr, GraphActionType.RemoveNodeAttr)
        attributes = vocabulary.node_attributes if on_nodes else vocabulary.edge_attributes
        if kind in (GraphActionType.RemoveNodeAttr, GraphActionType.RemoveEdgeAttr):
            return GraphAction(kind, source, target, attribute=attributes[column].name)
        a, v = (vocabulary.node_columns if on_nodes else vocabulary.edge_columns)[column]
        return GraphAction(kind, source, target, attribute=attributes[a].name, value=attributes[a].values[v])

    def _check_ends(self, action: GraphAction) -> None:
        """Raise ValueError unless the action names the nodes that its type acts on."""
        kind = action.action_type
        is_first_node = kind == GraphActionType.AddNode and self._starts_empty
        if action.source is None and kind != GraphActionType.Stop and not is_first_node:
            raise ValueError(f"{action}: expected a source, got none")
        if action.target is None and kind in PAIR_TYPES:
            raise ValueError(f"{action}: expected a target, got none")

    @cached_property
    def _starts_empty(self) -> bool:
        """Return whether the first node of a trajectory is hung on nothing."""
        return int(self.initial_states(1).num_nodes[0]) == 0

    def _shape(self, num: int, kind: GraphActionType) -> tuple[int, ...]:
        n, columns = self.vocabulary.max_nodes, self.vocabulary.num_columns(kind)
        if kind == GraphActionType.Stop:
            return (num, 1, 1)
        return (num, n, n, columns) if kind in PAIR_TYPES else (num, n, columns)

    def _masks(self, states: GraphStates, rules: Rules, kinds: Sequence[GraphActionType]) -> ActionMasks:
        masks = {}
        for kind in kinds:
            mask = functools.reduce(torch.logical_and, [rule.holds for rule in rules[kind]])
            shape = self._shape(len(states), kind)
            mask = mask if mask.shape == shape else mask.expand(shape)
            masks[kind] = mask.flatten(1, 2) if kind in PAIR_TYPES else mask
        return ActionMasks(masks)

    def _complaint(self, states: GraphStates, index: int, actions: ActionBatch) -> str:
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


_ATTRIBUTE_TYPES = (
    GraphActionType.SetNodeAttr,
    GraphActionType.SetEdgeAttr,
    GraphActionType.RemoveNodeAttr,
    GraphActionType.RemoveEdgeAttr,
)


def _values(attributes: Sequence, row: Sequence[int]) -> str:
    return ",".join("?" if v == UNSET else str(a.values[v]) for a, v in zip(attributes, row, strict=True))
