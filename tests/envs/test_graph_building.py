"""Options of coloured graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.config import ColouredGraphConfig, EnvConfig
from gflownet.envs.graph_building import ColouredGraphContext, GraphBuildingEnv
from gflownet.mdp.action import GraphActionType


def context_of(**options) -> ColouredGraphContext:
    config = EnvConfig(coloured_graph=ColouredGraphConfig(**options))
    return ColouredGraphContext.from_config(config, input_sizes=(), output_sizes=(), num_cond_dim=1)


class Shouting(GraphBuildingEnv):
    def terminal(self, states, index):
        graph = super().terminal(states, index)
        return replace(graph, node_colours=tuple(map(str.upper, graph.node_colours)))


def test_coloured_graph_context_from_config():
    env = context_of(max_nodes=4).env
    assert isinstance(env, GraphBuildingEnv)
    assert not env.vocabulary.directed
    graph = enumerate_states(env)
    terminal = graph.states[graph.terminal]
    assert len(terminal) == 65
    assert env.is_readable(terminal)
    assert not Shouting(["red", "blue"], max_nodes=4).is_readable(terminal), "colours that `describe` does not know"


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
