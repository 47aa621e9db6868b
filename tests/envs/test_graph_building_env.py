"""Graph-building environment: sizes, attributes and removal of nodes."""

import pytest
import torch

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.action import GraphAction, GraphActionType
from gflownet.mdp.states import Attribute
from gflownet.metrics.exact import enumerate_states

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


def test_graph_building_env_attribute_count_matches_hand_count():
    """One or two nodes with one of 2 marks, joined by one of 3 bonds: 2 + 3 * 3 up to isomorphism."""
    env = GraphBuildingEnv(
        ["a"],
        max_nodes=2,
        node_attributes=[Attribute("mark", (0, 1))],
        edge_attributes=[Attribute("bond", (1, 2, 3))],
    )
    graph = enumerate_states(env)
    assert len(graph.terminal) == 2 + 3 * 3
    symmetric = graph.num_automorphisms[graph.terminal] == 2
    assert int(symmetric.sum()) == 2 * 3


def test_remove_node_renumbers_later_nodes():
    env = GraphBuildingEnv(["a", "b", "c"], max_nodes=4)
    states = env.initial_states(1)
    for source, value in ((None, "a"), (0, "b"), (0, "c")):
        states = env.step(states, env.encode_batch([GraphAction(Kind.AddNode, source, value=value)]))
    after = env.step(states, env.encode_batch([GraphAction(Kind.RemoveNode, 1)]))
    assert after.node_type[0].tolist() == [0, 2, -1, -1]
    assert (after.edge_type[0] == 0).nonzero().tolist() == [[0, 1], [1, 0]]
    assert torch.equal(after.num_nodes, torch.tensor([2]))
