"""Gaussian process regression by explicit inverses, in numpy."""

import numpy as np


def matern(squared: np.ndarray) -> np.ndarray:
    """Return Matern 5/2 correlations."""
    r = np.sqrt(5 * squared)
    return (1 + r + r**2 / 3) * np.exp(-r)


def regress(correlation, cross, values, *, noise: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean and std of new values, and the log marginal likelihood up to a constant.

    Args:
        correlation: [n, n] of the observations.
        cross: [n, B] with the new points.
        values: [n].
        noise: variance relative to the signal's.
    """
    n, ones = len(values), np.ones(len(values))
    covariance = correlation + noise * np.eye(n)
    inverse = np.linalg.inv(covariance)
    mean = (ones @ inverse @ values) / (ones @ inverse @ ones)
    residual = values - mean
    variance = (1 + residual @ inverse @ residual) / (1 + n)
    predicted = mean + cross.T @ inverse @ residual
    std = np.sqrt(variance * (1 - np.einsum("nb,nm,mb->b", cross, inverse, cross) + noise))
    likelihood = -0.5 * (n + 1) * np.log(variance) - 0.5 * np.linalg.slogdet(covariance)[1]
    return predicted, std, float(likelihood)
