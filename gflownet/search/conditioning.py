"""Batches whose members know of each other, and first designs that cover a space.

Letters: B candidates, D numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.search.surrogate import Prediction, Surrogate

_MIN_VARIANCE = 1e-10  # of a prediction
_NUM_TRIED = 4  # random points of which a design takes one


class Believed:
    """Predictions of B candidates, some of which are taken to score their mean (kriging believer, Ginsbourger 2010).

    The means stay, and the deviations of candidates that correlate with those shrink. Surrogates without covariances
    predict as before.
    """

    def __init__(self, surrogate: Surrogate, features: Any) -> None:
        self._surrogate, self._features = surrogate, features
        self.prediction = surrogate.predict(features)
        self.best = -torch.inf  # mean of the believed candidates
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


class BelievedModel:
    """The same for each surrogate of a search."""

    def __init__(self, surrogates: Sequence[Surrogate], features: Any) -> None:
        self.parts = [Believed(surrogate, features) for surrogate in surrogates]

    def add(self, row: int) -> None:
        """Take candidate `row` to score its means."""
        for part in self.parts:
            part.add(row)


def spread_order(points: Tensor) -> Tensor:
    """Return the positions of random points [B, D], spread ones first (Mitchell 1991, best-candidate sampling).

    Of each four points the one that is farthest from those before is chosen. Farthest of all points would be extremes.
    """
    chosen = [0]
    for tried in torch.arange(1, len(points)).split(_NUM_TRIED) if len(points) > 1 else ():
        distance = torch.cdist(points[tried], points[chosen]).amin(1)
        chosen.append(int(tried[distance.argmax()]))
    first = torch.tensor(chosen[: len(points)], dtype=torch.int64)
    rest = torch.arange(len(points))
    return torch.cat([first, rest[~torch.isin(rest, first)]])
