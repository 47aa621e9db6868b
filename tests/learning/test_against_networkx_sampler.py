"""Batched sampler against a slow sampler on networkx graphs."""

from random import Random
from typing import Any

import networkx as nx
import pytest
import torch

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.policy.config import ModelConfig
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from tests.contracts.environments import ENVIRONMENTS
from tests.fixed_length_env import FixedLengthGraphBuildingEnv
from tests.oracles.networkx_sampler import by_position, data_of, rules_of, sample_with_networkx
from tests.oracles.networkx_states import to_networkx

NUM_TRAJECTORIES = 3
CASES = {
    **ENVIRONMENTS,
    "directed_7": lambda: GraphBuildingEnv(["a", "b"], max_nodes=7, directed=True),
    "fixed_length": lambda: FixedLengthGraphBuildingEnv(["a", "b"], max_nodes=5, num_actions=8),
    "fixed_length_directed": lambda: FixedLengthGraphBuildingEnv(["a"], max_nodes=5, num_actions=6, directed=True),
}
# Other cases of the same class are fast.
REPEATED = {
    *("catalogue_of_cells", "undirected", "undirected_attributes", "directed", "directed_7", "fixed_length", "cells"),
    *("choices", "computation_graph", "computation_graph_two_hidden", "computation_graph_ordered_output"),
    *("operation_graph", "operation_graph_tight", "operation_graph_layouts", "recurrent_stack", "tensor_graph"),
    *("tensor_graph_equal_inputs", "tensor_graph_joined", "operation_graph_positions", "operation_graph_tokens"),
    *("operation_graph_three_ports", "operation_graph_ports", "undirected_fixed_size", "cells_nb101"),
    *("operation_graph_projections", "computation_graph_many_ends", "directed_attributes", "choices_capped"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in REPEATED else name for name in CASES]
)
def test_sampler_matches_networkx_sampler(name):
    context = GraphBuildingEnvContext(CASES[name](), num_cond_dim=2)
    env, oracle = context.env, rules_of(context.env)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        policy = GraphTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
    with torch.no_grad():
        list(policy.heads[GraphActionType.Stop.field_name].parameters())[-1].sub_(2)  # the bias of its logit
    trajectories = sample_with_networkx(
        context, oracle, policy, conditioning=conditioning(), rng=Random(2), count_automorphisms=True
    )
    states, alive, num_steps = env.initial_states(len(trajectories)), list(range(len(trajectories))), 0
    while alive:
        here = [(trajectories[i].graphs[num_steps], trajectories[i].actions[num_steps]) for i in alive]
        for index, (graph, _) in enumerate(here):
            assert nx.utils.graphs_equal(to_networkx(env, states, index), graph)
            expected = data_of(context, graph, by_position(context, oracle.forward(graph)))
            assert_same_data(context.to_data(states, index), expected)
        actions, batch = env.encode_batch([action for _, action in here]), context.to_batch(states)
        with torch.no_grad():
            categorical, _ = policy(batch, conditioning().encoding[alive])
        log_p = categorical.log_prob(context.to_indices(batch, actions))
        assert log_p.tolist() == pytest.approx([trajectories[i].log_forward[num_steps] for i in alive], abs=1e-5)
        after = env.step(states, actions)  # raises if one is illegal
        log_back = (-env.backward_masks(after).num_actions().log()).tolist()
        stops = actions.kind == GraphActionType.Stop
        wanted = [0.0 if stop else back for stop, back in zip(stops.tolist(), log_back, strict=True)]
        assert [trajectories[i].log_backward[num_steps] for i in alive] == pytest.approx(wanted, abs=1e-6)
        assert [len(trajectories[i].actions) == num_steps + 1 for i in alive] == stops.tolist()
        stopped = [trajectories[i].num_automorphisms for i, stop in zip(alive, stops.tolist(), strict=True) if stop]
        assert env.num_automorphisms(states[stops]) == stopped
        states, alive = after[~stops], [i for i, stop in zip(alive, stops.tolist(), strict=True) if not stop]
        num_steps += 1
    assert num_steps > 2


def conditioning() -> Conditioning:
    """Return a conditioning that differs from trajectory to trajectory."""
    encoding = torch.arange(2.0 * NUM_TRAJECTORIES).reshape(-1, 2) / NUM_TRAJECTORIES
    return Conditioning(encoding, torch.ones(NUM_TRAJECTORIES))


def assert_same_data(ours: Any, theirs: Any) -> None:
    assert set(ours.keys()) == set(theirs.keys())
    for name in ours.keys():  # noqa: SIM118 (a Data is no dict)
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name], theirs[name]), name
