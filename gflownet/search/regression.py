"""Gaussian process regression with rows that are added one by one.

Letters: K distances, m observations, B predicted graphs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gflownet.search.distances import DistanceCache, Points, median_scales
from gflownet.search.features import GraphFeatures
from gflownet.search.kernel import Hyperparameters, Posterior, correlation, fit_hyperparameters
from gflownet.search.surrogate import Prediction

_MAX_FIT_ROWS = 200  # observations of a fit of hyperparameters, whose cost grows with their third power
_MAX_ENTRIES = 2**22  # of one array at a time, to bound memory
_MAX_DOUBLES = 2**25  # of the whitened covariances of all predicted graphs; float32 above
_MIN_VARIANCE = 1e-10  # of a prediction, relative to the signal's
_JITTERS = (0.0, 1e-6, 1e-4, 1e-2)  # added until a covariance has a Cholesky factor


class Regression:
    """The Cholesky factor of m observations and their posterior."""

    def __init__(self, features: GraphFeatures, rows: Tensor, hyperparameters: Hyperparameters) -> None:
        """Factorise the covariance of the observations at `rows` [m]."""
        self.hyperparameters, self.rows, self.num_fitted = hyperparameters, rows, len(rows)
        self.points = Points(features[rows])
        squared = self.points.distances(self.points)
        self.weights = hyperparameters.weights.exp2() / median_scales(squared)  # [K], of squared distances
        correlations = correlation(torch.tensordot(self.weights, squared, 1))
        self.jitter, factor = _factorised(correlations, hyperparameters.noise_variance)
        self._factor = _grown(factor, (len(rows), len(rows)))

    @staticmethod
    def fitted_hyperparameters(
        features: GraphFeatures, values: Tensor, rows: Tensor, start: Hyperparameters | None
    ) -> Hyperparameters:
        """Return hyperparameters fitted to the values at `rows`, to some of them where there are many."""
        fitted = rows[best_and_random(values[rows], _MAX_FIT_ROWS, seed=len(rows))]
        points = Points(features[fitted])
        squared = points.distances(points)
        squared /= median_scales(squared)[:, None, None]
        if start is None or len(start.weights) != len(squared):
            start = Hyperparameters.initial(len(squared))
        return fit_hyperparameters(squared, values[fitted], start)

    @property
    def factor(self) -> Tensor:
        """Return the Cholesky factor [m, m] of correlations and noise."""
        return self._factor[: len(self.rows), : len(self.rows)]

    def append(self, features: GraphFeatures, rows: Tensor) -> None:
        """Add the observations at `rows`, one by one: the result does not depend on how many come together."""
        if not len(rows):
            return
        first, new = len(self.rows), Points(features[rows])
        self.rows = torch.cat([self.rows, rows])
        self.points = Points(features[self.rows])
        correlations = correlation(torch.tensordot(self.weights, self.points.distances(new), 1))
        self._factor = _grown(self._factor, (len(self.rows), len(self.rows)))
        noise = self.hyperparameters.noise_variance + self.jitter
        for row, covariance in enumerate(correlations, start=first):
            known = self._factor[:row, :row]
            solved = torch.linalg.solve_triangular(known, covariance[:row, None], upper=False).squeeze(1)
            self._factor[row, :row] = solved
            self._factor[row, row] = (1 + noise - solved.square().sum()).clamp(min=noise).sqrt()

    def observe(self, values: Tensor) -> None:
        """Set the values of all observations."""
        self.posterior = Posterior.of(self.factor, values[self.rows])

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise of one observation."""
        return math.sqrt(float(self.posterior.variance) * self.hyperparameters.noise_variance)

    def left_out(self) -> Prediction:
        """Return the predictions [m] of the observations, each from the others (Rasmussen and Williams, eq. 5.12)."""
        factor, posterior = self.factor, self.posterior
        identity = torch.eye(len(factor), dtype=factor.dtype)
        inverse_factor = torch.linalg.solve_triangular(factor, identity, upper=False)
        precision = inverse_factor.square().sum(0)  # diagonal of the inverse covariance
        error = (inverse_factor.T @ posterior.residuals) / precision  # value - prediction
        values = posterior.mean + factor @ posterior.residuals
        return Prediction(values - error, (posterior.variance / precision).sqrt(), self.noise)


