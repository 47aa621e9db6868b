"""Gaussian process on Weisfeiler-Lehman features of graphs (Ru et al. 2021, Interpretable neural architecture search).

The correlation of two graphs is a Matern 5/2 function of r^2 = sum_k w_k d_k^2, with one squared distance d_k^2 per
block of features. Mean and variance have closed forms; weights w_k and noise are powers of two, found by coordinate
ascent on a grid. Their prior matters for the first observations, which several explanations fit equally well.

Letters: K distances, n observations, G candidate hyperparameters, B predicted graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.config import SurrogateConfig
from gflownet.search.features import GraphFeatures, descriptors_of, encoded, squared_distances
from gflownet.search.surrogate import Prediction, Surrogate, Warping

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
    """Weights of the distances in units of their scales, and variance of the noise, as powers of two."""

    weights: Tensor  # [K] float64; -inf: not used
    noise: float
    scales: Tensor  # [K] float64, medians of the positive distances; 1 where there are none

    @classmethod
    def initial(cls, num_distances: int) -> Hyperparameters:
        """Return the start of the first fit."""
        ones = torch.ones(num_distances, dtype=torch.float64)
        return cls(_FIRST_WEIGHT * ones, _FIRST_NOISE, ones)

    def correlations(self, first: GraphFeatures, second: GraphFeatures) -> Tensor:
        """Return the correlations of B graphs with n others, [B, n] float64."""
        total, factors = torch.zeros(()), (self.weights.exp2() / self.scales).tolist()
        for squared, factor in zip(squared_distances(first, second), factors, strict=True):
            total = squared.mul_(factor).add_(total)
        return correlation(total)

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


def most_probable(squared: Tensor, values: Tensor, start: Hyperparameters | None = None) -> Hyperparameters:
    """Return the most probable hyperparameters on the grid, by ascent from `start` and from the mean of the prior.

    Distances [K, n, n] that repeat an earlier one, or that are all zero, are not used.
    """
    pairs = squared[:, *torch.triu_indices(len(values), len(values), 1)]
    scales = torch.stack([each[each > 0].median() if bool(each.any()) else torch.ones(()).double() for each in pairs])
    squared = squared / scales[:, None, None]
    used, initial = _distinct(squared), Hyperparameters.initial(len(squared))
    starts = [each for each in (start, initial) if each is not None and len(each.weights) == len(squared)]
    results = [_ascend(squared, values, each, used) for each in starts]
    return replace(max(results, key=lambda result: result[1])[0], scales=scales)


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
    return Hyperparameters(weights, float(noise), start.scales), best


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
_MIN_VARIANCE = 1e-10  # of a prediction, relative to the signal's
_JITTERS = (0.0, 1e-6, 1e-4, 1e-2)  # added until a covariance has a Cholesky factor


class Regression:
    """The Cholesky factor of n observations and their posterior."""

    def __init__(self, features: GraphFeatures, values: Tensor, hyperparameters: Hyperparameters) -> None:
        self.features, self.hyperparameters = features, hyperparameters
        correlations = hyperparameters.correlations(features, features)
        self.factor = _factorised(correlations, hyperparameters.noise_variance)
        self.posterior = Posterior.of(self.factor, values)

    def log_density(self, num: int) -> float:
        """Return the mean log density of the first `num` values, each predicted from all others (Sundararajan 2001)."""
        inverse = torch.cholesky_inverse(self.factor).diagonal()
        weights = torch.linalg.solve_triangular(self.factor.T, self.posterior.residuals[:, None], upper=True)[:, 0]
        scale = self.posterior.variance / inverse
        return float(-0.5 * (scale.log() + (weights / inverse).square() / scale)[:num].mean())

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise of one observation."""
        return math.sqrt(float(self.posterior.variance) * self.hyperparameters.noise_variance)


class Conditional:
    """Distributions of the values of B graphs given the observations of a regression."""

    def __init__(self, regression: Regression, features: GraphFeatures) -> None:
        self.features, self._regression = features, regression
        correlations = regression.hyperparameters.correlations(features, regression.features)
        self._whitened = torch.linalg.solve_triangular(regression.factor, correlations.T, upper=False)  # [n, B]

    @cached_property
    def prediction(self) -> Prediction:
        """Mean and deviation of each."""
        posterior, noise = self._regression.posterior, self._regression.noise
        variance = posterior.variance * (1 - self._whitened.square().sum(0)).clamp(min=_MIN_VARIANCE)
        return Prediction(posterior.mean + posterior.residuals @ self._whitened, (variance + noise**2).sqrt(), noise)

    @cached_property
    def covariances(self) -> Tensor:
        """Covariances [B, B] of the means of the graphs."""
        prior = self._regression.hyperparameters.correlations(self.features, self.features)
        return self._regression.posterior.variance * (prior - self._whitened.T @ self._whitened)


