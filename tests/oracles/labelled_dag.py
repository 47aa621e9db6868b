"""Reference rules of LabelledDAGEnv on networkx graphs."""

import networkx as nx

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from tests.oracles.graph_building import GraphBuildingOracle, NxGraph


class LabelledDAGOracle(GraphBuildingOracle):
    """Directed acyclic graphs over all variables; every one is a terminal state."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__([str(node) for node in range(num_nodes)], max_nodes=num_nodes, directed=True)

    def initial(self) -> NxGraph:
        """Return all variables without edges."""
        graph = nx.DiGraph()
        graph.add_nodes_from((node, {"type": name, "attributes": {}}) for node, name in enumerate(self.node_types))
        return graph

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        return action.action_type == Kind.Stop or super().allows(graph, action)

    def is_state(self, graph: NxGraph) -> bool:
        return len(graph) == self.max_nodes and nx.is_directed_acyclic_graph(graph)
