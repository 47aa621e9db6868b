"""The MDP of Bayesian structure learning: directed acyclic graphs over named variables, edge by edge.

Deleu et al. 2022, Bayesian structure learning with generative flow networks: a trajectory starts from all variables
without edges, adds edges that close no cycle, and may stop in any state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gflownet.envs.config import EnvConfig
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import GraphStates, GraphVocabulary


class LabelledDAGEnv(Environment):
    """All directed acyclic graphs over `num_nodes` variables, named 0, 1, ...; each name is a node type."""

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
