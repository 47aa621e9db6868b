"""Calibration of a surrogate: its predictions compared with the scores that were measured afterwards.

Letters: B predicted architectures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.evaluation import extrapolation
from gflownet.search.surrogate import Prediction

WINDOW = 50  # latest evaluations of the running figures
_MIN_COMPARED = 20  # evaluations before the surrogate is compared with the mean
_HALF_WIDTH = 1.6448536269514722  # standard deviations: half an interval of 90 % of a normal distribution


class Calibration:
    """Predictions of the latest evaluations, made before these were scored, with the scores; all in warped scores."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, float, float, float]] = []  # mean, std, score, mean of the earlier scores
        self._num, self._num_covered = 0, 0

    def add(self, prediction: Prediction, scores: Tensor, *, earlier_mean: float) -> None:
        """Add predictions [B] of warped scores [B], and the mean of the warped scores before them."""
        columns = prediction.mean.tolist(), prediction.std.tolist(), scores.tolist()
        for mean, std, score in zip(*columns, strict=True):
            self._num += 1
            self._num_covered += abs(score - mean) <= _HALF_WIDTH * std
            self._rows.append((mean, std, score, earlier_mean))
        self._rows = self._rows[-WINDOW:]

    @property
    def is_worse_than_mean(self) -> bool:
        """Return whether the mean of the earlier scores has predicted the latest ones at least as well."""
        return len(self._rows) >= _MIN_COMPARED and self._explained() <= 0

    def metrics(self) -> Mapping[str, float]:
        """Return coverage of 90 % intervals (of the window, and of all), rank correlation, and explained share."""
        if not self._rows:
            return {}
        mean, std, score, _ = (torch.tensor(column, dtype=torch.float64) for column in zip(*self._rows, strict=True))
        covered = (score - mean).abs() <= _HALF_WIDTH * std
        return {
            "surrogate_coverage": float(covered.double().mean()),
            "surrogate_coverage_all": self._num_covered / self._num,
            "surrogate_rank_correlation": rank_correlation(mean, score),
            "surrogate_explained": self._explained(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the contents as plain values."""
        return {"rows": list(self._rows), "num": self._num, "num_covered": self._num_covered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._rows = [tuple(row) for row in state["rows"]]
        self._num, self._num_covered = state["num"], state["num_covered"]

    def _explained(self) -> float:
        """Return 1 - squared error of the surrogate / squared error of the mean."""
        error = math.fsum((score - mean) ** 2 for mean, _, score, _ in self._rows)
        constant_error = math.fsum((score - earlier) ** 2 for _, _, score, earlier in self._rows)
        return 1 - error / constant_error if constant_error > 0 else 0.0


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Return Spearman's rank correlation of two vectors [B], with average ranks of ties; 0 where one is constant."""
    value = extrapolation.rank_correlation(list(zip(first.tolist(), second.tolist(), strict=True)))
    return 0.0 if math.isnan(value) else value


def ranked(scores: Sequence[float]) -> Tensor:
    """Return the positions of scores, best first."""
    return torch.tensor(scores, dtype=torch.float64).argsort(descending=True, stable=True)
