"""Sampling temperature, and backward trajectories from a learned P_B."""

from collections import Counter

import pytest
import torch

from gflownet.certificate.exact import enumerate_states, policy_log_prob, terminating_distribution
from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.trajectory import Origin
from tests.contracts.environments import ENVIRONMENTS
from tests.data.policies import keys, opinionated, unconditional
from tests.oracles.backward_actions import backward_scores
from tests.oracles.chi_square import p_value

NUM = 1_000


@pytest.mark.parametrize(("temperature", "epsilon"), [(1.0, 0.0), (0.4, 0.0), (2.5, 0.3)])
def test_exploration_temperature_before_uniform_mixture(temperature, epsilon):
    env = GraphBuildingEnv(["a", "b"], max_nodes=3)
    context, policy = opinionated(env)
    graph = enumerate_states(env)

    @torch.no_grad()
    def score(states, temperature, epsilon):
        categorical, _ = policy(context.to_batch(states), torch.zeros(len(states), 1))
        owner, log_p = categorical.log_probs()
        weights = (log_p.double() / temperature).exp()
        share = weights / torch.zeros(len(states), dtype=torch.float64).index_add(0, owner, weights)[owner]
        return owner, ((1 - epsilon) * share + epsilon / torch.bincount(owner)[owner]).log()

    def distribution(*exploration):
        log_prob = policy_log_prob(graph, lambda states: score(states, *exploration))
        return dict(zip(known, terminating_distribution(graph, log_prob)[graph.terminal].tolist(), strict=True))

    known = keys(env, graph.states[graph.terminal])
    generator = torch.Generator().manual_seed(1)
    options = {"random_action_prob": epsilon, "temperature": temperature}
    batch = sample_forward(context, policy, conditioning=unconditional(NUM), generator=generator, **options)
    counts = Counter(keys(env, batch.terminal))
    assert p_value(counts, distribution(temperature, epsilon)) > 1e-3
    assert p_value(counts, distribution(0.4 if temperature == 1.0 else 1.0, epsilon)) < 1e-6
    assert epsilon == 0.0 or p_value(counts, distribution(temperature, 0.0)) < 1e-6


@pytest.mark.parametrize(
    ("name", "dense"),
    [
        ("computation_graph_ordered", True),
        ("computation_graph_ordered", False),
        pytest.param("undirected_attributes", True, marks=pytest.mark.slow),
        pytest.param("directed_attributes", False, marks=pytest.mark.slow),
    ],
)
def test_sample_backward_learned_policy_frequencies(name, dense):
    """Frequencies of intermediate states of backward trajectories against exact probabilities."""
    env = ENVIRONMENTS[name]()
    context, policy = opinionated(env, two_way=True, dense=dense, sharpness=7.0)
    graph, told = enumerate_states(env), unconditional(NUM)
    generator = torch.Generator().manual_seed(2)
    deepest = int(graph.terminal[graph.level[graph.terminal].argmax()])
    ends = graph.states[torch.full((NUM,), deepest)]
    batch = sample_backward(context, ends, conditioning=told, generator=generator, policy=policy)
    uniform = sample_backward(context, ends, conditioning=told, generator=generator)
    assert set(batch.origin.tolist()) == {int(Origin.RESAMPLED)}
    num_ways = env.backward_masks(batch.states).num_actions()
    step, successor = batch.successors()
    assert torch.allclose(batch.log_backward[step], -num_ways[successor].log()), "the log of the uniform one"

    expected = visits(env, graph, context, policy, deepest)
    level = int(graph.level[deepest]) // 2
    middle = {key: p for key, (depth, p) in expected.items() if depth == level}
    assert sum(middle.values()) == pytest.approx(1.0)
    assert len(middle) > 1
    for sampled, follows in ((batch, True), (uniform, False)):
        order = sampled.trajectory.argsort(stable=True)
        starts = torch.bincount(sampled.trajectory).cumsum(0) - torch.bincount(sampled.trajectory)
        passed = Counter(keys(env, sampled.states[order[starts + level]]))
        assert (p_value(passed, middle) > 1e-3) == follows


def visits(env, graph, context, policy, start: int) -> dict[str, tuple[int, float]]:
    score = backward_scores(context, policy, torch.zeros(1))
    mass = {start: 1.0}
    names = keys(env, graph.states)
    position = {name: i for i, name in enumerate(names)}
    for s in sorted(range(len(graph)), key=lambda i: -int(graph.level[i])):
        if mass.get(s, 0.0) == 0 or int(graph.level[s]) == 0:
            continue
        one = graph.states[s : s + 1]
        _, actions = env.backward_masks(one).positions()
        _, log_p = score(one)
        before = env.apply(graph.states[torch.full((len(actions),), s)], actions)
        for name, p in zip(keys(env, before), log_p.exp().tolist(), strict=True):
            mass[position[name]] = mass.get(position[name], 0.0) + mass[s] * p
    return {names[s]: (int(graph.level[s]), p) for s, p in mass.items()}


def test_sample_backward_learned_policy_generator():
    env = ENVIRONMENTS["directed"]()
    context, policy = opinionated(env, two_way=True)
    graph = enumerate_states(env)
    ends = graph.states[graph.terminal[-8:]]
    drawn = []
    for seed, noise in ((1, 0), (1, 5), (2, 0)):
        torch.manual_seed(noise)
        generator = torch.Generator().manual_seed(seed)
        told = unconditional(8)
        drawn.append(sample_backward(context, ends, conditioning=told, generator=generator, policy=policy))
    assert bool(drawn[0].states.equals(drawn[1].states).all())
    assert not bool(drawn[0].states.equals(drawn[2].states).all())
    assert drawn[0][0].log_reward is None
