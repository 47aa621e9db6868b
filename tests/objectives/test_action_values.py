"""Action values: n-step targets, gradient of the loss, and the values at which the gradient is zero."""

import copy
import math
from typing import Any

import pytest
import torch

from gflownet.mdp.action import GraphActionType
from gflownet.objectives.action_values import action_value_loss, n_step_targets, outcomes
from tests.objectives.spaces import make_batch, make_space, rewards_of
from tests.oracles import greedy as oracle
from tests.oracles.tabular import Classes, Flows, labelled_flows, tabular, uniform_backward

Key = tuple[int, int, bool]  # state, next state, whether it is Stop


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 25])
def test_n_step_targets_match_oracle_in_any_step_order(num_steps):
    generator = torch.Generator().manual_seed(num_steps)
    lengths = [1, 4, 2, 7, 1]
    state_values = [torch.rand(n, generator=generator).tolist() for n in lengths]
    outcome = torch.rand(len(lengths), generator=generator)
    expected = oracle.n_step_targets(state_values, outcome.tolist(), num_steps)
    by_time = sorted((t, i) for i, n in enumerate(lengths) for t in range(n))  # the order of the sampler
    for steps in (by_time, [(t, i) for i, n in enumerate(lengths) for t in range(n)]):
        trajectory = torch.tensor([i for _, i in steps])
        values = torch.tensor([state_values[i][t] for t, i in steps])
        targets = n_step_targets(trajectory, values, outcome, num_steps=num_steps)
        assert targets.tolist() == [pytest.approx(expected[i][t]) for t, i in steps]


def test_outcomes_do_not_depend_on_the_temperature():
    space, context, network, log_reward = tables()
    batch = make_batch(context, network, space, log_reward)
    beta = torch.linspace(0.5, 32.0, len(batch))
    scaled = copy.copy(batch).with_rewards(batch.log_reward * beta)
    object.__setattr__(scaled, "beta", beta)
    assert outcomes(scaled).tolist() == pytest.approx(outcomes(batch).tolist(), rel=1e-4)
    assert outcomes(batch).tolist() == pytest.approx(batch.log_reward.exp().tolist())


def tables() -> tuple[Classes, Any, Any, torch.Tensor]:
    """Return a space, a network with constant action values, and log-rewards below zero."""
    space = make_space("two_coloured_3")
    log_reward = rewards_of(space) - 3
    flows = labelled_flows(space, log_reward, uniform_backward(space))
    constant = dict.fromkeys(flows.log_forward, -1.0)
    context, network = tabular(space, Flows(flows.log_flow, constant, flows.log_backward), backward=False)
    return space, context, network, log_reward


@pytest.mark.parametrize("num_steps", [2])
def test_action_value_loss_gradient_matches_finite_differences(num_steps):
    space, context, network, log_reward = tables()
    batch = make_batch(context, network, space, log_reward)
    with torch.no_grad():
        noise = torch.randn(network.forward_logits.shape, generator=torch.Generator().manual_seed(2))
        network.forward_logits += noise
    lagged = copy.deepcopy(network)

    def loss() -> torch.Tensor:
        return action_value_loss(context, network, lagged, batch, num_steps=num_steps).value

    loss().backward()
    gradient = network.forward_logits.grad.clone()
    assert lagged.forward_logits.grad is None
    largest = gradient.abs().argsort(descending=True)[:6].tolist()
    for i in [*largest, 0]:
        losses = []
        for shift in (1e-5, -1e-5):
            with torch.no_grad():
                network.forward_logits[i] += shift
                losses.append(float(loss()))
                network.forward_logits[i] -= shift
        assert float(gradient[i]) == pytest.approx((losses[0] - losses[1]) / 2e-5, abs=1e-7)
    assert float(gradient[largest[-1]].abs()) > 1e-4


def keys_of(batch: Any, space: Classes) -> list[Key]:
    """Return the table key of each step of the batch."""
    before = space.position_of(batch.states)
    after = space.position_of(space.env.apply(batch.states, batch.actions))
    stops = (batch.actions.kind == int(GraphActionType.Stop)).tolist()
    return list(zip(before, after, stops, strict=True))


def largest_gradient(network: Any, context: Any, batch: Any, values: dict[Key, float], *, num_steps: int) -> float:
    """Return the largest gradient of the loss at these action values, with the same values in the lagged network."""
    with torch.no_grad():
        for key, value in values.items():
            network.forward_logits[network.forward_keys[key]] = math.log(math.expm1(value))
    network.zero_grad()
    lagged = copy.deepcopy(network)
    action_value_loss(context, network, lagged, batch, num_steps=num_steps).value.backward()
    return float(network.forward_logits.grad.abs().max())


def test_long_step_gradient_is_zero_at_mean_outcomes():
    space, context, network, log_reward = tables()
    batch = make_batch(context, network, space, log_reward, num=40)
    outcomes_of: dict[Key, list[float]] = {}
    for key, i in zip(keys_of(batch, space), batch.trajectory.tolist(), strict=True):
        outcomes_of.setdefault(key, []).append(math.exp(float(batch.log_reward[i])))
    assert len(outcomes_of) > 20
    assert max(len(set(rewards)) for rewards in outcomes_of.values()) > 5
    means = {key: sum(rewards) / len(rewards) for key, rewards in outcomes_of.items()}
    assert largest_gradient(network, context, batch, means, num_steps=25) < 1e-7
    best = {key: max(rewards) for key, rewards in outcomes_of.items()}
    assert largest_gradient(network, context, batch, best, num_steps=25) > 1e-3


def test_single_step_gradient_is_zero_at_best_reachable_rewards():
    space, context, network, log_reward = tables()
    batch = make_batch(context, network, space, log_reward, num=40)
    best = oracle.best_reachable(space, log_reward.exp().tolist())
    assert largest_gradient(network, context, batch, best, num_steps=1) < 1e-7
    worse = {key: 0.5 * value for key, value in best.items()}
    assert largest_gradient(network, context, batch, worse, num_steps=1) > 1e-4
