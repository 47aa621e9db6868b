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
_MIN_COMPARED = 3  # observations before earlier searches may be left out


class GaussianProcess(Surrogate):
    """Exact Gaussian process up to _MAX_ROWS observations; of more, the best half and random ones."""

    def __init__(self, env: Environment, config: SurrogateConfig, *, seed: int) -> None:
        """Keep the components; `fit` sets the warping."""
        super().__init__(env, config, seed=seed)
        self._warping = Warping(0.0, 1.0)
        self._encoder = WeisfeilerLehman(env, num_rounds=_NUM_ROUNDS)
        self._hyperparameters: list[Hyperparameters] = []  # of today's observations alone, and with earlier ones
        self._num_fitted = 0  # observations at the last fit of hyperparameters
        self._regression: Regression | None = None
        self._last: tuple[GraphFeatures, Conditional] | None = None  # of the last predictions
        self._earlier: list[tuple[GraphFeatures, Tensor]] = []  # of each earlier search, with warped scores
        self._uses_earlier = False

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
        observations = [(features[rows], values[rows])]
        if self._earlier:
            encoded, known = zip((self._of_today(features[rows]), values[rows]), *self._earlier, strict=True)
            observations.append((GraphFeatures.cat(encoded), torch.cat(known)))
        growth = max(_MIN_GROWTH, _GROWTH * self._num_fitted)
        if not self._hyperparameters or not self._num_fitted <= len(features) < self._num_fitted + growth:
            starts = self._hyperparameters or [None] * len(observations)
            pairs = zip(observations, starts, strict=True)
            self._hyperparameters = [fit_hyperparameters(*each, start) for each, start in pairs]
            self._num_fitted = len(features)
        models = [Regression(*each, found) for each, found in zip(observations, self._hyperparameters, strict=True)]
        if len(rows) < _MIN_COMPARED:
            self._regression = models[-1]
        else:
            self._regression = max(models, key=lambda model: model.log_density(len(rows)))
        self._uses_earlier, self._last = self._regression is not models[0], None

    def start_from(self, earlier: Sequence[tuple[GraphFeatures, Tensor]]) -> None:
        """Learn earlier searches as further tasks (the task is an input with a length of its own, Swersky et al. 2013).

        The distance of tasks is one more distance of the kernel, whose weight follows from the observations. Where
        today's ones are predicted better from today's alone, each from all others, the earlier ones are not used.
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
        return {"hyperparameters": [vars(each) for each in self._hyperparameters], "num_fitted": self._num_fitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._hyperparameters = [Hyperparameters(**each) for each in state["hyperparameters"]]
        self._num_fitted = state["num_fitted"]
        self._regression = self._last = None

    def _at(self, features: GraphFeatures) -> Conditional:
        if self._regression is None:
            raise ValueError("predict: expected a fitted surrogate, got one without observations")
        if self._last is None or self._last[0] is not features:
            encoded = self._of_today(features) if self._uses_earlier else features
            self._last = features, Conditional(self._regression, encoded)
        return self._last[1]

    def _of_today(self, features: GraphFeatures) -> GraphFeatures:
        return features.with_source(0, len(self._earlier) + 1)


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
