"""The contract of a surrogate: a model that predicts scores from graphs.

Letters: n observations, B predicted architectures, D numeric features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
    def encode(self, states: GraphStates, extra: Tensor | None = None) -> Any:
        """Return the features of B terminal states: an object with a length and an index.

        Args:
            states: the architectures.
            extra: [B, D] numeric features, such as zero-cost proxies; None: none.
        """

    @abstractmethod
    def fit(self, features: Any, scores: Tensor) -> None:
        """Fit the model to all n observations; features that extend those of the last call cost less.

        Args:
            features: of `encode`.
            scores: [n] finite scores.
        """

    @abstractmethod
    def predict(self, features: Any) -> Prediction:
        """Return the distribution of the warped scores; the same object as in the last call costs less."""

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the model, such as the weights of its parts."""
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


class CrossValidated(Surrogate):
    """A surrogate that predicts each of its observations from the others, at little cost."""

    def __init__(self, env: Environment, config: SurrogateConfig, *, seed: int) -> None:
        """Keep the components; `fit` sets the warping."""
        super().__init__(env, config, seed=seed)
        self._warping = Warping(0.0, 1.0)

    def warp(self, scores: Tensor) -> Tensor:
        """Return warped scores."""
        return self._warping.warp(scores)

    def unwarp(self, values: Tensor) -> Tensor:
        """Return the scores of warped values."""
        return self._warping.unwarp(values)

    @abstractmethod
    def held_out(self) -> Prediction:
        """Return the predictions [n] of the observations of the last fit, each without its own score."""


# Models are fitted again after this share, and at least this number, of new observations.
_GROWTH, _MIN_GROWTH = 0.08, 2


def next_fit(num_fitted: int) -> float:
    """Return the number of observations at which a model of `num_fitted` is fitted again."""
    return num_fitted and num_fitted + max(_MIN_GROWTH, _GROWTH * num_fitted)


def check_scores(features: Any, scores: Tensor) -> None:
    """Raise ValueError unless there is a finite score for each of at least one observation."""
    if not len(features) or scores.shape != (len(features),):
        raise ValueError(f"fit: expected {len(features)} scores, at least one, got shape {list(scores.shape)}")
    if not bool(scores.isfinite().all()):
        row = int((~scores.isfinite()).nonzero()[0])
        raise ValueError(f"fit: expected finite scores, got {float(scores[row])} for observation {row}")


def mixture(parts: Sequence[Prediction], weights: Sequence[float]) -> Prediction:
    """Return mean and deviation of a mixture of predictions with weights that sum to 1."""
    mean = sum_of([weight * each.mean for weight, each in zip(weights, parts, strict=True)])
    second = [
        weight * (each.std.square() + (each.mean - mean).square()) for weight, each in zip(weights, parts, strict=True)
    ]
    noise = sum(weight * each.noise**2 for weight, each in zip(weights, parts, strict=True)) ** 0.5
    return Prediction(mean, sum_of(second).sqrt(), noise)


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    return torch.stack(list(tensors)).sum(0)
