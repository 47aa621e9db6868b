"""Graph building in which every trajectory takes the same number of actions: what two samplers are compared on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.states import GraphStates


class FixedLengthGraphBuildingEnv(GraphBuildingEnv):
    """Stop is legal after exactly `num_actions` actions, and then nothing else is: `num_actions` + 1 states each.

    No trajectory gets stuck: below `max_nodes` a node can be added, and so many nodes have room for all the edges.
    """

    def __init__(self, node_types: Sequence[str], *, max_nodes: int, num_actions: int, directed: bool = False) -> None:
        most = max_nodes * (max_nodes - 1) // 2 + 1
        if not 1 <= num_actions <= most:
            raise ValueError(f"num_actions: expected 1 to {most} with max_nodes={max_nodes}, got {num_actions}")
        super().__init__(node_types, max_nodes=max_nodes, directed=directed)
        self.num_actions = num_actions

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of graph building, and how many actions may and must have been taken."""
        num_taken = self._num_taken(states)
        unfinished = (num_taken < self.num_actions)[:, None, None]
        text = f"all {self.num_actions} actions have been taken"
        added = {
            Kind.Stop: Rule(f"{self.num_actions} actions have to be taken", ~unfinished),
            Kind.AddNode: Rule(text, unfinished),
            Kind.AddEdge: Rule(text, unfinished[..., None]),
        }
        rules = super().forward_rules(states)
        return {kind: [*of_kind, added[kind]] if kind in added else of_kind for kind, of_kind in rules.items()}

    def _num_taken(self, states: GraphStates) -> Tensor:
        """Return the number of actions that led to each state, [B]: the first adds a node, every other one an edge."""
        num_edges = states.has_edge.flatten(1).sum(1)
        return (num_edges if self.vocabulary.directed else num_edges // 2) + (states.num_nodes > 0)
