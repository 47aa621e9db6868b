"""Trajectory balance with networks: loss, symmetry correction, log Z, learned backward policy and training."""

import math
from dataclasses import replace

import pytest
import torch

from gflownet.data.sampler import Exploration, sample_backward, sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.learner import Learner, LearnerOptions, fit, sampled_rollouts
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.exact import (
    enumerate_states,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.objectives.config import AlgoConfig, OptimizerConfig, TrajectoryBalanceConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from tests.contracts.environments import ENVIRONMENTS
from tests.oracles.networkx_states import num_automorphisms, oracle_of, to_networkx

NUM_COND = 2


@pytest.fixture(scope="module", params=["undirected", "directed_attributes", "computation_graph_two_hidden"])
def rollout(request) -> tuple[GraphBuildingEnvContext, Policy, TrajectoryBatch]:
    """Return a random network and trajectories of the forward and backward samplers with random rewards."""
    env = ENVIRONMENTS[request.param]()
    context = GraphBuildingEnvContext(env, num_cond_dim=NUM_COND)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = GraphTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
    generator = torch.Generator().manual_seed(1)
    conditioning = Conditioning(torch.rand(6, NUM_COND, generator=generator), torch.ones(6))
    graph = enumerate_states(env)
    symmetric = graph.terminal[graph.num_automorphisms[graph.terminal].argsort(descending=True)[:6]]
    batch = TrajectoryBatch.cat(
        [
            sample_forward(context, policy, conditioning=conditioning, generator=generator, random_action_prob=0.2),
            sample_backward(context, graph.states[symmetric], conditioning=conditioning, generator=generator),
        ]
    )
    return context, policy, batch.with_rewards(torch.randn(12, generator=generator))


def make_objective(context: GraphBuildingEnvContext, *, correct_symmetries: bool = True) -> TrajectoryBalance:
    symmetry = "reward" if correct_symmetries else "none"
    config = AlgoConfig(symmetry=symmetry, tb=TrajectoryBalanceConfig(Z_learning_rate=0.03))
    with torch.random.fork_rng():
        torch.manual_seed(2)
        objective = TrajectoryBalance(context, config)
        with torch.no_grad():
            objective.log_z.base.fill_(0.7)
            torch.nn.init.normal_(
                objective.get_parameter("log_z.shape.2.weight")
            )  # a log Z that depends on the conditioning
    return objective


def slow_imbalances(
    context: GraphBuildingEnvContext, policy: Policy, batch: TrajectoryBatch, *, correct_symmetries: bool
) -> list[float]:
    """Return log P_F - log P_B - log R of each trajectory, one state at a time; P_B counts actions in networkx."""
    env, oracle, imbalances = context.env, oracle_of(context.env), []
    for i in range(len(batch)):
        one, total = batch[i], -float(batch.log_reward[i])
        for t in range(len(one.actions)):
            state = one.states[t : t + 1]
            step = one.actions[torch.tensor([t])]
            encoded = context.to_batch(state)
            categorical, _ = policy(encoded, batch.conditioning[i : i + 1])
            total += float(categorical.log_prob(context.to_indices(encoded, step)).detach())
            if t + 1 < len(one.actions):
                after = env.step(state, step)
                total += math.log(len(oracle.backward(to_networkx(env, after, 0))))
        if correct_symmetries:
            total -= math.log(num_automorphisms(to_networkx(env, one.terminal, 0)))
        imbalances.append(total)
    return imbalances


@pytest.mark.parametrize("correct_symmetries", [True, False])
def test_trajectory_balance_loss_matches_step_by_step_oracle(rollout, correct_symmetries):
    context, policy, batch = rollout
    objective = make_objective(context, correct_symmetries=correct_symmetries)
    imbalances = slow_imbalances(context, policy, batch, correct_symmetries=correct_symmetries)
    log_z = objective.log_z(batch.conditioning).tolist()
    loss = objective.loss(policy, batch)
    expected = sum((imbalance + z) ** 2 for imbalance, z in zip(imbalances, log_z, strict=True)) / len(batch)
    assert float(loss.value.detach()) == pytest.approx(expected, rel=1e-4)
    assert loss.metrics["loss"] == pytest.approx(expected, rel=1e-4)
    assert loss.metrics["log_Z"] == pytest.approx(sum(log_z) / len(log_z), abs=1e-5)


def test_symmetry_correction_adds_log_automorphisms_to_reward(rollout):
    context, policy, batch = rollout
    assert bool((batch.log_symmetry > 0).any())
    with_correction, without = (make_objective(context, correct_symmetries=flag) for flag in (True, False))
    corrected = batch.with_rewards(batch.log_reward + batch.log_symmetry)
    expected = float(with_correction.loss(policy, batch).value.detach())
    assert float(without.loss(policy, corrected).value.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(without.loss(policy, batch).value.detach()) != pytest.approx(expected, rel=1e-3)


def test_log_z_depends_on_conditioning_and_starts_at_zero(rollout):
    context, _, batch = rollout
    assert len(set(make_objective(context).log_z(batch.conditioning).tolist())) == 6
    fresh = TrajectoryBalance(context, AlgoConfig())
    assert fresh.log_z(batch.conditioning).tolist() == [0.0] * 12


@pytest.mark.parametrize("correct_symmetries", [True, False])
def test_prepare_sets_log_z_to_estimate_from_first_batch(rollout, correct_symmetries):
    """Z = E[R P_B / P_F], estimated per conditioning."""
    context, policy, batch = rollout
    objective = TrajectoryBalance(context, AlgoConfig(symmetry="reward" if correct_symmetries else "none"))
    one = replace(batch, conditioning=batch.conditioning[:1].repeat(12, 1))
    objective.prepare(policy, one)
    imbalances = slow_imbalances(context, policy, one, correct_symmetries=correct_symmetries)
    weights = [math.exp(-imbalance) for imbalance in imbalances]
    log_z = objective.log_z(one.conditioning).detach()
    assert log_z.tolist() == pytest.approx([math.log(sum(weights) / 12)] * 12, abs=1e-4)
    objective.prepare(policy, batch)  # six conditionings, two trajectories each
    imbalances = slow_imbalances(context, policy, batch, correct_symmetries=correct_symmetries)
    pairs = [math.log((math.exp(-imbalances[i]) + math.exp(-imbalances[i + 6])) / 2) for i in range(6)]
    assert float(objective.log_z.base.detach()) == pytest.approx(sum(pairs) / 6, abs=1e-4)


def test_loss_gradient_reaches_policy_and_log_z(rollout):
    context, policy, batch = rollout
    objective = make_objective(context)
    policy.zero_grad()
    objective.loss(policy, batch).value.backward()
    for name, parameter in objective.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name
    assert sum(float(p.grad.abs().sum()) for p in policy.parameters() if p.grad is not None) > 0
    policy.zero_grad()


def test_log_z_base_has_separate_learning_rate(rollout):
    objective = make_objective(rollout[0])
    base, network = objective.parameter_groups()
    assert base["lr"] == 0.03
    assert base["params"] == [objective.log_z.base]
    assert "lr" not in network
    assert base["weight_decay"] == network["weight_decay"] == 0.0
    assert {id(p) for p in network["params"]} == {id(p) for p in objective.log_z.shape.parameters()}


@pytest.mark.parametrize("policy_class", [GraphTransformerPolicy, DenseTransformerPolicy])
@pytest.mark.parametrize("name", ["undirected", "directed_attributes", "computation_graph_ordered"])
def test_learned_backward_policy_is_evaluated_in_next_state(name, policy_class):
    """log P_F - log P_B - log R per trajectory, with P_B of the reverse action evaluated in the next state."""
    env = ENVIRONMENTS[name]()
    context = GraphBuildingEnvContext(env, num_cond_dim=NUM_COND).with_layout(policy_class.layout).with_backward()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        policy = policy_class(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
    generator = torch.Generator().manual_seed(4)
    conditioning = Conditioning(torch.rand(5, NUM_COND, generator=generator), torch.ones(5))
    fresh = sample_forward(context, policy, conditioning=conditioning, generator=generator, random_action_prob=0.3)
    reverse_sampled = sample_backward(context, fresh.terminal, conditioning=conditioning, generator=generator)
    batch = TrajectoryBatch.cat([fresh, reverse_sampled]).with_rewards(torch.randn(10, generator=generator))
    expected = []
    for i in range(len(batch)):
        steps = (batch.trajectory == i).nonzero().squeeze(1)
        total = -float(batch.log_reward[i]) - float(batch.log_symmetry[i])
        for t, step in enumerate(steps):
            encoded = context.to_batch(batch.states[step : step + 1])
            forward, backward, _ = policy.both(encoded, batch.conditioning[i : i + 1])
            total += float(forward.log_prob(context.to_indices(encoded, batch.actions[step : step + 1])).detach())
            if t:
                reverse = batch.backward[steps[t - 1] : steps[t - 1] + 1]
                before = env.step(batch.states[step : step + 1], reverse)
                previous = env.coloured_graph(batch.states, int(steps[t - 1]))
                assert env.coloured_graph(before, 0) == previous
                total -= float(backward.log_prob(context.to_indices(encoded, reverse, backward=True)).detach())
        expected.append(total)
    objective = TrajectoryBalance(context, AlgoConfig(backward_policy="learned"))
    log_ratio = objective.reader.read(policy, batch).log_ratio()
    assert log_ratio.tolist() == pytest.approx(expected, abs=1e-4)
    log_ratio.square().mean().backward()
    heads = [policy.get_submodule(f"heads.{kind.field_name}") for kind in context.backward_types]
    gradients = [p.grad for head in heads for p in head.parameters() if p.grad is not None]
    assert max(float(g.abs().max()) for g in gradients) > 0


@pytest.mark.parametrize("backward_policy", ["uniform", pytest.param("learned", marks=pytest.mark.slow)])
def test_training_samples_the_reward_with_every_backward_policy(backward_policy):
    """Connected graphs of up to three nodes with random rewards, compared by the exact terminating distribution."""
    env = GraphBuildingEnv(["a", "b"], max_nodes=3)
    context = GraphBuildingEnvContext(env).with_layout(DenseTransformerPolicy.layout)
    context = context.with_backward() if backward_policy == "learned" else context
    graph = enumerate_states(env)
    log_reward = torch.randn(len(graph), generator=torch.Generator().manual_seed(5))
    with torch.random.fork_rng():
        torch.manual_seed(6)
        policy = DenseTransformerPolicy(context, ModelConfig(num_layers=2, num_emb=32))
        objective = TrajectoryBalance(context, AlgoConfig(backward_policy=backward_policy))
    config = OptimizerConfig(learning_rate=3e-3, clip_grad_type="none", schedule="linear", constant_share=0.0)
    options = LearnerOptions(num_steps=250)
    rollouts = sampled_rollouts(
        context,
        policy,
        log_reward=lambda states, _: log_reward[graph.locate(env.identify(states))],
        conditioning=lambda _: Conditioning(torch.zeros(32, 1), torch.ones(32)),
        generator=torch.Generator().manual_seed(7),
        exploration=Exploration(random_action_prob=0.1),
    )
    for _ in fit(Learner(policy, objective, context, config=config, options=options), rollouts, num_steps=250):
        pass

    def score(states):
        with torch.no_grad():
            return policy(context.to_batch(states), torch.zeros(len(states), 1))[0].log_probs()

    sampled = terminating_distribution(graph, policy_log_prob(graph, score))
    target = target_distribution(graph, log_reward)
    assert total_variation(sampled, target) < 0.01
    # The uncorrected target is farther away, so the bound distinguishes the two.
    wrong = target * graph.num_automorphisms
    assert total_variation(sampled, wrong / wrong.sum()) > 0.03
