"""A list of graphs as a search space: a few choices lead to exactly the listed graphs.

The graphs are ordered by similarity and get evenly spread codes of digits, so that graphs with a common prefix are
similar. The choices write a code from left to right; each graph has one trajectory.

Letters: B states, M graphs, L digits, V values of a digit, N nodes of the largest graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.envs.slots import SlotEnv
from gflownet.graphs.listed_graphs import Graph, read_listed_graphs
from gflownet.graphs.similarity import label_counts, label_texts, similarity_order
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import GraphDescription
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.labelled_graphs import NO_EDGE, LabelledGraphs
from gflownet.mdp.states import UNSET, Attribute, GraphStates

KEY = "env.catalogue.graphs"


class CatalogueEnv(SlotEnv):
    """Listed graphs, isomorphic ones once, as codes of digits; a trajectory stops when all digits are chosen."""

    def __init__(self, graphs: Sequence[Graph], *, branching: int = 8) -> None:
        """Order the graphs, of one class, and give them codes of digits below `branching`."""
        unique = {graph.canonical_key(): graph for graph in graphs}
        ordered = [unique[key] for key in sorted(unique)]
        order = similarity_order([label_counts(graph.to_dict()) for graph in ordered])
        self.graphs = [ordered[index] for index in order]  # in the order of their codes
        self.terminal_type = type(self.graphs[0])
        num_digits = 1
        while branching**num_digits < len(self.graphs):
            num_digits += 1
        super().__init__([f"choice{i}" for i in range(num_digits)], Attribute("branch", tuple(range(branching))))
        self.branching, self.num_digits = branching, num_digits
        codes = [index * branching**num_digits // len(self.graphs) for index in range(len(self.graphs))]
        self._codes = torch.tensor(codes)  # [M]
        self._position = {graph.canonical_key(): position for position, graph in enumerate(self.graphs)}
        self._graph_at = torch.full((branching**num_digits,), -1).index_put((self._codes,), torch.arange(len(codes)))

    def terminal(self, states: GraphStates, index: int) -> Any:
        return self.graphs[int(self.positions(states[index : index + 1])[0])]

    def positions(self, states: GraphStates) -> Tensor:
        """Return the position in `graphs` of each state, [B] int64, -1 for an incomplete code."""
        digits = states.node_attr[:, :, 0].long()
        is_complete = (digits != UNSET).all(1)
        return torch.where(is_complete, self._graph_at[(digits.clamp(min=0) * self._weights).sum(1)], -1)

    def describe(self, candidate: Any) -> GraphDescription:
        position = self._position.get(candidate.canonical_key())
        if position is None:
            raise ValueError(f"expected one of {len(self.graphs)} listed graphs, got another one")
        code = int(self._codes[position])
        digits = [code // int(weight) % self.branching for weight in self._weights]
        return GraphDescription(range(self.num_digits), [[digit] for digit in digits])

    def forward_rules(self, states: GraphStates) -> Rules:
        digits = states.node_attr[:, :, 0].long()
        num_chosen = (digits != UNSET).sum(1)
        is_next = torch.arange(self.num_digits) == num_chosen[:, None]
        # Weights of the digits within a prefix of this length.
        prefix = (digits.clamp(min=0) * self._weights).sum(1) // self.branching ** (self.num_digits - num_chosen)
        children = prefix[:, None] * self.branching + torch.arange(self.branching)
        row = self._offsets[num_chosen.clamp(max=self.num_digits - 1)][:, None]
        is_listed = self._prefixes[(row + children).clamp(max=len(self._prefixes) - 1)]
        stop = Rule("no listed graph has these choices", (self.positions(states) >= 0)[:, None, None])
        return {
            Kind.Stop: [Rule("a choice is missing", (num_chosen == self.num_digits)[:, None, None]), stop],
            Kind.SetNodeAttr: [
                Rule("choices are made from left to right", is_next[:, :, None]),
                Rule("no listed graph has these choices", is_listed[:, None, :]),
            ],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        num_chosen = (states.node_attr[:, :, 0] != UNSET).sum(1, keepdim=True)
        is_last = (torch.arange(self.num_digits) == num_chosen - 1)[:, :, None]
        return {Kind.RemoveNodeAttr: [Rule("the last choice is taken back first", is_last)]}

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        """Return the listed graphs of complete codes, and graphs without nodes for the others."""
        positions = self.positions(states)
        labels, edges = self._arrays
        is_incomplete = (positions < 0)[:, None, None]
        return LabelledGraphs(
            labels[positions].long().masked_fill(is_incomplete, UNSET),
            edges[positions].long().masked_fill(is_incomplete, NO_EDGE),
            torch.empty(len(states), 0, dtype=torch.int64),
        )

    @cached_property
    def _weights(self) -> Tensor:
        """Return the value of each digit in a code, [L]."""
        return torch.tensor([self.branching ** (self.num_digits - 1 - place) for place in range(self.num_digits)])

    @cached_property
    def _offsets(self) -> Tensor:
        """Return the first place of the prefixes of 1 to L digits in `_prefixes`, [L]."""
        sizes = [self.branching ** (place + 1) for place in range(self.num_digits)]
        return torch.tensor([sum(sizes[:place]) for place in range(self.num_digits)])

    @cached_property
    def _prefixes(self) -> Tensor:
        """Return which prefixes a listed graph has: all of one digit, then all of two digits, and so on; bool."""
        parts = []
        for weight, place in zip(self._weights.tolist(), range(self.num_digits), strict=True):
            part = torch.zeros(self.branching ** (place + 1), dtype=torch.bool)
            part[self._codes // weight] = True
            parts.append(part)
        return torch.cat(parts)

    @cached_property
    def _arrays(self) -> tuple[Tensor, Tensor]:
        """Return the labels [M, N, 1] and the edges [M, N, N] of the listed graphs as numbers, int16."""
        texts = [label_texts(graph.to_dict()) for graph in self.graphs]
        node_texts = sorted({text for nodes, _ in texts for text in nodes.values()})
        edge_texts = sorted({text for _, edges in texts for text in edges.values()})
        label = {text: number for number, text in enumerate(node_texts)}
        code = {text: number for number, text in enumerate(edge_texts, start=NO_EDGE + 1)}
        num_nodes = max(len(nodes) for nodes, _ in texts)
        labels = torch.full((len(texts), num_nodes, 1), UNSET, dtype=torch.int16)
        edges = torch.full((len(texts), num_nodes, num_nodes), NO_EDGE, dtype=torch.int16)
        for index, (of_nodes, of_edges) in enumerate(texts):
            place = {node: position for position, node in enumerate(of_nodes)}
            for node, text in of_nodes.items():
                labels[index, place[node], 0] = label[text]
            for (source, target), text in of_edges.items():
                edges[index, place[source], place[target]] = code[text]
        return labels, edges


class CatalogueContext(GraphBuildingEnvContext):
    """Context of a list of graphs, from the options under `env.catalogue`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> CatalogueEnv:
        catalogue = config.catalogue
        listed = read_listed_graphs(catalogue.graphs, key=KEY)
        return CatalogueEnv([each.graph for each in listed])
