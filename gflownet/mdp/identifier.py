"""Identities and symmetries of an environment's states: short searches side by side, long ones one by one, and once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256

import torch
from torch import Tensor

from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.states import GraphStates, GraphVocabulary
from gflownet.mdp.symmetry import UNKNOWN, combine_codes, identify_states

_MOST_SEARCHED = 20_000  # states that are remembered


@dataclass(frozen=True)
class CanonicalForms:
    """Isomorphism codes of B states and a canonical order of their nodes, where a short search finds one.

    Two states of one code are isomorphic: nodes at the same place of the order correspond.
    """

    code: Tensor  # [B] int64
    known: Tensor  # [B] bool, whether code and order are canonical
    order: Tensor  # [B, N] int64, the node at each place; absent nodes keep their places at the end

    def __getitem__(self, index: Tensor) -> CanonicalForms:
        """Return the forms chosen by an index."""
        return CanonicalForms(self.code[index], self.known[index], self.order[index])

    @staticmethod
    def cat(parts: Sequence[CanonicalForms]) -> CanonicalForms:
        """Return the forms of all parts one after another."""
        return CanonicalForms(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(CanonicalForms)))

    def representatives(self) -> Tensor:
        """Return for each state the first isomorphic one, [B] int64; the state itself where its form is not known."""
        position = torch.arange(len(self.code))
        _, owner = self.code.unique(return_inverse=True)
        first = torch.full_like(position, len(position))
        first = first.scatter_reduce(0, owner[self.known], position[self.known], "amin")
        return torch.where(self.known, first[owner], position)

    def isomorphism(self, target: Tensor) -> Tensor:
        """Return for each node of each state the corresponding node of the isomorphic state `target` [B], [B, N]."""
        return self.order[target].gather(1, self.order.argsort(1))


class Identifier:
    """Tells states of one environment apart up to isomorphism."""

    def __init__(
        self, vocabulary: GraphVocabulary, coloured_graph: Callable[[GraphStates, int], ColouredGraph]
    ) -> None:
        self._vocabulary, self._coloured_graph = vocabulary, coloured_graph
        self._searched: dict[bytes, tuple[int, int]] = {}  # identity and number of automorphisms of a state

    def num_automorphisms(self, states: GraphStates) -> list[int]:
        """Return the number of automorphisms of each state."""
        counts = identify_states(states).num_automorphisms.tolist()
        return [count or self._search(states, i)[1] for i, count in enumerate(counts)]

    def canonical_forms(self, states: GraphStates) -> CanonicalForms:
        """Return codes and node orders of the states; symmetric states that need a long search have none."""
        found = identify_states(states)
        colour = found.colour.masked_fill(~states.exists, torch.iinfo(torch.int64).max)
        return CanonicalForms(found.code, found.known, colour.argsort(dim=1, stable=True))

    def identify(self, states: GraphStates) -> Tensor:
        """Return a number for each state, [B] int64, that isomorphic states alone share."""
        return self._codes(states, None)

    def identify_actions(self, states: GraphStates, actions: ActionBatch) -> Tensor:
        """Return a number for each state with an action, [B] int64, that isomorphic ones alone share."""
        return combine_codes(self._codes(states, self._marks(states, actions)), actions.kind, actions.column)

    def _codes(self, states: GraphStates, marks: Tensor | None) -> Tensor:
        found = identify_states(states, marks)
        codes = found.code.clone()
        for i in (found.num_automorphisms == UNKNOWN).nonzero().squeeze(1).tolist():
            codes[i] = self._search(states, i, () if marks is None else marks[i].tolist())[0]
        return codes

    def _marks(self, states: GraphStates, actions: ActionBatch) -> Tensor:
        """Return the nodes that actions are about as marks [B, N]: 1, a directed pair's target 2."""
        marks, n = torch.zeros(states.node_type.shape, dtype=torch.int64), self._vocabulary.max_nodes
        graphs = torch.arange(len(states))
        on_pair = torch.isin(actions.kind, torch.tensor(sorted(PAIR_TYPES)))
        is_stop = actions.kind == int(GraphActionType.Stop)
        marks[graphs, torch.where(on_pair, actions.row // n, actions.row)] = (~is_stop).long()
        marks[graphs[on_pair], actions.row[on_pair] % n] += 2 if self._vocabulary.directed else 1
        return marks

    def _search(self, states: GraphStates, index: int, marks: Sequence[int] = ()) -> tuple[int, int]:
        """Return identity (odd, as no short search has it) and number of automorphisms of a state, searched once."""
        state = states[index]
        n = int(state.num_nodes)
        arrays = (state.node_type[:n], state.node_attr[:n], *(x[:n, :n] for x in (state.edge_type, state.edge_attr)))
        name = b"".join(x.numpy().tobytes() for x in (*arrays, state.edge_order[:n, :n])) + bytes(marks)
        if name not in self._searched:
            graph = self._coloured_graph(states, index)
            if marks:
                colours = zip(marks, graph.node_colours, strict=False)  # marks of what is not there are left out
                graph = replace(graph, node_colours=tuple(f"{mark}|{colour}" for mark, colour in colours))
            form = graph.canonical_form()
            code = int.from_bytes(sha256(form.key.encode()).digest()[:8], "little", signed=True) | 1
            if len(self._searched) >= _MOST_SEARCHED:
                self._searched.pop(next(iter(self._searched)))  # the oldest
            self._searched[name] = code, form.num_automorphisms
        return self._searched[name]
