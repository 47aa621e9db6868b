"""Regression losses: values and slopes, gradients as divergences, and their effect in every objective."""

import math

import pytest
import torch

from gflownet.objectives.base import make_regression
from gflownet.objectives.config import REGRESSIONS

E5 = math.exp(5)
# t = log (forward / backward): the penalty and its derivative in closed form; exponentials are linear beyond 5.
EXPECTED = {
    "squared": {t: (t * t, 2 * t) for t in (-8, -1, 0, 0.5, 8)},
    "half": {t: (t * t / 2, t) for t in (-8, -1, 0, 0.5, 8)},
    "huber": {-8: (7.5, -1), -1: (0.5, -1), 0: (0, 0), 0.5: (0.125, 0.5), 8: (7.5, 1)},
    "shifted_cosh": {
        -8: (math.exp(-8) + 4 * E5 - 2, -E5 + math.exp(-8)),
        -1: (2 * math.cosh(1) - 2, -2 * math.sinh(1)),
        0: (0, 0),
        0.5: (2 * math.cosh(0.5) - 2, 2 * math.sinh(0.5)),
        8: (math.exp(-8) + 4 * E5 - 2, E5 - math.exp(-8)),
    },
    "linex": {
        -8: (4 * E5 - 9, 1 - E5),
        -1: (math.e - 2, 1 - math.e),
        0: (0, 0),
        0.5: (math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
        8: (math.exp(-8) + 7, 1 - math.exp(-8)),
    },
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression_values_and_slopes_match_closed_form(name):
    t = torch.tensor(list(EXPECTED[name]), dtype=torch.float64, requires_grad=True)
    penalty = make_regression(name)(t)
    (slope,) = torch.autograd.grad(penalty.sum(), t)
    assert penalty.tolist() == pytest.approx([value for value, _ in EXPECTED[name].values()], rel=1e-12, abs=1e-12)
    assert slope.tolist() == pytest.approx([value for _, value in EXPECTED[name].values()], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression_slope_is_finite_for_large_imbalance(name):
    t = torch.tensor([-1e4, 1e4], requires_grad=True)
    (slope,) = torch.autograd.grad(make_regression(name)(t).sum(), t)
    assert bool(slope.isfinite().all())


def on_policy_gradient(name: str, logits: torch.Tensor, log_target: torch.Tensor) -> torch.Tensor:
    """Return the expected gradient of a penalty of log p_F - log p_B under samples of p_F."""
    log_policy = logits.log_softmax(0)
    penalty = make_regression(name)(log_policy - log_target)
    (gradient,) = torch.autograd.grad((log_policy.detach().exp() * penalty).sum(), logits)
    return gradient


def test_half_and_linex_on_policy_gradients_are_kl_gradients():
    """Hu et al. 2025, table 2: half is the reverse, linex the forward Kullback-Leibler divergence."""
    generator = torch.Generator().manual_seed(0)
    log_target = torch.randn(6, dtype=torch.float64, generator=generator).log_softmax(0)
    logits = torch.randn(6, dtype=torch.float64, generator=generator).requires_grad_()
    log_policy = logits.log_softmax(0)
    (reverse,) = torch.autograd.grad((log_policy.exp() * (log_policy - log_target)).sum(), logits, retain_graph=True)
    (forward,) = torch.autograd.grad((log_target.exp() * (log_target - log_policy)).sum(), logits)
    assert torch.allclose(on_policy_gradient("half", logits, log_target), reverse, atol=1e-12)
    assert torch.allclose(on_policy_gradient("linex", logits, log_target), forward, atol=1e-12)
    assert not torch.allclose(forward, reverse, atol=1e-2)
