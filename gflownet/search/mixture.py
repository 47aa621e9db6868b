"""Mixture of surrogates with weights by their predictions of left out observations.

Candidates are Gaussian processes on labels, and on labels and numbers, and a random forest on numbers. The weights
maximise the likelihood of the mixture (stacking: Yao et al. 2018, "Using stacking to average Bayesian predictive
distributions"), with a prior by rank correlation; the better half of the observations counts double.

Letters: n observations, B architectures, M models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.config import SurrogateConfig
from gflownet.search.descriptors import Descriptors
from gflownet.search.forest import RandomForest
from gflownet.search.gaussian_process import GaussianProcess
from gflownet.search.surrogate import (
    CrossValidated,
    Prediction,
    Surrogate,
    check_scores,
    mixture,
    next_fit,
    rank_correlation,
    sum_of,
)

MODELS = ("labels", "numbers", "forest")
_TEMPERATURE = 0.1  # of rank correlations in the prior of the weights
_PRIOR_SHARE = 0.1  # of the prior's pseudo-observations, in observations
_MIN_WEIGHT = 0.1  # smaller ones are 0: their model predicts nothing
_NUM_STEPS = 50  # of the maximisation


@dataclass(frozen=True)
class ModelFeatures:
    """The features of B architectures for each model."""

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        """Return B."""
        return len(self.parts[0])

    def __getitem__(self, index: Tensor | slice) -> ModelFeatures:
        """Return the features of the architectures at an index."""
        return ModelFeatures(tuple(part[index] for part in self.parts))


@lru_cache(maxsize=1)
def _descriptors(env: Environment, seed: int) -> Descriptors:
    """Return the numbers of architectures, which the surrogates of several objectives share."""
    return Descriptors(env, seed=seed)


class Automatic(Surrogate):
    """The weighted mean of the models that predict left out observations best."""

    def __init__(self, env: Environment, config: SurrogateConfig, *, seed: int) -> None:
        super().__init__(env, config, seed=seed)
        descriptors = _descriptors(env, seed)
        self._labels = GaussianProcess(env, config, seed=seed)
        self._numbers = GaussianProcess(env, config, seed=seed, descriptors=descriptors)
        forest = RandomForest(env, config, seed=seed, descriptors=descriptors)
        self.models: list[CrossValidated] = [self._labels, self._numbers, forest]
        self.weights = [1 / len(self.models)] * len(self.models)
        self.correlations = [0.0] * len(self.models)  # of left out observations with their predictions
        self._num_fitted = 0  # observations at the last choice of weights

    def encode(self, states: GraphStates) -> ModelFeatures:
        labels = self._labels.encode(states)
        numbers = self._numbers.with_descriptors(labels, states)  # with the same labels, kept once
        return ModelFeatures((labels, numbers, *(model.encode(states) for model in self.models[2:])))

    def warp(self, scores: Tensor) -> Tensor:
        """Return warped scores; all models have one warping."""
        return self.models[0].warp(scores)

    def unwarp(self, values: Tensor) -> Tensor:
        return self.models[0].unwarp(values)

    def prepare(self) -> None:
        for model in self.models:
            model.prepare()

    def fit(self, features: ModelFeatures, scores: Tensor) -> None:
        """Fit all models, and choose the weights again after enough new observations."""
        check_scores(features, scores)
        is_due = not self._num_fitted or not self._num_fitted <= len(scores) < next_fit(self._num_fitted)
        for model, part, weight in zip(self.models, features.parts, self.weights, strict=True):
            if is_due or weight:
                model.fit(part, scores)
        self.models[0].fit(features.parts[0], scores)  # its warping is that of all
        if is_due:
            predictions, values = [model.held_out() for model in self.models], self.warp(scores)
            self.correlations = [rank_correlation(each.mean, values) for each in predictions]
            self.weights, self._num_fitted = stacked(predictions, values), len(scores)

    def predict(self, features: ModelFeatures) -> Prediction:
        used = self._used
        parts = [self.models[m].predict(features.parts[m]) for m in used]
        return mixture(parts, [self.weights[m] for m in used]) if len(used) > 1 else parts[0]

    def covariance(self, features: ModelFeatures, row: int) -> Tensor | None:
        """Return the covariances of the mixture: those within the models and those between their means."""
        used, parts = self._used, []
        means = {m: self.models[m].predict(features.parts[m]).mean for m in used}
        mean = sum_of([self.weights[m] * means[m] for m in used])
        for m in used:
            within = self.models[m].covariance(features.parts[m], row)
            if within is None:
                return None
            between = (means[m] - mean) * (means[m] - mean)[row]
            parts.append(self.weights[m] * (within + between))
        return sum_of(parts)

    def metrics(self) -> Mapping[str, float]:
        """Return the weight of each model, and its rank correlation on left out observations."""
        weights = {f"surrogate_weight_{name}": weight for name, weight in zip(MODELS, self.weights, strict=True)}
        ranks = {f"surrogate_rank_{name}": value for name, value in zip(MODELS, self.correlations, strict=True)}
        return weights | ranks

    def state_dict(self) -> dict[str, Any]:
        return {
            "models": [model.state_dict() for model in self.models],
            "weights": list(self.weights),
            "correlations": list(self.correlations),
            "num_fitted": self._num_fitted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for model, values in zip(self.models, state["models"], strict=True):
            model.load_state_dict(values)
        self.weights, self.correlations = list(state["weights"]), list(state["correlations"])
        self._num_fitted = state["num_fitted"]

    @property
    def _used(self) -> list[int]:
        return [number for number, weight in enumerate(self.weights) if weight]


def stacked(predictions: Sequence[Prediction], values: Tensor) -> list[float]:
    """Return weights [M] of a mixture, from predictions of left out values [n]; small ones are 0.

    Maximises the log-likelihood of the mixture, by expectation and maximisation, with a Dirichlet prior around weights
    in proportion to exp(rank correlation / temperature).
    """
    is_upper = values >= values.median()
    count = 1.0 + is_upper.double()
    ranks = [_rank(each.mean, values, is_upper) for each in predictions]
    prior = (torch.tensor(ranks, dtype=torch.float64) / _TEMPERATURE).softmax(0)
    mean, std = (torch.stack([getattr(each, name) for each in predictions]) for name in ("mean", "std"))
    log_density = -((values - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2  # [M, n]
    weights, pseudo = prior, _PRIOR_SHARE * float(count.sum())
    for _ in range(_NUM_STEPS):
        share = (log_density + weights.log()[:, None]).softmax(0)
        weights = (share * count).sum(1) + pseudo * prior
        weights = weights / weights.sum()
    weights = torch.where(weights < _MIN_WEIGHT, 0.0, weights)
    return (weights / weights.sum()).tolist()


def _rank(mean: Tensor, values: Tensor, is_upper: Tensor) -> float:
    """Return the mean of the rank correlations of all and, twice, of the upper half."""
    upper = rank_correlation(mean[is_upper], values[is_upper])
    return (rank_correlation(mean, values) + 2 * upper) / 3
