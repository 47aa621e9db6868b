"""Increasing transformation of scores for a Gaussian process."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_UPPER = 0.9  # quantile at distance 1 from the median
_MIN_SCALE = 0.05  # in standard deviations, for scores of which nearly all are equal


@dataclass(frozen=True)
class Warping:
    """Warped scores: zero at the centre, linear above it, logarithmic below it.

    A few failed or badly trained candidates, far below all others, would otherwise determine scale and lengths of a
    Gaussian process.
    """

    centre: float
    scale: float  # > 0

    @classmethod
    def of(cls, scores: Tensor) -> Warping:
        """Return the warping around the median of scores [n], in units of the distance to their upper tenth."""
        scores = scores.double()
        centre = float(scores.median())
        scale = float(scores.quantile(_UPPER)) - centre
        scale = max(scale, _MIN_SCALE * float(scores.std(correction=0)))
        return cls(centre, scale if scale > 0 else 1.0)

    def warp(self, scores: Tensor) -> Tensor:
        """Return the warped scores, float64."""
        values = (scores.double() - self.centre) / self.scale
        return torch.where(values < 0, -torch.log1p(-values.clamp(max=0)), values)

    def unwarp(self, values: Tensor) -> Tensor:
        """Return the scores of warped values, float64."""
        values = values.double()
        linear = torch.where(values < 0, -torch.expm1(-values.clamp(max=0)), values)
        return self.centre + self.scale * linear
