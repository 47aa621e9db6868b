"""Sub-trajectory balance at the limits of lambda: detailed balance at 0, trajectory balance at infinity."""

import math
from functools import partial

import pytest
import torch

from gflownet.objectives.config import AlgoConfig, SubTrajectoryBalanceConfig, Weighting
from tests.objectives.differences import Case, assert_loss_and_gradient, set_up, with_random_offset
from tests.oracles.losses import detailed_balance, log_ratios, mean, sub_trajectory_balance


def case_of(weighting: Weighting, decay: float) -> Case:
    options = SubTrajectoryBalanceConfig(decay=decay, weighting=weighting)
    return with_random_offset(set_up(AlgoConfig(method="subtb", backward_policy="learned", subtb=options)))


def whole_trajectory_balance(case: Case, *, only_longest: bool) -> float:
    """Return the mean square of log F(s0) P_F(tau) / R(x) P_B(tau | x) over trajectories, or over the longest ones."""
    trajectories = case.read_steps()
    pairs = zip(log_ratios(trajectories, case.batch), trajectories, strict=True)
    terms = [(len(steps), (ratio + steps[0].state_output + steps[0].offset) ** 2) for ratio, steps in pairs]
    longest = max(length for length, _ in terms)
    assert min(length for length, _ in terms) < longest
    return mean([term for length, term in terms if length == longest or not only_longest])


def test_subtb_with_zero_lambda_is_detailed_balance():
    """With weights within trajectories, steps of short trajectories count more."""
    case = case_of("geometric", 0.0)
    assert_loss_and_gradient(case, lambda: detailed_balance(case.read_steps(), (), case.batch))
    case = case_of("within", 0.0)
    within = partial(sub_trajectory_balance, decay=0.0, within=True)
    assert_loss_and_gradient(case, lambda: within(case.read_steps(), (), case.batch))
    assert within(case.read_steps(), (), case.batch) != pytest.approx(
        detailed_balance(case.read_steps(), (), case.batch), rel=1e-2
    )


@pytest.mark.parametrize("decay", [1e80, math.inf])
@pytest.mark.parametrize(("weighting", "only_longest"), [("within", False), ("geometric", True)])
def test_subtb_with_huge_lambda_is_trajectory_balance(weighting, only_longest, decay):
    case = case_of(weighting, decay)
    assert_loss_and_gradient(case, lambda: whole_trajectory_balance(case, only_longest=only_longest))


@pytest.mark.parametrize("weighting", ["within", "geometric"])
@pytest.mark.parametrize("decay", [0.0, 1e-300, 1e300, math.inf])
def test_subtb_weights_sum_to_one_for_every_lambda(weighting, decay):
    weight = case_of(weighting, decay).objective._weights(torch.tensor([2, 60, 101]), 101)
    assert bool(weight.isfinite().all())
    assert bool((weight >= 0).all())
    shares = weight.sum((1, 2)).tolist()
    assert sum(shares) == pytest.approx(1.0, rel=1e-5)
    if weighting == "within":
        assert shares == pytest.approx([1 / 3] * 3, rel=1e-5)
