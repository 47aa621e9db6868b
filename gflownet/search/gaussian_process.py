"""Gaussian process on Weisfeiler-Lehman features of graphs (Ru et al. 2021, Interpretable neural architecture search).

Letters: n observations, B predicted graphs, K distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.config import SurrogateConfig
from gflownet.search.descriptors import Descriptors
from gflownet.search.features import GraphFeatures, WeisfeilerLehman
from gflownet.search.regression import (
    MAX_FIT_ROWS,
    Conditional,
    Hyperparameters,
    Regression,
    best_and_random,
    fit_hyperparameters,
)
from gflownet.search.surrogate import Prediction, Surrogate, Warping

_NUM_ROUNDS = 3
_MAX_ROWS = 1_000  # observations of a fit
# Hyperparameters are fitted again after this share, and at least this number, of new observations.
_GROWTH, _MIN_GROWTH = 0.08, 2


class GaussianProcess(Surrogate):
    """Exact Gaussian process up to _MAX_ROWS observations; of more, the best half and random ones."""

    def __init__(self, env: Environment, config: SurrogateConfig, *, seed: int) -> None:
        """Keep the components; `fit` sets the warping."""
        super().__init__(env, config, seed=seed)
        self._warping = Warping(0.0, 1.0)
        self._encoder = WeisfeilerLehman(env, num_rounds=_NUM_ROUNDS)
        self._hyperparameters: Hyperparameters | None = None
        self._num_fitted = 0  # observations at the last fit of hyperparameters
        self._regression: Regression | None = None
        self._last: tuple[GraphFeatures, Conditional] | None = None  # of the last predictions
        self._earlier: list[tuple[GraphFeatures, Tensor]] = []  # of each earlier search, with warped scores

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
        rows = best_and_random(values, _MAX_ROWS, seed=self.seed)
        observed, targets = self._with_earlier(features[rows], values[rows])
        growth = max(_MIN_GROWTH, _GROWTH * self._num_fitted)
        if self._hyperparameters is None or not self._num_fitted <= len(features) < self._num_fitted + growth:
            self._hyperparameters = fit_hyperparameters(observed, targets, self._hyperparameters)
            self._num_fitted = len(features)
        self._regression, self._last = Regression(observed, targets, self._hyperparameters), None

    def start_from(self, earlier: Sequence[tuple[GraphFeatures, Tensor]]) -> None:
        """Learn earlier searches as further tasks (the task is an input with a length of its own, Swersky et al. 2013).

        The distance of tasks is one more distance of the kernel. Its weight follows from the observations: an earlier
        search whose scores tell nothing of today's is far away.
        """
        for number, (features, scores) in enumerate(earlier, 1):
            values = Warping.of(scores).warp(scores)
            rows = best_and_random(values, MAX_FIT_ROWS // len(earlier), seed=self.seed)
            self._earlier.append((features[rows].with_source(number, len(earlier) + 1), values[rows]))

    def predict(self, features: GraphFeatures) -> Prediction:
        return self._at(features).prediction

    def covariance(self, features: GraphFeatures, row: int) -> Tensor:
        """Return the covariances of the warped mean scores of B graphs with that of one."""
        return self._at(features).covariances[row]

    def warp(self, scores: Tensor) -> Tensor:
        return self._warping.warp(scores)

    def unwarp(self, values: Tensor) -> Tensor:
        return self._warping.unwarp(values)

    def state_dict(self) -> dict[str, Any]:
        fitted = None if self._hyperparameters is None else vars(self._hyperparameters)
        return {"hyperparameters": fitted, "num_fitted": self._num_fitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        fitted, self._num_fitted = state["hyperparameters"], state["num_fitted"]
        self._hyperparameters = None if fitted is None else Hyperparameters(**fitted)
        self._regression = self._last = None

    def _at(self, features: GraphFeatures) -> Conditional:
        if self._regression is None:
            raise ValueError("predict: expected a fitted surrogate, got one without observations")
        if self._last is None or self._last[0] is not features:
            self._last = features, Conditional(self._regression, self._of_today(features))
        return self._last[1]

    def _of_today(self, features: GraphFeatures) -> GraphFeatures:
        return features.with_source(0, len(self._earlier) + 1) if self._earlier else features

    def _with_earlier(self, features: GraphFeatures, values: Tensor) -> tuple[GraphFeatures, Tensor]:
        """Return the observations of all searches, today's first."""
        if not self._earlier:
            return features, values
        encoded, known = zip(*self._earlier, strict=True)
        return GraphFeatures.cat([self._of_today(features), *encoded]), torch.cat([values, *known])


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
