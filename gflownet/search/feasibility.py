"""Probability that a candidate is within hard caps on measured metrics (Gardner et al. 2014; Gelbart et al. 2014).

Letters: n observations, B candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.search.surrogate import Prediction, Surrogate


class Cap:
    """One metric with a limit, and the surrogate that predicts it; smaller values are better."""

    def __init__(self, name: str, limit: float, surrogate: Surrogate) -> None:
        self.name, self.limit, self.surrogate = name, limit, surrogate
        self._is_fitted = False

    def fit(self, features: Any, metrics: Sequence[Mapping[str, float]]) -> None:
        """Fit to the n observations that have a finite value of the metric."""
        values = [row.get(self.name, math.nan) for row in metrics]
        positions = torch.tensor([place for place, value in enumerate(values) if math.isfinite(value)])
        self._is_fitted = bool(len(positions))
        if self._is_fitted:
            # Negated, so that the warp compresses values far above the median, which never are within the limit.
            scores = -torch.tensor(values, dtype=torch.float64)[positions]
            self.surrogate.fit(features[positions], scores)

    def log_probability(self, features: Any) -> Tensor:
        """Return log P(value <= limit) of candidates [B] float64; 0 without observations."""
        if not self._is_fitted:
            return torch.zeros(len(features), dtype=torch.float64)
        limit = self.surrogate.warp(torch.tensor([-self.limit], dtype=torch.float64))
        return log_probability_above(self.surrogate.predict(features), float(limit))


def log_probability_above(prediction: Prediction, limit: float) -> Tensor:
    """Return log P(value >= limit) of normal distributions [B], float64, without underflow."""
    return torch.special.log_ndtr((prediction.mean.double() - limit) / prediction.std.double())
