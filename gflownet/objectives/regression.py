"""How a balance that is off by t = log (forward / backward) is penalised: functions with their minimum, 0, at t = 0.

Squared: Malkin et al. 2022. Half, linex and shifted cosh: Hu et al. 2025 (Beyond squared error: exploring loss design,
table 2), whose t is the negative of this one. Linex penalises exponentially what is too unlikely, as KL(p_B || p_F)
does, whose gradient it has on the policy's own samples; shifted cosh also what is too likely.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Regression = Callable[[Tensor], Tensor]

HUBER_DELTA = 1.0  # Huber 1964: quadratic up to here, then linear
STEEPEST = 5.0  # beyond this t, exponentials go on along their tangents: exp of an early imbalance is no number


def squared(t: Tensor) -> Tensor:
    """Return t^2."""
    return t.square()


def half(t: Tensor) -> Tensor:
    """Return t^2 / 2."""
    return t.square() / 2


def huber(t: Tensor) -> Tensor:
    """Return t^2 / 2 where |t| <= delta, delta (|t| - delta / 2) beyond."""
    return torch.nn.functional.huber_loss(t, torch.zeros_like(t), reduction="none", delta=HUBER_DELTA)


def shifted_cosh(t: Tensor) -> Tensor:
    """Return e^t + e^-t - 2."""
    return _exp(t) + _exp(-t) - 2


def linex(t: Tensor) -> Tensor:
    """Return e^-t + t - 1."""
    return _exp(-t) + t - 1


def _exp(t: Tensor) -> Tensor:
    """Return e^t, beyond STEEPEST the tangent there."""
    bounded = t.clamp(max=STEEPEST)
    return bounded.exp() * (1 + t - bounded)


REGRESSIONS: dict[str, Regression] = {
    "squared": squared,
    "half": half,
    "huber": huber,
    "shifted_cosh": shifted_cosh,
    "linex": linex,
}