class CrossCovariance:
    """Covariances of B graphs with the observations, extended when observations are added."""

    def __init__(self, features: GraphFeatures) -> None:
        self.features, self._cache = features, DistanceCache(features)
        self._regression: Regression | None = None
        self._whitened = torch.empty(0, len(features))  # [capacity, B], L^-1 k(observations, graphs)
        self._explained = torch.zeros(len(features), dtype=torch.float64)  # [B], sums of squares of its columns
        self._num_rows = 0

    def predict(self, regression: Regression) -> Prediction:
        """Return the distributions of the values of the B graphs."""
        if self._regression is not regression:
            self._restart(regression)
        if self._num_rows < len(regression.rows):
            self._cache.extend(regression.points, regression.rows)
        for row in range(self._num_rows, len(regression.rows)):
            self._append(regression, row)
        posterior, whitened = regression.posterior, self._whitened[: self._num_rows]
        mean = posterior.mean + (posterior.residuals.to(whitened) @ whitened).double()
        variance = posterior.variance * (1 - self._explained).clamp(min=_MIN_VARIANCE)
        return Prediction(mean, (variance + regression.noise**2).sqrt(), regression.noise)

    def covariance(self, regression: Regression, row: int) -> Tensor:
        """Return the covariances [B] with the graph at `row`, after `predict`."""
        graph = self.features[row : row + 1]
        squared = Points(graph).distances(Points(self.features))[:, :, 0]  # [K, B]
        prior = correlation(torch.tensordot(regression.weights, squared, 1))
        whitened = self._whitened[: self._num_rows]
        return regression.posterior.variance * (prior - (whitened[:, row] @ whitened).double())

    def _restart(self, regression: Regression) -> None:
        """Whiten the covariances with the observations of the last fit together."""
        self._cache.extend(regression.points, regression.rows)
        num, size = regression.num_fitted, len(self.features)
        dtype = torch.float64 if num * size <= _MAX_DOUBLES else torch.float32
        self._whitened = torch.empty(num, size, dtype=dtype)
        factor = regression.factor[:num, :num]
        for first in range(0, size, max(1, _MAX_ENTRIES // num)):
            part = slice(first, first + max(1, _MAX_ENTRIES // num))
            covariance = correlation(self._cache.weighted(regression.weights, slice(num), part))
            whitened = torch.linalg.solve_triangular(factor, covariance, upper=False)
            self._whitened[:, part] = whitened.to(dtype)
            self._explained[part] = whitened.square().sum(0)
        self._regression, self._num_rows = regression, num

    def _append(self, regression: Regression, row: int) -> None:
        covariance = correlation(self._cache.weighted(regression.weights, slice(row, row + 1)))[0]
        factor = regression.factor[row]
        known = factor[:row].to(self._whitened) @ self._whitened[:row]
        whitened = (covariance - known.double()) / factor[row]
        self._whitened = _grown(self._whitened, (row + 1, len(self.features)))
        self._whitened[row] = whitened.to(self._whitened)
        self._explained += whitened.square()
        self._num_rows = row + 1


def best_and_random(values: Tensor, num: int, *, seed: int) -> Tensor:
    """Return up to `num` positions, sorted: all, or those of the best values and as many random others."""
    if len(values) <= num:
        return torch.arange(len(values))
    order = values.argsort(descending=True, stable=True)
    best, rest = order[: (num + 1) // 2], order[(num + 1) // 2 :]
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([best, rest[torch.randperm(len(rest), generator=generator)[: num // 2]]]).sort().values


def _factorised(correlations: Tensor, noise: float) -> tuple[float, Tensor]:
    """Return the jitter that was necessary, and the Cholesky factor of correlations with noise on the diagonal."""
    for jitter in _JITTERS:
        covariance = correlations.clone()
        covariance.diagonal().add_(noise + jitter)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if not bool(failed):
            return jitter, factor
    raise AssertionError("a correlation matrix is not positive definite")


def _grown(array: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return an array of at least this shape with the same first entries; capacities grow by a half."""
    if all(size >= needed for size, needed in zip(array.shape, shape, strict=True)):
        return array
    capacity = [
        size if size >= needed else needed + needed // 2 for size, needed in zip(array.shape, shape, strict=True)
    ]
    grown = array.new_zeros(capacity)
    grown[: array.shape[0], : array.shape[1]] = array
    return grown
