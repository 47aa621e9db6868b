"""One step of several layers at once, each on a token of its own; no adapted matrix is made.

N is the number of layers, R of rows, H the hidden size, I the intermediate size, r the rank, J = bottleneck + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.layers import MIN_SQUARED_NORM

# multiply(x [N, R, in], name): x times the field of that name of a `Fold`, [N, R, out].
Multiply = Callable[[Tensor, str], Tensor]


@dataclass(frozen=True)
class CellSizes:
    """What the shapes of a `Fold` do not say by themselves."""

    hidden: int
    intermediate: int
    rank: int
    epsilon: float


def _adapted(product: Tensor, magnitude: Tensor, b: Tensor, c: Tensor, gram: Tensor, low: Tensor) -> Tensor:
    """Return m (W x + B A x) / ||W + B A|| with the norm in its expanded form.

    Args:
        product: [..., out], W x.
        magnitude: [..., out].
        b: [S, r, out], S the product of the leading dimensions.
        c: [S, r, out], 2 W A^T.
        gram: [S, r, r], A A^T.
        low: [S, 1, r], A x.
    """
    squared = (1 + (b * torch.baddbmm(c, gram, b)).sum(1)).clamp(min=MIN_SQUARED_NORM)
    scale = magnitude * squared.rsqrt().view(magnitude.shape)
    return scale * (product + torch.bmm(low, b).view(product.shape))


def cell(x: Tensor, state: Tensor, has_previous: Tensor | None, sizes: CellSizes, multiply: Multiply) -> Tensor:
    """Return X_{k:n} for every layer n and its token k.

    Args:
        x: [N, R, H], X_{k:n-1}.
        state: [N, R, H], X_{k-1:n}; anything where there is none.
        has_previous: [N, R or 1, 1], 0 where the token is the first one, else 1; None where there is no first one.
        sizes: of the blocks.
        multiply: by their weights.
    """
    shape, rank = x.shape[:2], sizes.rank
    split = [2 * sizes.intermediate, sizes.hidden, 1]
    state, normed = (F.rms_norm(tensor, (sizes.hidden,), eps=sizes.epsilon) for tensor in (state, x))
    # Adapters are linear in the features: features of 0 are the plain feed-forward network.
    features = F.pad(F.silu(multiply(F.pad(state, (0, 1), value=1.0), "squeeze")), (1, 0), value=1.0)
    if has_previous is not None:
        features = features * has_previous
    width = features.shape[-1]
    squares = (features.unsqueeze(-1) * features.unsqueeze(-2)).flatten(-2)
    grams = multiply(squares, "gram").view(*shape, 3, rank, rank).split([2, 1], 2)
    scales = multiply(F.pad(features, (1, 0), value=1.0), "scales").split(split, -1)

    product, low = multiply(normed, "entry").split([split[0], 2 * width * rank], -1)
    gate, up = _adapted(
        product,
        scales[0],
        multiply(features, "entry_b").view(-1, rank, sizes.intermediate),
        multiply(features, "entry_c").view(-1, rank, sizes.intermediate),
        grams[0].reshape(-1, rank, rank),
        (features[:, :, None, None] @ low.view(*shape, 2, width, rank)).view(-1, 1, rank),
    ).split(sizes.intermediate, -1)
    product, low = multiply(F.silu(gate + scales[2]) * up, "exit").split([sizes.hidden, width * rank], -1)
    return x + _adapted(
        product,
        scales[1],
        multiply(features, "exit_b").view(-1, rank, sizes.hidden),
        multiply(features, "exit_c").view(-1, rank, sizes.hidden),
        grams[1].reshape(-1, rank, rank),
        (features[:, :, None] @ low.view(*shape, width, rank)).view(-1, 1, rank),
    )
