"""Batched sampler against a slow sampler on networkx graphs."""

import math
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
from tests.oracles.networkx_sampler import NetworkxTrajectory, by_position, data_of, rules_of, sample_with_networkx
from tests.oracles.networkx_states import to_networkx

NUM_TRAJECTORIES = 5
CASES = {
    **ENVIRONMENTS,
    "directed_7": lambda: GraphBuildingEnv(["a", "b"], max_nodes=7, directed=True),
    "fixed_length": lambda: FixedLengthGraphBuildingEnv(["a", "b"], max_nodes=5, num_actions=8),
    "fixed_length_directed": lambda: FixedLengthGraphBuildingEnv(["a"], max_nodes=5, num_actions=6, directed=True),
}


@pytest.fixture(scope="module", params=CASES)
def sampled(request) -> tuple[GraphBuildingEnvContext, GraphTransformerPolicy, list[NetworkxTrajectory]]:
    """Return samples of the slow sampler with an untrained network."""
    context = GraphBuildingEnvContext(CASES[request.param](), num_cond_dim=2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        policy = GraphTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
    with torch.no_grad():
        list(policy.heads[GraphActionType.Stop.field_name].parameters())[-1].sub_(2)  # the bias of its logit
    trajectories = sample_with_networkx(
        context, rules_of(context.env), policy, conditioning=told(), rng=Random(2), count_automorphisms=True
    )
    return context, policy, trajectories


def told() -> Conditioning:
    """Return a conditioning that differs from trajectory to trajectory."""
    encoding = torch.arange(2.0 * NUM_TRAJECTORIES).reshape(-1, 2) / NUM_TRAJECTORIES
    return Conditioning(encoding, torch.ones(NUM_TRAJECTORIES))


def test_sampler_matches_networkx_sampler(sampled):
    context, policy, trajectories = sampled
    env, oracle = context.env, rules_of(context.env)
    states, alive, num_steps = env.initial_states(len(trajectories)), list(range(len(trajectories))), 0
    while alive:
        here = [(trajectories[i].graphs[num_steps], trajectories[i].actions[num_steps]) for i in alive]
        for index, (graph, _) in enumerate(here):
            assert nx.utils.graphs_equal(to_networkx(env, states, index), graph)
            same_data(
                context.to_data(states, index), data_of(context, graph, by_position(context, oracle.forward(graph)))
            )
        actions, batch = env.encode_batch([action for _, action in here]), context.to_batch(states)
        with torch.no_grad():
            categorical, _ = policy(batch, told().encoding[alive])
        log_p = categorical.log_prob(context.to_indices(batch, actions))
        assert log_p.tolist() == pytest.approx([trajectories[i].log_forward[num_steps] for i in alive], abs=1e-5)
        after = env.step(states, actions)  # raises if one is illegal
        log_back = (-env.backward_masks(after).num_actions().log()).tolist()
        stops = actions.kind == GraphActionType.Stop
        wanted = [0.0 if stop else back for stop, back in zip(stops.tolist(), log_back, strict=True)]
        assert [trajectories[i].log_backward[num_steps] for i in alive] == pytest.approx(wanted, abs=1e-6)
        assert [len(trajectories[i].actions) == num_steps + 1 for i in alive] == stops.tolist()
        states, alive = after[~stops], [i for i, stop in zip(alive, stops.tolist(), strict=True) if not stop]
        num_steps += 1
    assert num_steps > 2


def same_data(ours: Any, theirs: Any) -> None:
    """Check that two graphs are shown as the same, bit for bit."""
    assert set(ours.keys()) == set(theirs.keys())
    for name in ours.keys():  # noqa: SIM118 (a Data is no dict)
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name], theirs[name]), name


def test_sampler_automorphism_counts_match_networkx(sampled):
    context, _, trajectories = sampled
    env = context.env
    for trajectory in trajectories:
        states = env.initial_states(1)
        for action in trajectory.actions[:-1]:
            states = env.step(states, env.encode_batch([action]))
        assert env.num_automorphisms(states) == [trajectory.num_automorphisms]


def test_networkx_sampler_action_frequencies():
    """The first action of an empty graph, two of which are legal, against their probabilities; 4.5 sigmas wide."""
    context = GraphBuildingEnvContext(GraphBuildingEnv(["a", "b"], max_nodes=1))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        policy = GraphTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
    with torch.no_grad():
        list(policy.heads[GraphActionType.AddNode.field_name].parameters())[-1][0] += 1.5  # likes "a" better
    num = 400
    conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
    trajectories = sample_with_networkx(
        context, rules_of(context.env), policy, conditioning=conditioning, rng=Random(4)
    )
    first = [(t.actions[0].value, math.exp(t.log_forward[0])) for t in trajectories]
    p = dict(first)
    assert sum(p.values()) == pytest.approx(1)
    assert p["a"] > 0.7
    counted = sum(value == "a" for value, _ in first)
    assert abs(counted - num * p["a"]) < 4.5 * math.sqrt(num * p["a"] * p["b"])
    assert all(t.num_automorphisms is None for t in trajectories)
