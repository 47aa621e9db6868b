"""Graph building with trajectories of one fixed length: the environment in which samplers are compared."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.states import GraphStates


class FixedLengthGraphBuildingEnv(GraphBuildingEnv):
    """Graph building in which Stop is legal after exactly `num_actions` actions; then it is the only legal action.

    Every state below `num_actions` has a legal action: a node can be added up to `max_nodes`, and that many nodes have
    room for all the edges.
    """

    def __init__(self, node_types: Sequence[str], *, max_nodes: int, num_actions: int, directed: bool = False) -> None:
        max_actions = max_nodes * (max_nodes - 1) // 2 + 1
        if not 1 <= num_actions <= max_actions:
            raise ValueError(f"num_actions: expected 1 to {max_actions} with max_nodes={max_nodes}, got {num_actions}")
        super().__init__(node_types, max_nodes=max_nodes, directed=directed)
        self.num_actions = num_actions

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of graph building and the rules about the number of actions taken."""
        unfinished = (self._num_taken(states) < self.num_actions)[:, None, None]
        text = f"all {self.num_actions} actions have been taken"
        length_rules = {
            Kind.Stop: Rule(f"{self.num_actions} actions have to be taken", ~unfinished),
            Kind.AddNode: Rule(text, unfinished),
            Kind.AddEdge: Rule(text, unfinished[..., None]),
        }
        rules = super().forward_rules(states)
        return {
            kind: [*of_kind, length_rules[kind]] if kind in length_rules else of_kind for kind, of_kind in rules.items()
        }

    def _num_taken(self, states: GraphStates) -> Tensor:
        """Return the number of actions that led to each state, [B]: the first adds a node, every other one an edge."""
        num_edges = states.has_edge.flatten(1).sum(1)
        return (num_edges if self.vocabulary.directed else num_edges // 2) + (states.num_nodes > 0)
