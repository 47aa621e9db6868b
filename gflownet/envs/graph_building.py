"""The generic graph-building MDP: connected undirected graphs, or directed acyclic graphs with a single source.

Nodes are added one at a time, each hung on a node that is there (the first on nothing); edges and attributes follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import UNSET, Attribute, GraphStates, GraphVocabulary, bridges


class GraphBuildingEnv(Environment):
    """Graphs of `min_nodes` to `max_nodes` typed nodes; terminal once every attribute is set."""

    terminal_type = ColouredGraph

    def __init__(
        self,
        node_types: Sequence[str],
        *,
        max_nodes: int,
        min_nodes: int = 1,
        directed: bool = False,
        node_attributes: Sequence[Attribute] = (),
        edge_attributes: Sequence[Attribute] = (),
    ) -> None:
        if not 1 <= min_nodes <= max_nodes:
            raise ValueError(f"min_nodes: expected 1 to max_nodes={max_nodes}, got {min_nodes}")
        super().__init__(
            GraphVocabulary(
                node_types=tuple(node_types),
                max_nodes=max_nodes,
                directed=directed,
                node_attributes=tuple(node_attributes),
                edge_attributes=tuple(edge_attributes),
            )
        )
        self.min_nodes = min_nodes

    def initial_states(self, num: int) -> GraphStates:
        """Return `num` empty graphs."""
        return GraphStates.empty(num, self.vocabulary)

    def terminal(self, states: GraphStates, index: int) -> ColouredGraph:
        """Return the graph with its types and attributes as colours."""
        return self.coloured_graph(states, index)

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return when a node or an edge may be added, an attribute set, and the graph be finished."""
        num_nodes, exists, has_edge = states.num_nodes, states.exists, states.has_edge
        n = self.vocabulary.max_nodes
        first = torch.arange(n) == 0
        source = exists | ((num_nodes == 0)[:, None] & first)
        rules: Rules = {
            Kind.Stop: [
                Rule(f"the graph needs at least {self.min_nodes} nodes", _graph(num_nodes >= self.min_nodes)),
                Rule("every attribute of every node must be set", _graph(~self._unset_nodes(states).any(1))),
                Rule("every attribute of every edge must be set", _graph(~self._unset_edges(states).flatten(1).any(1))),
            ],
            Kind.AddNode: [
                Rule(f"the graph already has {n} nodes", _graph(num_nodes < n)),
                Rule("the node to hang on is not there", source[:, :, None]),
            ],
            Kind.AddEdge: [
                Rule("both nodes must be there", _pair(exists[:, :, None] & exists[:, None, :])),
                Rule("an edge joins two different nodes", _pair(~torch.eye(n, dtype=torch.bool)[None])),
                Rule("the edge is already there", _pair(~has_edge)),
                self._orientation(states),
            ],
            Kind.SetNodeAttr: [
                Rule("the node is not there", exists[:, :, None]),
                Rule("the attribute is already set", self._per_value(states.node_attr == UNSET, on_nodes=True)),
            ],
            Kind.SetEdgeAttr: [
                Rule("the edge is not there", _pair(has_edge & self._listed())),
                Rule("the attribute is already set", self._per_value(states.edge_attr == UNSET, on_nodes=False)),
            ],
        }
        return rules

    def backward_rules(self, states: GraphStates) -> Rules:
        """Return when a leaf, an edge or an attribute may be taken away so that a legal state remains."""
        has_edge, bare_edges = states.has_edge, (states.edge_attr == UNSET).all(-1)
        node_is_bare = (states.node_attr == UNSET).all(-1)
        edges_are_bare = (bare_edges | ~has_edge).all(1) & (bare_edges | ~has_edge).all(2)
        if self.vocabulary.directed:
            leaf = (has_edge.sum(2) == 0) & (has_edge.sum(1) <= 1)
            spare = (has_edge.sum(1) >= 2)[:, None, :]
            reason = "the target would lose its only way from the source"
        else:
            leaf = has_edge.sum(2) <= 1
            spare = ~bridges(has_edge)
            reason = "the graph would fall apart"
        lonely = (states.num_nodes == 1)[:, None] | (has_edge.any(1) | has_edge.any(2))
        return {
            Kind.RemoveNode: [
                Rule("the node is not there", states.exists[:, :, None]),
                Rule("the node still has attributes", node_is_bare[:, :, None]),
                Rule("the node's edge still has attributes", edges_are_bare[:, :, None]),
                Rule("only a leaf can be removed", (leaf & lonely)[:, :, None]),
            ],
            Kind.RemoveEdge: [
                Rule("the edge is not there", _pair(has_edge & self._listed())),
                Rule("the edge still has attributes", _pair(bare_edges)),
                Rule(reason, _pair(spare)),
            ],
            Kind.RemoveNodeAttr: [Rule("the attribute is not set", states.node_attr != UNSET)],
            Kind.RemoveEdgeAttr: [
                Rule("the edge is not there", _pair(self._listed())),
                Rule("the attribute is not set", states.edge_attr != UNSET),
            ],
        }

    def _listed(self) -> torch.Tensor:
        """Return which pairs are spoken of, [1, N, N]: an undirected edge only as (smaller, larger)."""
        n = self.vocabulary.max_nodes
        every = torch.ones(n, n, dtype=torch.bool)
        return (every if self.vocabulary.directed else every.triu(1))[None]

    def _orientation(self, states: GraphStates) -> Rule:
        if self.vocabulary.directed:
            return Rule("the edge would close a cycle", _pair(~states.reach.transpose(1, 2)))
        return Rule("an undirected edge is written from the smaller to the larger node", _pair(self._listed()))

    def _unset_nodes(self, states: GraphStates) -> torch.Tensor:
        return states.exists & (states.node_attr == UNSET).any(-1)

    def _unset_edges(self, states: GraphStates) -> torch.Tensor:
        return states.has_edge & (states.edge_attr == UNSET).any(-1)

    def _per_value(self, per_attribute: torch.Tensor, *, on_nodes: bool) -> torch.Tensor:
        columns = self.vocabulary.node_columns if on_nodes else self.vocabulary.edge_columns
        return per_attribute[..., [a for a, _ in columns]]


def _graph(condition: torch.Tensor) -> torch.Tensor:
    return condition[:, None, None]


def _pair(condition: torch.Tensor) -> torch.Tensor:
    return condition[..., None]
