"""Regression losses of an imbalance t = log (forward / backward); each has its minimum, 0, at t = 0.

Squared: Malkin et al. 2022. Half, linex and shifted cosh: Hu et al. 2025 (Beyond squared error: exploring loss design,
table 2), whose t has the opposite sign. Linex penalises trajectories with too low probability exponentially, as
KL(p_B || p_F) does, and has its gradient on the policy's own samples; shifted cosh penalises both signs exponentially.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.objectives.config import REGRESSIONS

HUBER_DELTA = 1.0  # Huber 1964: quadratic up to here, then linear
STEEPEST = 5.0  # exponentials continue as tangents beyond this t: early imbalances would overflow


class Regression(ABC):
    """An elementwise loss of imbalances, differentiable, >= 0, and 0 at 0."""

    @abstractmethod
    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return the loss of every entry, in the same shape."""


class Squared(Regression):
    """t^2."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return t^2."""
        return imbalance.square()


class Half(Regression):
    """t^2 / 2."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return t^2 / 2."""
        return imbalance.square() / 2


class Huber(Regression):
    """t^2 / 2 where |t| <= delta, delta (|t| - delta / 2) beyond."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return the Huber loss with delta 1."""
        zero = torch.zeros_like(imbalance)
        return torch.nn.functional.huber_loss(imbalance, zero, reduction="none", delta=HUBER_DELTA)


class ShiftedCosh(Regression):
    """e^t + e^-t - 2."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return e^t + e^-t - 2."""
        return _exp(imbalance) + _exp(-imbalance) - 2


class Linex(Regression):
    """e^-t + t - 1."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return e^-t + t - 1."""
        return _exp(-imbalance) + imbalance - 1


def make_regression(name: str) -> Regression:
    """Return the regression loss of a built-in name or module:Class.

    Raises:
        ValueError: as `load_class`; or it raises, or its values at -1, 0 and 1 are not finite, >= 0 and 0 at 0.
    """
    regression_class = REGRESSIONS.load(name)
    try:
        regression: Regression = regression_class()
        values = torch.as_tensor(regression(torch.tensor([-1.0, 0.0, 1.0])))
    except Exception as error:  # raised by the user's own class
        raise UserError(f"{REGRESSIONS.key}: calling {name} failed: {type(error).__name__}: {error}") from error
    is_loss = values.shape == (3,) and bool(values.isfinite().all() and (values >= 0).all()) and not values[1]
    if not is_loss:
        expected = "losses >= 0 of the imbalances -1, 0, 1, and 0 at 0"
        got = [float(f"{value:.4g}") for value in values.flatten().tolist()]
        raise UserError(f"{REGRESSIONS.key}: expected {name} to return {expected}, got {got}")
    return regression


def _exp(t: Tensor) -> Tensor:
    """Return e^t, beyond STEEPEST the tangent there."""
    bounded = t.clamp(max=STEEPEST)
    return bounded.exp() * (1 + t - bounded)
