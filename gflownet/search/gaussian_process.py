"""Gaussian process on Weisfeiler-Lehman features of graphs (Ru et al. 2021, Interpretable neural architecture search).

Letters: n observations, m of them in the model, B predicted graphs, K distances.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.config import SurrogateConfig
from gflownet.search.descriptors import Descriptors
from gflownet.search.features import GraphFeatures, WeisfeilerLehman
from gflownet.search.regression import CrossCovariance, Hyperparameters, Regression, best_and_random
from gflownet.search.surrogate import Prediction, Surrogate, Warping

_NUM_ROUNDS = 3
_MAX_ROWS = 1_000  # observations of a fit
_NUM_CROSSES = 2  # a space as a whole, and the candidates out of which a batch is chosen
# Hyperparameters are fitted again after this share, and at least this number, of new observations.
_GROWTH, _MIN_GROWTH = 0.08, 2


class GaussianProcess(Surrogate):
    """Exact Gaussian process up to _MAX_ROWS observations; of more, the best half and random ones.

    Between fits of the hyperparameters, new observations extend the Cholesky factor row by row.
    """

    def __init__(self, env: Environment, config: SurrogateConfig, *, seed: int) -> None:
        """Keep the components; `fit` sets the warping."""
        super().__init__(env, config, seed=seed)
        self._warping = Warping(0.0, 1.0)
        self._encoder = WeisfeilerLehman(env, num_rounds=_NUM_ROUNDS)
        self._hyperparameters: Hyperparameters | None = None
        self._num_fitted = 0  # observations at the last fit of hyperparameters
        self._observed: GraphFeatures | None = None  # all n observations
        self._regression: Regression | None = None
        self._crosses: list[CrossCovariance] = []  # of the features of the last predictions, latest first

    def encode(self, states: GraphStates) -> GraphFeatures:
        """Return the features of B terminal states: labels, and numbers with one distance for each of their groups."""
        descriptors = _descriptors(self.env, self.seed)
        groups = descriptors.groups.unique(return_inverse=True)[1]
        return self._encoder.encode(states, descriptors(states), groups)

    def fit(self, features: GraphFeatures, scores: Tensor) -> None:
        """Fit to n observations."""
        _check(features, scores)
        self._warping = Warping.of(scores)
        values = self.warp(scores)
        growth = max(_MIN_GROWTH, _GROWTH * self._num_fitted)
        is_due = not self._num_fitted or len(features) >= self._num_fitted + growth
        if self._regression is None and self._num_fitted <= len(features) and not is_due:
            self._restore(features, values)
        elif self._observed is None or not features.starts_with(self._observed) or is_due:
            self._fit_hyperparameters(features, values)
        else:
            assert self._regression is not None
            self._regression.append(features, torch.arange(len(self._observed), len(features)))
        self._observed = features
        assert self._regression is not None
        self._regression.observe(values)

    def predict(self, features: GraphFeatures) -> Prediction:
        cross, regression = self._fitted(features)
        return cross.predict(regression)

    def covariance(self, features: GraphFeatures, row: int) -> Tensor:
        """Return the covariances of the warped mean scores of B graphs with that of one."""
        cross, regression = self._fitted(features)
        cross.predict(regression)
        return cross.covariance(regression, row)

    def warp(self, scores: Tensor) -> Tensor:
        return self._warping.warp(scores)

    def unwarp(self, values: Tensor) -> Tensor:
        return self._warping.unwarp(values)

    def state_dict(self) -> dict[str, Any]:
        if self._hyperparameters is None:
            return {}
        weights, noise = self._hyperparameters.weights, self._hyperparameters.noise
        return {"weights": weights, "noise": noise, "num_fitted": self._num_fitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._observed, self._regression, self._crosses = None, None, []
        self._hyperparameters = Hyperparameters(state["weights"], state["noise"]) if state else None
        self._num_fitted = state.get("num_fitted", 0)

    def _fitted(self, features: GraphFeatures) -> tuple[CrossCovariance, Regression]:
        if self._regression is None:
            raise ValueError("predict: expected a fitted surrogate, got one without observations")
        same = [each for each in self._crosses if each.features is features]
        unrelated = [each for each in self._crosses if each.features is not features]
        self._crosses = [*(same or [CrossCovariance(features)]), *unrelated][:_NUM_CROSSES]
        return self._crosses[0], self._regression

    def _restore(self, features: GraphFeatures, values: Tensor) -> None:
        """Build the model of the last fit of hyperparameters, and add the observations since."""
        assert self._hyperparameters is not None
        rows = self._rows(values[: self._num_fitted])
        self._regression = Regression(features, rows, self._hyperparameters)
        self._regression.append(features, torch.arange(self._num_fitted, len(features)))

    def _fit_hyperparameters(self, features: GraphFeatures, values: Tensor) -> None:
        rows, self._regression, self._crosses = self._rows(values), None, []  # before the next ones are allocated
        self._hyperparameters = Regression.fitted_hyperparameters(features, values, rows, self._hyperparameters)
        self._regression, self._num_fitted = Regression(features, rows, self._hyperparameters), len(features)

    def _rows(self, values: Tensor) -> Tensor:
        """Return the observations of the model, sorted: all, or the best half and random ones."""
        return best_and_random(values, _MAX_ROWS, seed=self.seed)


@lru_cache(maxsize=1)
def _descriptors(env: Environment, seed: int) -> Descriptors:
    """Return the numbers of architectures, whose random references the surrogates of a run share."""
    return Descriptors(env, seed=seed)


def _check(features: GraphFeatures, scores: Tensor) -> None:
    """Raise ValueError unless there is a finite score for each of at least one observation."""
    if not len(features) or scores.shape != (len(features),):
        raise ValueError(f"fit: expected {len(features)} scores, at least one, got shape {list(scores.shape)}")
    if not bool(scores.isfinite().all()):
        row = int((~scores.isfinite()).nonzero()[0])
        raise ValueError(f"fit: expected finite scores, got {float(scores[row])} for observation {row}")
