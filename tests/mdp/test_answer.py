"""Outputs for a batch of states equal the outputs for each state alone."""

import pytest
import torch

from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.sampler import sample_forward
from gflownet.mdp import answer as answers
from gflownet.mdp.answer import ask, distinct
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from tests.contracts.environments import ENVIRONMENTS

POLICIES = (DenseTransformerPolicy, GraphTransformerPolicy)
# One environment per layout of the states, in the fast suite.
QUICK = (*("catalogue", "undirected_attributes", "computation_graph_recurrent", "choices", "tensor_graph"),)
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ENVIRONMENTS]


def made(name: str, policy_class, *, num: int = 24) -> tuple[GraphBuildingEnvContext, Policy, TrajectoryBatch]:
    context = GraphBuildingEnvContext(ENVIRONMENTS[name]()).with_layout(policy_class.layout)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = policy_class(context, ModelConfig(num_layers=1, num_emb=8))
    conditioning = Conditioning((torch.arange(num) % 2.0)[:, None], torch.ones(num))
    generator = torch.Generator().manual_seed(1)
    return context, policy, sample_forward(context, policy, conditioning=conditioning, generator=generator)


@pytest.mark.parametrize("policy_class", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_ask_evaluates_equal_states_once(name, policy_class):
    context, policy, sampled = made(name, policy_class)
    conditioning = sampled.conditioning[sampled.trajectory]
    once, each = (ask(context, policy, sampled.states, conditioning, look_for_twins=t) for t in (True, False))
    assert once.num_distinct < each.num_distinct == len(sampled.states)
    assert torch.allclose(once.log_prob(sampled.actions), each.log_prob(sampled.actions), atol=1e-5)
    assert torch.allclose(once.numbers, each.numbers, atol=1e-5)
    for epsilon in (0.0, 0.5):
        ours, theirs = (
            output.sample(torch.Generator().manual_seed(3), random_action_prob=epsilon) for output in (once, each)
        )
        assert bool(context.env.forward_masks(sampled.states).contains(ours).all())
        for mine, other in ((ours.kind, theirs.kind), (ours.row, theirs.row), (ours.column, theirs.column)):
            assert torch.equal(mine, other)
    by_default, without_random = (
        once.sample(torch.Generator().manual_seed(3), **options) for options in ({}, {"random_action_prob": 0.0})
    )
    assert torch.equal(by_default.row, without_random.row)


@pytest.mark.parametrize("policy_class", POLICIES)
def test_ask_pads_large_batches(policy_class, monkeypatch):
    context, policy, sampled = made("directed", policy_class)
    conditioning, outputs, sizes = sampled.conditioning[sampled.trajectory], [], []

    def watched(batch, conditioning):
        sizes.append(len(conditioning))
        return policy(batch, conditioning)

    for large in (10**6, 1):
        monkeypatch.setattr(answers, "_LARGE", large)
        monkeypatch.setattr(answers, "_SIZE_STEP", sizes[0] + 3 if sizes else 1)
        policy.zero_grad()
        output = ask(context, watched, sampled.states, conditioning)
        each = output.log_prob(sampled.actions)
        (each.sum() + output.numbers.sum()).backward()
        gradients = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        outputs.append((each.detach(), output.numbers.detach(), gradients))
        assert output.num_distinct == sizes[0]
    assert sizes[1] == sizes[0] + 3
    for ours, rounded_up in zip(*outputs, strict=True):
        assert torch.allclose(ours, rounded_up, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy_class", POLICIES)
def test_ask_sums_gradients_of_equal_states(policy_class):
    context, policy, sampled = made("directed", policy_class)
    conditioning, gradients = sampled.conditioning[sampled.trajectory], []
    for look_for_twins in (True, False):
        policy.zero_grad()
        ask(context, policy, sampled.states, conditioning, look_for_twins=look_for_twins).log_prob(
            sampled.actions
        ).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_distinct_matches_pairwise_comparison(name):
    """The slow way compares every pair."""
    _, _, sampled = made(name, DenseTransformerPolicy, num=8)
    states, conditioning = sampled.states, sampled.conditioning[sampled.trajectory]
    first, owner = distinct(states, conditioning)
    index = torch.arange(len(states))
    same = torch.stack([states.equals(GraphStates.cat([states[i : i + 1]] * len(states))) for i in index.tolist()])
    same &= (conditioning[:, None] == conditioning[None]).all(2)
    assert torch.equal(owner[:, None] == owner[None], same)
    assert torch.equal(owner[first], torch.arange(len(first)))


def test_distinct_conditioning_with_other_signs():
    """These signs once cancelled out: times a random number, a highest bit leaves only the lowest bits of that."""
    conditioning = torch.ones(2, 40)
    conditioning[1, [2, 4, 7, 11, 15, 16, 18, 21, 30, 31, 33, 34, 39]] = -1
    states = ENVIRONMENTS["undirected"]().initial_states(2)
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert len(distinct(states, conditioning.to(dtype))[0]) == 2
