"""What a search predicts about candidates: scores or objectives, hard caps, and the acquisition of all together.

Letters: n observations, B candidates, K objectives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.evaluation.task import Score
from gflownet.mdp.states import GraphStates
from gflownet.search.acquisition import Boxes, boxes_above, log_expected_improvement, log_improvement
from gflownet.search.config import SURROGATES
from gflownet.search.history import History
from gflownet.search.method import SearchSetup
from gflownet.search.surrogate import Prediction, Surrogate

_MIN_VARIANCE = 1e-10  # of a prediction
_NUM_TRIED = 4  # random points of which a design takes one


class Fantasies:
    """Predictions of B candidates, some of which are taken to score their mean (kriging believer, Ginsbourger 2010).

    The means stay, and the deviations of candidates that correlate with those shrink. Surrogates without covariances
    predict as before.
    """

    def __init__(self, surrogate: Surrogate, features: Any) -> None:
        self._surrogate, self._features = surrogate, features
        self.prediction = surrogate.predict(features)
        self.best = -torch.inf  # mean of those candidates
        self._columns: list[Tensor] = []  # [B] each, of the Cholesky factor of the posterior covariance

    def add(self, row: int) -> None:
        """Take candidate `row` to score its mean."""
        before = self.prediction
        self.best = max(self.best, float(before.mean[row]))
        covariance = self._surrogate.covariance(self._features, row)
        if covariance is None:
            return
        for column in self._columns:
            covariance = covariance - column * column[row]
        column = covariance / before.std[row]
        self._columns.append(column)
        variance = (before.std.square() - column.square()).clamp(min=max(before.noise**2, _MIN_VARIANCE))
        self.prediction = Prediction(before.mean, variance.sqrt(), before.noise)


def spread_order(points: Tensor) -> Tensor:
    """Return the positions of random points [B, D], spread ones first (Mitchell 1991, best-candidate sampling).

    Of each four points the one that is farthest from those before is chosen. Farthest of all points would be extremes.
    """
    chosen = [0]
    for tried in torch.arange(1, len(points)).split(_NUM_TRIED) if len(points) > 1 else ():
        distance = torch.cdist(points[tried], points[chosen]).amin(1)
        chosen.append(int(tried[distance.argmax()]))
    first = torch.tensor(chosen[: len(points)], dtype=torch.int64)
    every = torch.arange(len(points))
    return torch.cat([first, every[~torch.isin(every, first)]])


class Cap:
    """One metric with a limit, and the surrogate that predicts it; smaller values are better."""

    def __init__(self, name: str, limit: float, surrogate: Surrogate) -> None:
        self.name, self.limit, self.surrogate = name, limit, surrogate
        self._is_fitted = False

    def fit(self, features: Any, metrics: Sequence[Mapping[str, float]]) -> None:
        """Fit to the n observations that have a finite value of the metric."""
        values = [row.get(self.name, math.nan) for row in metrics]
        positions = torch.tensor([place for place, value in enumerate(values) if math.isfinite(value)])
        self._is_fitted = bool(len(positions))
        if self._is_fitted:
            # Negated, so that the warp compresses values far above the median, which never are within the limit.
            scores = -torch.tensor(values, dtype=torch.float64)[positions]
            self.surrogate.fit(features[positions], scores)

    def log_probability(self, features: Any) -> Tensor:
        """Return log P(value <= limit) of candidates [B] float64, without underflow; 0 without observations."""
        if not self._is_fitted:
            return torch.zeros(len(features), dtype=torch.float64)
        limit = self.surrogate.warp(torch.tensor([-self.limit], dtype=torch.float64))
        prediction = self.surrogate.predict(features)
        return torch.special.log_ndtr((prediction.mean.double() - float(limit)) / prediction.std.double())


class CandidateModel:
    """Surrogates of the score, or of each objective, and of each capped metric, on the same features.

    With one score, the acquisition is the expected improvement; with objectives the expected hypervolume improvement of
    utilities above 0. Both are relative to the feasible observations, and are
    multiplied with the probability of feasibility. Without a feasible observation they are that probability alone.
    """

    def __init__(self, setup: SearchSetup) -> None:
        self._setup, self._task, self._prior = setup, setup.task, setup.prior
        self._has_started = False  # from what earlier searches know
        num_objectives = len(self._task.chosen_objectives)
        self.surrogates: list[Surrogate] = [setup.build_surrogate() for _ in range(max(1, num_objectives))]
        self.caps = [Cap(name, limit, setup.build_surrogate()) for name, limit in self._task.limits.items()]
        self.has_objectives = num_objectives > 0
        self._best = -math.inf  # warped score of the best feasible observation
        self._boxes: Boxes | None = None  # above the front of the feasible observations

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate of the score, or of the first objective."""
        return self.surrogates[0]

    def encode(self, states: GraphStates) -> Any:
        """Return the features of terminal states."""
        return self.surrogate.encode(states)

    def targets(self, history: History) -> Tensor:
        """Return what the surrogates predict: [n, 1] measured scores or [n, K] utilities, float64."""
        return self._setup.estimates(self.measured(history), history.metrics)

    def measured(self, history: History) -> Tensor:
        """Return the measured scores [n, 1] or utilities [n, K], float64."""
        if not self.has_objectives:
            return torch.tensor(history.measured, dtype=torch.float64)[:, None]
        failed = (0.0,) * len(self.surrogates)
        rows = [
            self._task.utilities(Score(measured, None, metrics)) if status is EvaluationStatus.OK else failed
            for measured, metrics, status in zip(history.measured, history.metrics, history.statuses, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def fit(self, history: History, positions: Tensor) -> None:
        """Fit all surrogates to the observations at positions [n] of the history."""
        features, targets = self.encode(history.states[positions]), self.targets(history)[positions]
        self._start()
        for surrogate, column in zip(self.surrogates, targets.T, strict=True):
            surrogate.fit(features, column)
        metrics = [history.metrics[position] for position in positions.tolist()]
        for cap in self.caps:
            cap.fit(features, metrics)
        feasible = targets[self._is_feasible(history, positions)]
        self._best = float(self.surrogate.warp(feasible[:, 0]).max()) if len(feasible) else -math.inf
        if self.has_objectives:
            self._boxes = boxes_above(feasible, torch.zeros(feasible.shape[1], dtype=torch.float64))

    def log_values(self, features: Any, fantasies: Sequence[Fantasies] = ()) -> Tensor:
        """Return the logarithm of the acquisition of candidates, [B] float64, given fantasies of the same ones."""
        feasible = self._log_feasibility(features)
        if self.caps and math.isinf(self._best):
            return feasible
        return feasible + self._log_improvement(fantasies or self.fantasies(features))

    def fantasies(self, features: Any) -> list[Fantasies]:
        """Return the predictions of each surrogate, for batches that are chosen one by one."""
        return [Fantasies(surrogate, features) for surrogate in self.surrogates]

    def predict(self, features: Any) -> Prediction:
        """Return the distribution of the warped score, or of the first objective."""
        return self.surrogate.predict(features)

    def expected_scores(self, features: Any) -> Tensor:
        """Return predicted scores [B], or utilities [B, K], times the probability of feasibility, float64."""
        columns = [each.unwarp(each.predict(features).mean).double().clamp(min=0) for each in self.surrogates]
        probability = self._log_feasibility(features).exp()
        return probability[:, None] * torch.stack(columns, 1) if self.has_objectives else probability * columns[0]

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the hyperparameters of all surrogates."""
        return [surrogate.state_dict() for surrogate in self._all]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Restore the result of `state_dict`; `fit` follows."""
        for surrogate, values in zip(self._all, state, strict=True):
            surrogate.load_state_dict(values)

    def _start(self) -> None:
        """Give the surrogates of scores and objectives the evaluations of earlier searches."""
        if self._has_started or not self._prior.searches:
            return
        self._has_started, histories = True, [each.history for each in self._prior.searches]
        known = [(self.encode(each.states), self.measured(each)) for each in histories]
        for place, surrogate in enumerate(self.surrogates):
            surrogate.start_from([(features, values[:, place]) for features, values in known])

    def _log_feasibility(self, features: Any) -> Tensor:
        """Return the logarithm of the probability that all caps hold, [B] float64."""
        total = torch.zeros(len(features), dtype=torch.float64)
        for cap in self.caps:
            total += cap.log_probability(features)
        return total

    @property
    def _all(self) -> list[Surrogate]:
        return [*self.surrogates, *(cap.surrogate for cap in self.caps)]

    def _is_feasible(self, history: History, positions: Tensor) -> Tensor:
        """Return which observations [n] are within all caps; a failed one is, without caps."""
        limits = self._task.limits
        return torch.tensor(
            [
                all(history.metrics[position].get(name, math.inf) <= limit for name, limit in limits.items())
                for position in positions.tolist()
            ],
            dtype=torch.bool,
        )

    def _log_improvement(self, fantasies: Sequence[Fantasies]) -> Tensor:
        """Return the logarithm of the improvement [B], without regard to caps."""
        if not self.has_objectives:
            values = log_improvement(fantasies[0].prediction, max(self._best, fantasies[0].best))
            if num := int(values.isnan().sum()):
                raise UserError(f"{SURROGATES.key}: expected predictions without NaN, got {num} NaN")
            return values
        assert self._boxes is not None
        pairs = zip(self.surrogates, fantasies, strict=True)
        mean, std = zip(*(in_scores(surrogate, each.prediction) for surrogate, each in pairs), strict=True)
        return log_expected_improvement(torch.stack(mean, 1), torch.stack(std, 1), self._boxes)


def observed(history: History) -> Tensor:
    """Return the positions [n] of the observations of a history: all evaluations that were not refused."""
    is_observation = [status is not EvaluationStatus.REFUSED for status in history.statuses]
    return torch.tensor(is_observation, dtype=torch.bool).nonzero().squeeze(1)


def in_scores(surrogate: Surrogate, prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Return a central value and a deviation [B] in scores: half the distance between the ends of mean +- std."""
    low, high = (surrogate.unwarp(prediction.mean + sign * prediction.std) for sign in (-1, 1))
    return surrogate.unwarp(prediction.mean), (high - low) / 2
