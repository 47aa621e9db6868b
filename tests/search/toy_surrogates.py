"""A surrogate of a dozen lines, and one that is wrong on purpose."""

from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.states import GraphStates
from gflownet.search.surrogate import Prediction, Surrogate


class RidgeRegression(Surrogate):
    """Bayesian linear regression on the counts of types and values, and on which value every place has."""

    def encode(self, states: GraphStates) -> Tensor:
        types = torch.nn.functional.one_hot(states.node_type.long() + 1, 12).sum(1)
        values = torch.nn.functional.one_hot(states.node_attr.long() + 1, 12).flatten(2).flatten(1)
        return torch.cat([types, values, states.has_edge.sum((1, 2))[:, None]], 1).double()

    def fit(self, features: Tensor, scores: Tensor) -> None:
        self._mean, self._scale = float(scores.mean()), float(scores.std(correction=0)) or 1.0
        precision = features.T @ features + 0.1 * torch.eye(features.shape[1], dtype=torch.float64)
        self._covariance = torch.linalg.inv(precision)
        self._weights = self._covariance @ (features.T @ self.warp(scores))

    def predict(self, features: Tensor) -> Prediction:
        variance = ((features @ self._covariance) * features).sum(1)
        return Prediction(features @ self._weights, (0.05 + 0.1 * variance).sqrt())

    def warp(self, scores: Tensor) -> Tensor:
        return (scores.double() - self._mean) / self._scale

    def unwarp(self, values: Tensor) -> Tensor:
        return values * self._scale + self._mean

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Reversed(RidgeRegression):
    """Predicts the opposite: worse than the mean."""

    def predict(self, features: Tensor) -> Prediction:
        prediction = super().predict(features)
        return Prediction(-3 * prediction.mean, prediction.std)
