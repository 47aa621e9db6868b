"""Sub-trajectory balance at the limits of lambda: detailed balance at 0, trajectory balance at infinity."""

import math

import pytest
import torch

from gflownet.objectives.config import AlgoConfig, SubTrajectoryBalanceConfig
from tests.objectives.differences import Case, assert_loss_and_gradient, set_up, with_random_offset
from tests.oracles.losses import log_ratios, mean, sub_trajectory_balance


def case_of(decay: float) -> Case:
    options = SubTrajectoryBalanceConfig(decay=decay)
    return with_random_offset(set_up(AlgoConfig(method="subtb", backward_policy="learned", subtb=options)))


def test_subtb_with_zero_lambda_is_detailed_balance_within_trajectories():
    case = case_of(0.0)
    assert_loss_and_gradient(case, lambda: sub_trajectory_balance(case.read_steps(), (), case.batch, decay=0.0))


@pytest.mark.parametrize("decay", [pytest.param(1e80, marks=pytest.mark.slow), math.inf])
def test_subtb_with_huge_lambda_is_trajectory_balance(decay):
    """The loss is the mean square of log F(s0) P_F(tau) / R(x) P_B(tau | x)."""
    case = case_of(decay)

    def whole_trajectory_balance() -> float:
        trajectories = case.read_steps()
        pairs = zip(log_ratios(trajectories, case.batch), trajectories, strict=True)
        return mean([(ratio + steps[0].state_output + steps[0].offset) ** 2 for ratio, steps in pairs])

    assert_loss_and_gradient(case, whole_trajectory_balance)


@pytest.mark.parametrize("decay", [0.0, math.inf])
def test_subtb_weights_sum_to_one_for_every_lambda(decay):
    weight = case_of(decay).objective._weights(torch.tensor([2, 60, 101]), 101)
    assert bool(weight.isfinite().all())
    assert bool((weight >= 0).all())
    assert weight.sum((1, 2)).tolist() == pytest.approx([1 / 3] * 3, rel=1e-5)
