"""Random forest on descriptors of architectures (Breiman 2001), with the errors of its out-of-bag predictions.

Letters: T trees, n observations, B architectures, D numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.config import SurrogateConfig
from gflownet.search.descriptors import Descriptors
from gflownet.search.surrogate import CrossValidated, Prediction, Warping, check_scores, next_fit

_NUM_TREES = 100
_MIN_STD = 1e-3  # of a prediction, in warped scores
_MIN_LEAF, _MAX_FEATURES = 2, 0.5  # observations of a leaf, share of the numbers tried at a split
_MODEL_SHARE = 0.5  # of the variance that the trees leave unexplained: not noise of an evaluation


class RandomForest(CrossValidated):
    """Regression trees on bootstrap samples; their disagreement and the out-of-bag error are the deviation."""

    def __init__(
        self, env: Environment, config: SurrogateConfig, *, seed: int, descriptors: Descriptors | None = None
    ) -> None:
        """Keep the components; `descriptors` of others are shared."""
        super().__init__(env, config, seed=seed)
        self._descriptors = descriptors or Descriptors(env, seed=seed)
        self._growth_warping = self._warping  # of the scores when the trees grew
        self._num_fitted = 0  # observations when the trees grew
        self._trees: list[Any] = []
        self._unseen = torch.empty(0, 0, dtype=torch.bool)  # [T, n], observations out of the bag of each tree
        self._left_out: Prediction | None = None
        self._variance = 0.0  # that the trees leave unexplained
        self._last: tuple[Tensor, Tensor] | None = None  # features and the outputs of the trees [T, B]

    def encode(self, states: GraphStates) -> Tensor:
        """Return the numbers of B terminal states, [B, D] float64."""
        return self._descriptors(states)

    def prepare(self) -> None:
        """Import the trees, which takes a second."""
        _tree_class()

    def fit(self, features: Tensor, scores: Tensor) -> None:
        """Grow all trees, again after enough new observations."""
        check_scores(features, scores)
        self._warping, self._last = Warping.of(scores), None
        if not self._num_fitted <= len(features) < next_fit(self._num_fitted):
            self._trees, self._num_fitted = [], len(features)
        num = self._num_fitted
        if not self._trees:
            self._grow(features[:num], scores[:num])
        self._calibrate(self._outputs(features[:num]), self.warp(scores[:num]))

    def predict(self, features: Tensor) -> Prediction:
        outputs = self._outputs(features)
        variance = outputs.var(0, correction=0) + self._variance
        return Prediction(outputs.mean(0), variance.sqrt(), self._noise)

    def covariance(self, features: Tensor, row: int) -> Tensor:
        """Return the covariances of the trees' outputs, and at `row` the rest of the variance that is not noise."""
        outputs = self._outputs(features)
        centred = outputs - outputs.mean(0)
        result = centred.T @ centred[:, row] / len(outputs)
        result[row] += self._variance - self._noise**2
        return result

    def held_out(self) -> Prediction:
        """Return the out-of-bag predictions [n]."""
        assert self._left_out is not None
        return self._left_out

    def state_dict(self) -> dict[str, Any]:
        return {"num_fitted": self._num_fitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; `fit` grows the trees."""
        self._trees, self._last, self._num_fitted = [], None, state["num_fitted"]

    @property
    def _noise(self) -> float:
        return ((1 - _MODEL_SHARE) * self._variance) ** 0.5

    def _grow(self, features: Tensor, scores: Tensor) -> None:
        self._growth_warping, num = Warping.of(scores), len(scores)
        values, numbers = self._growth_warping.warp(scores).numpy(), features.numpy()
        generator = np.random.default_rng(self.seed % 2**63)
        rows = generator.integers(num, size=(_NUM_TREES, num))
        self._trees = _grown(numbers.astype(np.float32), values, rows, generator)
        unseen = np.ones(rows.shape, bool)
        np.put_along_axis(unseen, rows, values=False, axis=1)
        self._unseen = torch.from_numpy(unseen | ~unseen.any(0))  # a row that all trees have seen counts for all

    def _outputs(self, features: Tensor) -> Tensor:
        """Return the outputs of all trees, [T, B] float64."""
        if not self._trees:
            raise ValueError("predict: expected a fitted surrogate, got one without observations")
        if self._last is None or self._last[0] is not features:
            numbers = features.numpy().astype(np.float32)
            outputs = torch.empty(len(self._trees), len(numbers), dtype=torch.float64)
            nodes = torch.from_numpy(np.concatenate([tree.tree_.value[:, 0, 0] for tree in self._trees]))
            sizes = [tree.tree_.node_count for tree in self._trees]
            values = self.warp(self._growth_warping.unwarp(nodes)).split(sizes)  # of nodes: fewer than architectures
            for row, tree in enumerate(self._trees):
                outputs[row] = values[row][torch.from_numpy(tree.tree_.apply(numbers))]
            self._last = features, outputs
        return self._last[1]

    def _calibrate(self, outputs: Tensor, values: Tensor) -> None:
        num = self._unseen.sum(0)
        mean = (outputs * self._unseen).sum(0) / num
        spread = ((outputs - mean).square() * self._unseen).sum(0) / num
        error = float(((values - mean).square() - spread).mean())
        self._variance = max(error, _MIN_STD**2)
        self._left_out = Prediction(mean, (spread + self._variance).sqrt(), self._noise)


def _tree_class() -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor


def _grown(numbers: np.ndarray, values: np.ndarray, rows: np.ndarray, generator: np.random.Generator) -> list[Any]:
    """Return a tree for each sample [T, n] of the rows of observations [n, D] float32 and [n]."""
    import sklearn

    def tree() -> Any:
        seed = int(generator.integers(2**31))
        return _tree_class()(min_samples_leaf=_MIN_LEAF, max_features=_MAX_FEATURES, random_state=seed)

    with sklearn.config_context(skip_parameter_validation=True):  # two thirds of the time for a few observations
        return [tree().fit(numbers[sample], values[sample], check_input=False) for sample in rows]
