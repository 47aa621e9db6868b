"""Graph-building environment: sizes, attributes and removal of nodes."""

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import GraphActionType

Kind = GraphActionType


@pytest.mark.parametrize("min_nodes", [0, 4, -1])
def test_graph_building_env_invalid_min_nodes_raises(min_nodes):
    with pytest.raises(ValueError, match=f"min_nodes: expected 1 to max_nodes=3, got {min_nodes}"):
        GraphBuildingEnv(["a"], max_nodes=3, min_nodes=min_nodes)


def test_graph_building_env_with_one_node_has_three_states():
    env = GraphBuildingEnv(["a", "b"], max_nodes=1)
    graph = enumerate_states(env)
    assert len(graph) == 3
    assert len(graph.terminal) == 2
