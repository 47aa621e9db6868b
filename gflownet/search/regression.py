"""Gaussian process regression on graphs with rows that are added one by one, its kernel and hyperparameters.

The correlation of two graphs is a Matern 5/2 function of r^2 = sum_k w_k d_k^2, with one squared distance d_k^2 per
block of features. Mean and variance have closed forms; weights w_k and noise are powers of two, found by coordinate
ascent on a grid. Their prior matters for the first observations, which several explanations fit equally well.

Letters: K distances, n observations, m of them in the model, G candidate hyperparameters, B predicted graphs.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.search.features import GraphFeatures, Points, WeightedDistances
from gflownet.search.surrogate import Prediction

# Powers of two: of the weights of distances in units of their median, and of the noise variance over the signal's.
_WEIGHTS = torch.arange(-8.0, 6.0, 2.0, dtype=torch.float64)
_NOISES = torch.arange(-9.0, 1.0, 2.0, dtype=torch.float64)
_SHIFTS = torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)  # of all weights together
# Normal prior of all powers: centres, and half of the inverse variance.
_FIRST_WEIGHT, _FIRST_NOISE, _PRIOR_PRECISION = -3.0, -5.0, 0.1
_MAX_SWEEPS = 2  # over all coordinates, per fit; the next fit continues
JITTER = 1e-8  # added to the noise, relative to the signal's variance
# One observation of the prior: a variance of 1 in warped scores, whose upper tenth begins at 1.
PRIOR_VARIANCE, PRIOR_OBSERVATIONS = 1.0, 1.0


@dataclass(frozen=True)
class Hyperparameters:
    """Weights of the distances and variance of the noise, as powers of two."""

    weights: Tensor  # [K] float64; -inf: not used
    noise: float

    @classmethod
    def initial(cls, num_distances: int) -> Hyperparameters:
        """Return the start of the first fit."""
        return cls(torch.full((num_distances,), _FIRST_WEIGHT, dtype=torch.float64), _FIRST_NOISE)

    @property
    def noise_variance(self) -> float:
        """Return the variance of the noise over that of the signal."""
        return 2.0**self.noise + JITTER


def correlation(squared: Tensor) -> Tensor:
    """Return Matern 5/2 correlations of squared distances, whose memory is used."""
    distance = squared.mul_(5).sqrt_()
    polynomial = distance.square().div_(3).add_(distance).add_(1)
    return distance.neg_().exp_().mul_(polynomial)


@dataclass(frozen=True)
class Posterior:
    """Mean, scale and whitened residuals of observations under a kernel."""

    mean: Tensor  # [], generalised least squares
    variance: Tensor  # [], of the signal
    residuals: Tensor  # [n], L^-1 (y - mean)

    @classmethod
    def of(cls, factor: Tensor, values: Tensor) -> Posterior:
        """Return the posterior of values [..., n] with Cholesky factors [..., n, n]."""
        columns = torch.stack([values, torch.ones_like(values)], -1).expand(*factor.shape[:-1], 2)
        solved, ones = torch.linalg.solve_triangular(factor, columns, upper=False).unbind(-1)
        mean = (solved * ones).sum(-1) / ones.square().sum(-1)
        residuals = solved - mean[..., None] * ones
        total = PRIOR_OBSERVATIONS * PRIOR_VARIANCE + residuals.square().sum(-1)
        return cls(mean, total / (PRIOR_OBSERVATIONS + values.shape[-1]), residuals)


def log_prior(weights: Tensor, noise: Tensor) -> Tensor:
    """Return the logarithm of the prior density [G], up to a constant, of weights [G, K] and noises [G]."""
    distances = torch.where(weights.isinf(), 0.0, weights - _FIRST_WEIGHT)
    return -_PRIOR_PRECISION * (distances.square().sum(1) + (noise - _FIRST_NOISE).square())


def log_likelihoods(squared: Tensor, values: Tensor, weights: Tensor, noise: Tensor) -> Tensor:
    """Return log marginal likelihoods [G], up to a constant, of values [n] under G hyperparameters.

    Args:
        squared: [K, n, n] squared distances.
        values: [n] observations.
        weights: [G, K] powers of two.
        noise: [G] powers of two.
    """
    num = len(values)
    covariance = correlation(torch.tensordot(weights.exp2(), squared, 1))
    covariance.diagonal(dim1=1, dim2=2).add_((noise.exp2() + JITTER)[:, None])
    factor, failed = torch.linalg.cholesky_ex(covariance)
    posterior = Posterior.of(factor, values)
    log_determinant = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    likelihood = -0.5 * (num + PRIOR_OBSERVATIONS) * posterior.variance.log() - log_determinant
    return likelihood.masked_fill(failed > 0, -math.inf)


def fit_hyperparameters(squared: Tensor, values: Tensor, start: Hyperparameters) -> Hyperparameters:
    """Return the most probable hyperparameters on the grid, by ascent from `start` and from the mean of the prior.

    Distances that repeat an earlier one, or that are all zero, are not used.
    """
    used = _distinct(squared)
    starts = [start, Hyperparameters.initial(len(squared))]
    results = [_ascend(squared, values, each, used) for each in starts]
    return max(results, key=lambda result: result[1])[0]


def _ascend(squared: Tensor, values: Tensor, start: Hyperparameters, used: Tensor) -> tuple[Hyperparameters, float]:
    """Return the end of an ascent and its log posterior density, up to a constant."""
    weights = start.weights.masked_fill(start.weights.isinf(), _FIRST_WEIGHT).masked_fill(~used, -math.inf)
    noise, best = torch.tensor(start.noise, dtype=torch.float64), -math.inf
    for _ in range(_MAX_SWEEPS):
        before = best
        for coordinate in [*used.nonzero().squeeze(1).tolist(), None, slice(None)]:
            rows, noises = _candidates(weights, noise, coordinate)
            densities = log_likelihoods(squared, values, rows, noises) + log_prior(rows, noises)
            index = int(densities.argmax())
            if float(densities[index]) > best:
                weights, noise, best = rows[index], noises[index], float(densities[index])
        if best <= before + 1e-9:
            break
    return Hyperparameters(weights, float(noise)), best


def _candidates(weights: Tensor, noise: Tensor, coordinate: int | slice | None) -> tuple[Tensor, Tensor]:
    """Return hyperparameters [G, K] and [G] along one coordinate: a weight, all weights together, or the noise."""
    if coordinate is None:
        return weights.expand(len(_NOISES), -1), _NOISES
    if isinstance(coordinate, slice):
        rows = (weights + torch.cat([_SHIFTS.new_zeros(1), _SHIFTS])[:, None]).clamp(max=float(_WEIGHTS[-1]))
    else:
        rows = weights.repeat(len(_WEIGHTS) + 1, 1)
        rows[1:, coordinate] = _WEIGHTS
    return rows, noise.expand(len(rows))


def _distinct(squared: Tensor) -> Tensor:
    """Return which distances are neither zero everywhere nor equal to an earlier one, [K] bool."""
    used = squared.flatten(1).any(1)
    for later in range(len(squared)):
        used[later] &= not any(bool(used[k]) and torch.equal(squared[k], squared[later]) for k in range(later))
    return used


_MAX_FIT_ROWS = 200  # observations of a fit of hyperparameters, whose cost grows with their third power
_MAX_ENTRIES = 2**19  # of one array at a time, to bound memory
_MAX_DOUBLES = 2**23  # of the whitened covariances of all predicted graphs; float32 above
MAX_KEPT_BYTES = 160 * 2**20  # of the same, at the last fit of hyperparameters
_BLOCK_ROWS = 32  # rows allocated together
_MIN_VARIANCE = 1e-10  # of a prediction, relative to the signal's
_JITTERS = (0.0, 1e-6, 1e-4, 1e-2)  # added until a covariance has a Cholesky factor


class Regression:
    """The Cholesky factor of m observations and their posterior."""

    def __init__(self, features: GraphFeatures, rows: Tensor, hyperparameters: Hyperparameters) -> None:
        """Factorise the covariance of the observations at `rows` [m]."""
        self.hyperparameters, self.rows, self.num_fitted = hyperparameters, rows, len(rows)
        self.points = Points(features[rows])
        self.weights = hyperparameters.weights.exp2() / self.points.median_scales()  # [K], of squared distances
        correlations = torch.empty(len(rows), len(rows), dtype=torch.float64)
        for part in torch.arange(len(rows)).split(max(1, _MAX_ENTRIES // len(rows))):
            kinds = self.points.kinds(Points(self.points.features[part]))
            correlations[part] = correlation(_weighted(kinds, self.weights))
        self.jitter, factor = _factorised(correlations, hyperparameters.noise_variance)
        self._factor = _grown(factor, (len(rows) + 1, len(rows) + 1))

    @staticmethod
    def fitted_hyperparameters(
        features: GraphFeatures, values: Tensor, rows: Tensor, start: Hyperparameters | None
    ) -> Hyperparameters:
        """Return hyperparameters fitted to the values at `rows`, to some of them where there are many."""
        fitted = rows[best_and_random(values[rows], _MAX_FIT_ROWS, seed=len(rows))]
        points = Points(features[fitted])
        squared = points.distances(points)
        squared /= points.median_scales()[:, None, None]
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
        correlations = correlation(_weighted(self.points.kinds(new), self.weights))
        self._factor = _grown(self._factor, (len(self.rows), len(self.rows)))
        noise = self.hyperparameters.noise_variance + self.jitter
        for row, covariance in enumerate(correlations, start=first):
            block = self._factor[:row, :row]
            solved = torch.linalg.solve_triangular(block, covariance[:row, None], upper=False).squeeze(1)
            self._factor[row, :row] = solved
            self._factor[row, row] = (1 + noise - solved.square().sum()).clamp(min=noise).sqrt()

    def observe(self, values: Tensor) -> None:
        """Set the values of all observations."""
        self.posterior = Posterior.of(self.factor, values[self.rows])

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise of one observation."""
        return math.sqrt(float(self.posterior.variance) * self.hyperparameters.noise_variance)


