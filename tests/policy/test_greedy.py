"""Greedy policies against a reference loop, and their exact distributions on small spaces."""

import math
from itertools import product
from random import Random

import pytest
import torch

from gflownet.certificate.exact import forward_scores, policy_log_prob, terminating_distribution
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.policy.wrappers import GREEDINESS, GreedyPolicy
from tests.objectives.spaces import make_space, rewards_of
from tests.oracles.categorical import legal_logits
from tests.oracles.greedy import best_reachable, greedier
from tests.oracles.tabular import Flows, labelled_flows, tabular, uniform_backward

VARIANTS = tuple(GREEDINESS)


def random_case(rng):
    """Return logits, action values with ties and masks of a few graphs; Stop is always legal."""
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    num_graphs, shapes = rng.randint(1, 4), [(rng.randint(0, 3), rng.randint(1, 3)) for _ in range(2)]
    shapes.append((1, 1))
    logits = [torch.randn(num_graphs, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    values = [(3 * torch.randn(x.shape, generator=generator)).round().double() for x in logits]
    masks = [torch.rand(x.shape, generator=generator) < 0.6 for x in logits]
    masks[-1][:] = True
    return logits, values, masks


def constant_policy(categorical: GraphActionCategorical):
    return lambda batch, conditioning: (categorical, torch.arange(categorical.num_graphs))


def test_greedy_policy_matches_oracle():
    for seed, (variant, p) in enumerate(product(VARIANTS, (0.0, 0.1, 0.25, 1 / 3, 0.5, 0.7, 0.99, 1.0) * 2)):
        check_greedy_policy(*random_case(Random(seed)), variant, p)


def check_greedy_policy(logits, values, masks, variant, p):
    policy, scored = (GraphActionCategorical.dense(x, masks) for x in (logits, values))
    greedy = GreedyPolicy(constant_policy(policy), constant_policy(scored), variant=variant, p=p)
    greedy_categorical, outputs = greedy(None, None)  # type: ignore[arg-type]
    assert outputs.tolist() == list(range(policy.num_graphs))
    owner, log_p = greedy_categorical.log_probs()
    for graph in range(policy.num_graphs):
        nodes = [torch.zeros(x.shape[1], dtype=torch.int64) for x in logits]
        legal, action_values = (
            legal_logits([x[graph] for x in y], [m[graph] for m in masks], nodes, 0) for y in (logits, values)
        )
        expected = greedier(legal, {a: math.log1p(math.exp(v)) for a, v in action_values.items()}, variant, p)
        assert log_p[owner == graph].exp().tolist() == pytest.approx(list(expected.values()), abs=1e-9)


def test_greedy_policy_invalid_arguments_raise():
    with pytest.raises(ValueError, match="variant: expected one of p_greedy, p_quantile, p_of_max, got 'greedy'"):
        GreedyPolicy(constant_policy(None), constant_policy(None), variant="greedy", p=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"p: expected a number in \[0, 1\], got 1.5"):
        GreedyPolicy(constant_policy(None), constant_policy(None), variant="p_greedy", p=1.5)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def solved_space():
    """Return a space, its rewards, the exact policy and the exact Q*."""
    space = make_space("two_coloured_3")
    log_reward = rewards_of(space)
    flows = labelled_flows(space, log_reward, uniform_backward(space))
    best = best_reachable(space, log_reward.exp().tolist())
    before_softplus = {key: math.log(math.expm1(value)) for key, value in best.items()}
    context, policy = tabular(space, flows, backward=False)
    _, values = tabular(space, Flows(flows.log_flow, before_softplus, flows.log_backward), backward=False)
    return space, log_reward, context, policy, values


def sampled(solved_space, variant: str, p: float) -> torch.Tensor:
    space, _, context, policy, values = solved_space
    greedy = GreedyPolicy(policy, values, variant=variant, p=p)
    score = forward_scores(context, greedy, torch.zeros(1))
    return terminating_distribution(space.graph, policy_log_prob(space.graph, score))


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_policy_with_p_one_samples_best_terminal_state(solved_space, variant):
    space, log_reward, *_ = solved_space
    best = space.graph.terminal[log_reward[space.graph.terminal].argmax()]
    assert float(sampled(solved_space, variant, 1.0)[best]) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("variant", ["p_greedy", "p_of_max"])
def test_greedy_policy_mean_reward_increases_with_p(solved_space, variant):
    """True for these rewards; in general, and with p_quantile, the mean may decrease."""
    _, log_reward, *_ = solved_space
    means = [float((sampled(solved_space, variant, p) * log_reward.exp()).sum()) for p in (0.0, 0.3, 0.7, 1.0)]
    assert means == sorted(means)
    assert means[-1] > 1.5 * means[0]


def test_p_of_max_rewards_are_bounded_below(solved_space):
    """Every step keeps at least a share p of the maximum reachable reward."""
    space, log_reward, *_ = solved_space
    is_sampled = sampled(solved_space, "p_of_max", 0.9) > 0
    bound = 0.9 ** (1 + int(space.graph.level.max())) * float(log_reward[space.graph.terminal].exp().max())
    assert float(log_reward[is_sampled].exp().min()) >= bound
    assert float(log_reward[space.graph.terminal].exp().min()) < bound
