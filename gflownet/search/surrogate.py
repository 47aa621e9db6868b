"""The contract of a surrogate, a model that predicts scores from graphs, and the calibration of its predictions.

Letters: n observations, B predicted architectures, D numeric features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation import racing
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.plugins import Configurable
from gflownet.search.config import SurrogateConfig

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


@dataclass(frozen=True)
class Prediction:
    """Normal distributions of the warped scores of B architectures, float64."""

    mean: Tensor  # [B]
    std: Tensor  # [B], of the score that an evaluation returns, with its noise
    noise: float = 0.0  # part of `std`: standard deviation of one evaluation around its mean

    @property
    def latent_std(self) -> Tensor:
        """Return the standard deviation [B] of the mean over repeated evaluations."""
        return (self.std.square() - self.noise**2).clamp(min=0).sqrt()

    def __len__(self) -> int:
        """Return B."""
        return len(self.mean)


class Surrogate(Configurable, ABC):
    """Predicts scores of terminal states; isomorphic states have equal predictions.

    Predictions are in warped scores: `warp` is increasing and set by `fit`.
    """

    def __init__(self, env: Environment, config: SurrogateConfig, *, seed: int) -> None:
        """Keep the components; `config.options` is the class's own `Config`."""
        self.env, self.config, self.seed = env, config, seed

    @abstractmethod
    def encode(self, states: GraphStates) -> Any:
        """Return the features of B terminal states: an object with a length and an index."""

    @abstractmethod
    def fit(self, features: Any, scores: Tensor) -> None:
        """Fit the model to all n observations; features that extend those of the last call cost less.

        Args:
            features: of `encode`.
            scores: [n] finite scores.
        """

    def start_from(self, earlier: Sequence[tuple[Any, Tensor]]) -> None:
        """Learn features and scores of earlier searches, whose scores may mean something else, with those of `fit`."""
        raise UserError(f"search.prior: expected a surrogate that learns from earlier runs, got {type(self).__name__}")

    @abstractmethod
    def predict(self, features: Any) -> Prediction:
        """Return the distribution of the warped scores; the same object as in the last call costs less."""

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the model for its log."""
        return {}

    def covariance(self, features: Any, row: int) -> Tensor | None:
        """Return the covariances [B] of the mean scores, warped, of B architectures with that of one; None: unknown."""
        return None

    @abstractmethod
    def warp(self, scores: Tensor) -> Tensor:
        """Return warped scores, in the units of predictions."""

    @abstractmethod
    def unwarp(self, values: Tensor) -> Tensor:
        """Return the scores of warped values: the inverse of `warp`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what later calls depend on besides the observations, safe to load with `weights_only=True`."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`: `fit` to the same observations then gives the same predictions."""


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
    value = racing.rank_correlation(list(zip(first.tolist(), second.tolist(), strict=True)))
    return 0.0 if math.isnan(value) else value