class CrossCovariance:
    """Covariances of B graphs with the observations, extended when observations are added.

    Above `MAX_KEPT_BYTES` nothing is kept: each prediction computes them again, for some of the graphs at a time.
    """

    def __init__(self, features: GraphFeatures) -> None:
        self.features = features
        self._regression: Regression | None = None
        self._distances: WeightedDistances | None = None  # of the B graphs, once one of them is needed
        self._blocks: list[Tensor] = []  # [rows, B] each, of L^-1 k(observations, graphs)
        self._explained = torch.empty(0)  # [B] float64, sums of squares of its columns
        self._num_rows = 0

    def predict(self, regression: Regression) -> Prediction:
        """Return the distributions of the values of the B graphs."""
        if (parts := self._parts(regression)) is not None:
            predictions = [CrossCovariance(self.features[part]).predict(regression) for part in parts]
            mean, std = (torch.cat([getattr(each, name) for each in predictions]) for name in ("mean", "std"))
            return Prediction(mean, std, regression.noise)
        self._update(regression)
        posterior = regression.posterior
        mean = posterior.mean.repeat(len(self.features))
        for rows, whitened in self._whitened():
            mean += posterior.residuals[rows].to(whitened) @ whitened
        variance = posterior.variance * (1 - self._explained).clamp(min=_MIN_VARIANCE)
        return Prediction(mean, (variance + regression.noise**2).sqrt(), regression.noise)

    def covariance(self, regression: Regression, row: int) -> Tensor:
        """Return the covariances [B] with the graph at `row`."""
        if (parts := self._parts(regression)) is not None:
            pairs = (self.features[torch.cat([torch.tensor([row]), part])] for part in parts)
            return torch.cat([CrossCovariance(each).covariance(regression, 0)[1:] for each in pairs])
        self._update(regression)
        covariances = self._correlations(regression, self.features[row : row + 1])
        for _, whitened in self._whitened():
            covariances -= whitened[:, row] @ whitened
        return regression.posterior.variance * covariances

    def _parts(self, regression: Regression) -> Sequence[Tensor] | None:
        """Return the graphs at a time where the covariances of all are too large to keep, else None."""
        size = max(1, MAX_KEPT_BYTES // (4 * regression.num_fitted) - 1)
        return None if len(self.features) <= size + 1 else torch.arange(len(self.features)).split(size)

    def _update(self, regression: Regression) -> None:
        if self._regression is not regression:
            self._restart(regression)
        for row in range(self._num_rows, len(regression.rows)):
            self._append(regression, row)

    def _whitened(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows that are filled, with their positions."""
        first = 0
        for block in self._blocks:
            last = min(first + len(block), self._num_rows)
            yield slice(first, last), block[: last - first]
            first = last

    def _restart(self, regression: Regression) -> None:
        num, size = regression.num_fitted, len(self.features)
        dtype = torch.float64 if num * size <= _MAX_DOUBLES else torch.float32
        self._blocks = []  # before the next ones are allocated
        self._distances = None
        if dtype == torch.float32:
            _trim_heap()
        self._blocks, self._num_rows = [torch.empty(num, size, dtype=dtype)], num
        self._explained = torch.empty(size, dtype=torch.float64)
        factor = regression.factor[:num, :num].to(dtype)
        distances = WeightedDistances(regression.points.features[:num], regression.weights, dtype)
        for part in torch.arange(size).split(max(1, _MAX_ENTRIES // num)):
            covariance = correlation(distances(self.features[part])).T
            whitened = torch.linalg.solve_triangular(factor, covariance, upper=False)
            self._blocks[0][:, part] = whitened
            self._explained[part] = whitened.square().sum(0, dtype=torch.float64)
        self._regression = regression
        if dtype == torch.float32:
            _trim_heap()

    def _correlations(self, regression: Regression, other: GraphFeatures) -> Tensor:
        """Return the correlations [B] with one other graph."""
        if self._distances is None:
            self._distances = WeightedDistances(self.features, regression.weights)
        return correlation(self._distances(other))[0]

    def _append(self, regression: Regression, row: int) -> None:
        covariance = self._correlations(regression, regression.points.features[row : row + 1])
        factor = regression.factor[row]
        for rows, white in self._whitened():
            covariance -= factor[rows].to(white) @ white
        whitened = covariance / factor[row]
        if row == sum(map(len, self._blocks)):
            self._blocks.append(torch.empty(_BLOCK_ROWS, len(self.features), dtype=self._blocks[0].dtype))
        self._blocks[-1][row - sum(map(len, self._blocks[:-1]))] = whitened
        self._explained += whitened.square()
        self._num_rows = row + 1


def _trim_heap() -> None:
    """Return freed memory to the system, before and after arrays of many megabytes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _weighted(kinds: Iterable[Tensor], weights: Tensor) -> Tensor:
    """Return the sum of squared distances [K, B, n], each times its weight, [B, n] float64."""
    total = torch.zeros(())
    for squared, weight in zip(kinds, weights.tolist(), strict=True):
        total = squared.mul_(weight).add_(total)
    return total


def best_and_random(values: Tensor, num: int, *, seed: int) -> Tensor:
    """Return up to `num` positions, sorted: all, or those of the best values and as many random others."""
    if len(values) <= num:
        return torch.arange(len(values))
    order = values.argsort(descending=True, stable=True)
    best, worse = order[: (num + 1) // 2], order[(num + 1) // 2 :]
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([best, worse[torch.randperm(len(worse), generator=generator)[: num // 2]]]).sort().values


def _factorised(correlations: Tensor, noise: float) -> tuple[float, Tensor]:
    """Return the jitter that was necessary, and the Cholesky factor of correlations, whose diagonal gets the noise."""
    diagonal = correlations.diagonal().clone()
    for jitter in _JITTERS:
        correlations.diagonal().copy_(diagonal + (noise + jitter))
        factor, failed = torch.linalg.cholesky_ex(correlations)
        if not bool(failed):
            return jitter, factor
    raise AssertionError("a correlation matrix is not positive definite")


def _grown(array: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return an array of at least this shape with the same first entries; capacities grow by an eighth."""
    if all(size >= needed for size, needed in zip(array.shape, shape, strict=True)):
        return array
    capacity = [
        size if size >= needed else needed + needed // 8 for size, needed in zip(array.shape, shape, strict=True)
    ]
    grown = array.new_zeros(capacity)
    grown[: array.shape[0], : array.shape[1]] = array
    return grown