def best_and_random(values: Tensor, num: int, *, seed: int) -> Tensor:
    """Return up to `num` positions, sorted: all, or those of the best values and as many random others."""
    if len(values) <= num:
        return torch.arange(len(values))
    order = values.argsort(descending=True, stable=True)
    best, worse = order[: (num + 1) // 2], order[(num + 1) // 2 :]
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([best, worse[torch.randperm(len(worse), generator=generator)[: num // 2]]]).sort().values


def _factorised(correlations: Tensor, noise: float) -> Tensor:
    """Return the Cholesky factor of correlations, whose diagonal gets the noise, and more where it needs to."""
    diagonal = correlations.diagonal().clone()
    for jitter in _JITTERS:
        correlations.diagonal().copy_(diagonal + (noise + jitter))
        factor, failed = torch.linalg.cholesky_ex(correlations)
        if not bool(failed):
            return factor
    raise AssertionError("a correlation matrix is not positive definite")


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
        self._hyperparameters: list[Hyperparameters] = []  # of today's observations alone, and with earlier ones
        self._num_fitted = 0  # observations at the last fit of hyperparameters
        self._regression: Regression | None = None
        self._last: tuple[GraphFeatures, Conditional] | None = None  # of the last predictions
        self._earlier: list[tuple[GraphFeatures, Tensor]] = []  # of each earlier search, with warped scores
        self._uses_earlier = False

    def encode(self, states: GraphStates) -> GraphFeatures:
        """Return the features of B terminal states: labels, and numbers with one distance for each of their groups."""
        descriptors = descriptors_of(self.env, self.seed)
        groups = descriptors.groups.unique(return_inverse=True)[1]
        return encoded(self.env, states, descriptors(states), groups, num_rounds=_NUM_ROUNDS)

    def fit(self, features: GraphFeatures, scores: Tensor) -> None:
        """Fit to n observations."""
        if not len(features) or scores.shape != (len(features),):
            raise ValueError(f"fit: expected {len(features)} scores, at least one, got shape {list(scores.shape)}")
        if not bool(scores.isfinite().all()):
            row = int((~scores.isfinite()).nonzero()[0])
            raise ValueError(f"fit: expected finite scores, got {float(scores[row])} for observation {row}")
        self._warping = Warping.of(scores)
        values = self.warp(scores)
        rows = best_and_random(values, _MAX_ROWS, seed=self.seed)
        observations = [(features[rows], values[rows])]
        if self._earlier:
            parts, known = zip((self._of_today(features[rows]), values[rows]), *self._earlier, strict=True)
            observations.append((GraphFeatures.cat(parts), torch.cat(known)))
        growth = max(_MIN_GROWTH, _GROWTH * self._num_fitted)
        if not self._hyperparameters or not self._num_fitted <= len(features) < self._num_fitted + growth:
            starts = self._hyperparameters or [None] * len(observations)
            pairs = zip(observations, starts, strict=True)
            self._hyperparameters = [_fitted(*each, start) for each, start in pairs]
            self._num_fitted = len(features)
        models = [Regression(*each, found) for each, found in zip(observations, self._hyperparameters, strict=True)]
        self._regression = models[-1]
        if self._earlier and len(rows) >= _MIN_COMPARED:
            self._regression = max(models, key=lambda model: model.log_density(len(rows)))
        self._uses_earlier, self._last = self._regression is not models[0], None

    def start_from(self, earlier: Sequence[tuple[GraphFeatures, Tensor]]) -> None:
        """Learn earlier searches as further tasks (the task is an input with a length of its own, Swersky et al. 2013).

        The distance of tasks is one more distance of the kernel, whose weight follows from the observations. Where
        today's ones are predicted better from today's alone, each from all others, the earlier ones are not used.
        """
        for number, (features, scores) in enumerate(earlier, 1):
            values = Warping.of(scores).warp(scores)
            rows = best_and_random(values, _MAX_FIT_ROWS // len(earlier), seed=self.seed)
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
            other = self._of_today(features) if self._uses_earlier else features
            self._last = features, Conditional(self._regression, other)
        return self._last[1]

    def _of_today(self, features: GraphFeatures) -> GraphFeatures:
        return features.with_source(0, len(self._earlier) + 1)


def _fitted(features: GraphFeatures, values: Tensor, start: Hyperparameters | None) -> Hyperparameters:
    """Return the most probable hyperparameters of n observations, of some of them where there are many."""
    some = best_and_random(values, _MAX_FIT_ROWS, seed=len(values))
    return most_probable(torch.stack([*squared_distances(features[some], features[some])]), values[some], start)
