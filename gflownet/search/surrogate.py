"""The contract of a surrogate: a model that predicts scores from graphs.

Letters: n observations, B predicted architectures, D numeric features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.plugins import Configurable
from gflownet.search.config import SurrogateConfig


@dataclass(frozen=True)
class Prediction:
    """Normal distributions of the warped scores of B architectures, float64."""

    mean: Tensor  # [B]
    std: Tensor  # [B], of the score that an evaluation returns, with its noise

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
