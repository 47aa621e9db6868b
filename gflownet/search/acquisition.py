"""Acquisition functions: the logarithm of the value of evaluating a candidate, from its predicted score.

Letters: B candidates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflownet.options import NOT_NEGATIVE, option
from gflownet.plugins import Configurable
from gflownet.search.config import ACQUISITIONS, AcquisitionConfig
from gflownet.search.surrogate import Prediction

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LOG_SQRT_HALF_PI = 0.5 * math.log(math.pi / 2)
# Below it, 1 + z Phi(z) / phi(z) cancels in float64 and its asymptotic series is used (Ament et al. 2023, appendix A).
_ASYMPTOTIC = -1e3


@dataclass
class UpperConfidenceBoundConfig:
    """Options of the upper confidence bound."""

    width: float = option(2.0, "standard deviations above the mean", NOT_NEGATIVE)


class Acquisition(Configurable, ABC):
    """Values of candidates on a logarithmic scale; batches are sampled in proportion to exp(beta * value)."""

    def __init__(self, options: Any = None) -> None:
        """Keep the options, the class's own `Config`."""
        self.options = options

    @abstractmethod
    def log_values(self, prediction: Prediction, best: float, generator: torch.Generator) -> Tensor:
        """Return values [B] float64.

        Args:
            prediction: of the warped scores of B candidates.
            best: the best warped score.
            generator: of the random draws, for acquisitions with any.
        """


class ExpectedImprovement(Acquisition):
    """log E[max(score - best, 0)] (Jones et al. 1998; Ament et al. 2023 for the logarithm)."""

    def log_values(self, prediction: Prediction, best: float, generator: torch.Generator) -> Tensor:
        """Return the logarithm of the expected improvement."""
        standard = (prediction.mean - best) / prediction.std
        return log_standard_improvement(standard) + prediction.std.log()


class UpperConfidenceBound(Acquisition):
    """mean + width * std - best, in warped scores (Srinivas et al. 2010)."""

    Config = UpperConfidenceBoundConfig

    def log_values(self, prediction: Prediction, best: float, generator: torch.Generator) -> Tensor:
        """Return the bound above the best score."""
        return prediction.mean + self.options.width * prediction.std - best


class ThompsonSampling(Acquisition):
    """One draw of the score of each candidate, independent of the others, above the best score."""

    def log_values(self, prediction: Prediction, best: float, generator: torch.Generator) -> Tensor:
        """Return the draws."""
        noise = torch.randn(len(prediction), generator=generator, dtype=torch.float64)
        return prediction.mean + prediction.std * noise - best


def build_acquisition(config: AcquisitionConfig) -> Acquisition:
    """Return the acquisition of a config."""
    return ACQUISITIONS.load(config.name)(config.options)


def log_standard_improvement(z: Tensor) -> Tensor:
    """Return log(phi(z) + z Phi(z)) for z [B] float64, without underflow for z of any size."""
    z = z.double()
    upper = z.clamp(min=-1.0)
    direct = (torch.exp(-upper.square() / 2 - _LOG_SQRT_2PI) + upper * torch.special.ndtr(upper)).log()
    # phi(z) + z Phi(z) = phi(z) (1 - |z| Phi(z) / phi(z)), whose ratio is sqrt(pi / 2) erfcx(|z| / sqrt(2)).
    lower = z.clamp(min=_ASYMPTOTIC, max=-1.0)
    log_ratio = torch.special.erfcx(-lower / math.sqrt(2)).log() + _LOG_SQRT_HALF_PI + (-lower).log()
    scaled = (-torch.expm1(log_ratio)).log()
    far = z.clamp(max=_ASYMPTOTIC)
    scaled = torch.where(z < _ASYMPTOTIC, -2 * (-far).log() + torch.log1p(-3 / far.square()), scaled)
    return torch.where(z > -1, direct, scaled - z.square() / 2 - _LOG_SQRT_2PI)
