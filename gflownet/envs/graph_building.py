"""The generic graph-building MDP: connected undirected graphs, or directed acyclic graphs with a single source.

Nodes are added one at a time, each connected to an existing node (but the first); edges and attributes follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from gflownet.envs.config import EnvConfig
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import UNSET, Attribute, GraphStates, GraphVocabulary

_COLOURS = ("red", "blue")


class GraphBuildingEnv(Environment):
    """Graphs of `min_nodes` to `max_nodes` typed nodes; terminal once every attribute is set."""

    terminal_type = ColouredGraph
    runs_on_device = True

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
        return GraphStates.empty(num, self.vocabulary)

    def terminal(self, states: GraphStates, index: int) -> ColouredGraph:
        return self.coloured_graph(states, index)

    def forward_rules(self, states: GraphStates) -> Rules:
        num_nodes, exists, has_edge = states.num_nodes, states.exists, states.has_edge
        n = self.vocabulary.max_nodes
        rules: dict[Kind, list[Rule]] = {
            Kind.Stop: [Rule.of_graph(f"the graph needs at least {self.min_nodes} nodes", num_nodes >= self.min_nodes)],
            Kind.AddNode: [
                Rule.of_graph(f"the graph already has {n} nodes", num_nodes < n),
                Rule(
                    "the node to hang on is not there", (torch.arange(n) < num_nodes.clamp(min=1)[:, None])[..., None]
                ),
            ],
            Kind.AddEdge: [
                Rule.of_pair("both nodes must be there", exists[:, :, None] & exists[:, None, :]),
                Rule.of_pair("an edge joins two different nodes", ~torch.eye(n, dtype=torch.bool)[None]),
                Rule.of_pair("the edge is already there", ~has_edge),
                Rule.of_pair("the edge would close a cycle", ~states.reach.transpose(1, 2))
                if self.vocabulary.directed
                else Rule.of_pair("an undirected edge is written from the smaller to the larger node", self._listed),
            ],
        }
        if self.vocabulary.node_attributes:
            unset = states.node_attr == UNSET
            complete = ~(exists & unset.any(-1)).any(1)
            rules[Kind.Stop].append(Rule.of_graph("every attribute of every node must be set", complete))
            rules[Kind.SetNodeAttr] = [
                Rule("the node is not there", exists[:, :, None]),
                Rule("the attribute is already set", unset[..., self._editor.node_columns[:, 0]]),
            ]
        if self.vocabulary.edge_attributes:
            unset = states.edge_attr == UNSET
            complete = ~(has_edge & unset.any(-1)).flatten(1).any(1)
            rules[Kind.Stop].append(Rule.of_graph("every attribute of every edge must be set", complete))
            rules[Kind.SetEdgeAttr] = [
                Rule.of_pair("the edge is not there", has_edge & self._listed),
                Rule("the attribute is already set", unset[..., self._editor.edge_columns[:, 0]]),
            ]
        return rules

    def backward_rules(self, states: GraphStates) -> Rules:
        has_edge = states.has_edge
        num_in, num_out = has_edge.sum(1), has_edge.sum(2)
        if self.vocabulary.directed:
            leaf = (num_out == 0) & ((num_in == 1) | (states.num_nodes == 1)[:, None])
            spare = (num_in >= 2)[:, None, :]
            reason = "the target would lose its only way from the source"
        else:
            leaf = (num_out == 1) | (states.num_nodes == 1)[:, None]
            spare = states.num_bridges == 0
            reason = "the graph would fall apart"
        listed = has_edge if self.vocabulary.directed else has_edge & self._listed
        rules: dict[Kind, list[Rule]] = {
            Kind.RemoveNode: [
                Rule("the node is not there", states.exists[:, :, None]),
                Rule("only a leaf can be removed", leaf[:, :, None]),
            ],
            Kind.RemoveEdge: [Rule.of_pair("the edge is not there", listed), Rule.of_pair(reason, spare)],
        }
        if self.vocabulary.node_attributes:
            is_set = states.node_attr != UNSET
            rules[Kind.RemoveNode].append(Rule("the node still has attributes", ~is_set.any(-1, keepdim=True)))
            rules[Kind.RemoveNodeAttr] = [Rule("the attribute is not set", is_set)]
        if self.vocabulary.edge_attributes:
            is_set = states.edge_attr != UNSET
            bare = ~is_set.any(-1)
            has_bare_edges = bare.all(1) & bare.all(2)
            rules[Kind.RemoveNode].append(Rule("the node's edge still has attributes", has_bare_edges[:, :, None]))
            rules[Kind.RemoveEdge].append(Rule.of_pair("the edge still has attributes", bare))
            rules[Kind.RemoveEdgeAttr] = [
                Rule.of_pair("the edge is not there", self._listed),
                Rule("the attribute is not set", is_set),
            ]
        return rules

    @cached_property
    def _listed(self) -> torch.Tensor:
        """Return the mask of listed pairs, [1, N, N]: an undirected edge only as (smaller, larger)."""
        n = self.vocabulary.max_nodes
        every = torch.ones(n, n, dtype=torch.bool)
        return (every if self.vocabulary.directed else every.triu(1))[None]


class ColouredGraphContext(GraphBuildingEnvContext):
    """Context of coloured graphs, from the options under `env.coloured_graph`."""

    @classmethod
    def build_env(
        cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]
    ) -> GraphBuildingEnv:
        """Return the environment; the sizes of the task are not used.

        Raises:
            ValueError: an invalid option.
        """
        options = config.coloured_graph
        return GraphBuildingEnv(_COLOURS, max_nodes=options.max_nodes, directed=options.directed)


class LabelledDAGEnv(Environment):
    """All directed acyclic graphs over `num_nodes` variables, named 0, 1, ...; each name is a node type.

    Bayesian structure learning (Deleu et al. 2022): a trajectory starts from all variables without edges, adds edges
    that close no cycle, and may stop in any state.
    """

    terminal_type = ColouredGraph
    runs_on_device = True

    def __init__(self, num_nodes: int) -> None:
        super().__init__(
            GraphVocabulary(node_types=tuple(map(str, range(num_nodes))), max_nodes=num_nodes, directed=True)
        )
        self.forward_types = (Kind.Stop, Kind.AddEdge)
        self.backward_types = (Kind.RemoveEdge,)

    def initial_states(self, num: int) -> GraphStates:
        return GraphStates.with_nodes(num, self.vocabulary, self.vocabulary.max_nodes)

    def terminal(self, states: GraphStates, index: int) -> ColouredGraph:
        edges = map(tuple, states.has_edge[index].nonzero().tolist())
        return ColouredGraph(self.vocabulary.node_types, dict.fromkeys(edges, "edge"))

    def describe(self, candidate: ColouredGraph) -> GraphDescription:
        if sorted(candidate.node_colours) != sorted(self.vocabulary.node_types):
            raise ValueError(
                f"expected variables {list(self.vocabulary.node_types)}, got {list(candidate.node_colours)}"
            )
        parents = enumerate(parents_of(candidate))
        edges = {(source, target): DescribedEdge() for target, sources in parents for source in sources}
        return GraphDescription(range(self.vocabulary.max_nodes), [], edges)

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of adding an edge; Stop is always legal."""
        n = self.vocabulary.max_nodes
        return {
            Kind.Stop: [Rule("every graph can be finished", torch.ones(1, 1, 1, dtype=torch.bool))],
            Kind.AddEdge: [
                Rule("an edge joins two different nodes", ~torch.eye(n, dtype=torch.bool)[None, :, :, None]),
                Rule("the edge is already there", ~states.has_edge[..., None]),
                Rule("the edge would close a cycle", ~states.reach.transpose(1, 2)[..., None]),
            ],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        return {Kind.RemoveEdge: [Rule("the edge is not there", states.has_edge[..., None])]}


class LabelledDAGContext(GraphBuildingEnvContext):
    """Context of labelled DAGs, from the options under `env.labelled_dag`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> LabelledDAGEnv:
        return LabelledDAGEnv(config.labelled_dag.num_nodes)


def parents_of(graph: ColouredGraph) -> list[list[int]]:
    """Return the parents of each variable, ascending, for any order of the graph's nodes."""
    names = [int(colour) for colour in graph.node_colours]
    parents: list[list[int]] = [[] for _ in names]
    for source, target in graph.edge_colours:
        parents[names[target]].append(names[source])
    return [sorted(names) for names in parents]
