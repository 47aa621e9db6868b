"""Bound on the difference of results when a BLAS adds the same terms in another order."""

from __future__ import annotations

import torch

from gflownet.rhn.config import RHNConfig


def rounding_tolerance(dtype: torch.dtype, *, num_terms: int, magnitude: float) -> float:
    """Return how far two computations of the same value may differ that add the same terms in another order.

    A sum of n products, added in any order, with or without fused multiply-add, is within n u M of the exact one, with
    u = eps / 2 and M the sum of the absolute products (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    section 3.1). Two orders therefore differ by at most n eps M, and to first order the differences of products along
    a chain add up. Norms between the products of a network undo growth, so an error keeps its size relative to the
    largest value. The growth in single layers is covered by counting n roundings per product, as roundings of random
    sign add up to about sqrt(n). That holds for a few tokens: over many, a recurrent network with large random weights
    is chaotic and multiplies an error by 2 or 3 per token.

    Args:
        dtype: of the computation.
        num_terms: sum of the widths of all products on the longest path from input to result.
        magnitude: largest absolute value of the result.
    """
    return num_terms * torch.finfo(dtype).eps * magnitude


def num_terms_of_token(config: RHNConfig) -> int:
    """Return the terms on the longest path from a token and a state to the logits after one step of an RHN."""
    hidden, features = config.hidden_size, config.bottleneck + 1
    adapters = hidden + features * (features + 1) // 2 + 2 * config.rank  # features, their products, the norm's Gram
    layer = adapters + hidden + config.intermediate_size + 4 * config.rank  # into and out of the feed-forward network
    return config.depth * layer + hidden
