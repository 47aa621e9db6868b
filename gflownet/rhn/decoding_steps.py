"""One token of every row through all layers: for few rows with the adapters of all layers at once, for many in turn.

R is the number of rows, N of layers, H the hidden size, I the intermediate size, r the rank and J = bottleneck + 1. The
adapters of a token depend only on the state that the one before left, and so are made before the token is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.fold import BlockSizes, Fold, HeadColumns
from gflownet.rhn.layers import MIN_SQUARED_NORM


@dataclass(frozen=True)
class LayerWeights:
    """What rows are multiplied by in one layer; parts of a `Fold`."""

    entry_w: Tensor  # [H, 2 I], normed x -> gate and up
    entry_a: Tensor  # [H, 2 J r], through every A_j
    entry_b: Tensor  # [J, 2 r I], features -> B
    entry_c: Tensor  # [J, 2 r I], features -> C
    exit_w: Tensor  # [I, H]
    exit_a: Tensor  # [I, J r]
    exit_b: Tensor  # [J, r H]
    exit_c: Tensor  # [J, r H]


@dataclass(frozen=True)
class StepWeights:
    """What rows are multiplied by in all layers."""

    squeeze: Tensor  # [N, H + 1, J - 1]
    gram: Tensor  # [N, J J, 3 r r]
    scales: Tensor  # [N, J + 1, 2 I + H + 1], 1 and features -> magnitudes and beta
    heads: Tensor  # [N, J + 1, *], 1 and features -> B, C, A, magnitudes and beta, so that they are one product
    layers: tuple[LayerWeights, ...]


def step_weights(folded: Fold, sizes: BlockSizes) -> StepWeights:
    """Return the weights of a step from those of the wavefront; what x is multiplied by has the gain in it."""
    entry_heads = folded.entry_heads.unflatten(-1, (2, -1)).transpose(1, 2)
    entry_a, entry_b, entry_c, entry_scales = _heads(entry_heads, sizes.entry)
    exit_a, exit_b, exit_c, exit_scales = _heads(folded.exit_heads[:, None, :, :-2], sizes.exit)
    scales = torch.cat([_by_feature(entry_scales), _by_feature(exit_scales), folded.exit_heads[..., -2:-1]], -1)
    b_and_c = [_by_feature(part[:, :, 1:]) for part in (entry_b, exit_b, entry_c, exit_c)]
    entry_a, exit_a = (part[:, :, 1:].unflatten(-1, (sizes.rank, -1)) for part in (entry_a, exit_a))
    gram = torch.cat([_gram(entry_a), _gram(exit_a)], 1)
    gain = folded.gain / math.sqrt(sizes.hidden)
    entry_a = entry_a * gain[:, None, None, None]
    heads = torch.cat([*b_and_c, *(_by_feature(part.flatten(3)) for part in (entry_a, exit_a))], -1)
    parts = (
        folded.entry * gain.unsqueeze(-1),
        _by_feature(entry_a.flatten(2, 3).mT),
        b_and_c[0],
        b_and_c[2],
        folded.exit,
        _by_feature(exit_a.flatten(2, 3).mT),
        b_and_c[1],
        b_and_c[3],
    )
    return StepWeights(
        torch.cat([folded.squeeze[:, :-1] / math.sqrt(sizes.hidden), folded.squeeze[:, -1:]], 1),
        gram.transpose(1, 2).flatten(2) if sizes.norm == "dora" else torch.zeros_like(gram.transpose(1, 2).flatten(2)),
        scales,
        torch.cat([F.pad(heads, (0, 0, 1, 0)), scales], -1),
        tuple(LayerWeights(*of_layer) for of_layer in zip(*(part.unbind(0) for part in parts), strict=True)),
    )


def _heads(heads: Tensor, columns: HeadColumns) -> list[Tensor]:
    """Return A, B, 2 C and magnitudes [N, P, J + 1, *] of P projections; without a norm C is 0, and so it is 1."""
    _, a, b, c, magnitude = heads.split(columns.sizes, -1)
    return [a, b, 2 * c if columns.norm == "dora" else torch.zeros_like(b), magnitude]


def _by_feature(part: Tensor) -> Tensor:
    """[N, P, J, *] -> [N, J, P *]."""
    return part.transpose(1, 2).flatten(2)


def _gram(a: Tensor) -> Tensor:
    """Return A_j A_k^T [N, P, J J, r r] of A [N, P, J, r, in]."""
    stacked = a.flatten(2, 3)
    gram = (stacked @ stacked.mT).unflatten(-1, a.shape[2:4]).unflatten(2, a.shape[2:4])
    return gram.transpose(3, 4).flatten(4).flatten(2, 3)


def _features(
    state: Tensor, has_previous: Tensor | None, sizes: BlockSizes, weights: StepWeights
) -> tuple[Tensor, Tensor]:
    """Return u [N, R, J] and G [N, R, 3, r, r] of a state [N, R, H]; without a token before, u = 0."""
    normed = F.pad(F.rms_norm(state, (sizes.hidden,), eps=sizes.epsilon), (0, 1), value=1.0)
    features = F.pad(F.silu(torch.bmm(normed, weights.squeeze)), (1, 0), value=1.0)
    if has_previous is not None:
        features = features * has_previous
    squares = (features.unsqueeze(-1) * features.unsqueeze(-2)).flatten(-2)
    return features, torch.bmm(squares, weights.gram).unflatten(-1, (3, sizes.rank, sizes.rank))


def few_rows(
    x: Tensor, state: Tensor, has_previous: Tensor | None, sizes: BlockSizes, weights: StepWeights
) -> tuple[Tensor, Tensor]:
    """Return what the last layer makes of x [R, H], and the new states [N, R, H].

    The adapters of all layers are made in one call.

    Args:
        x: X_{k:0}.
        state: [N, R, H], X_{k-1:n}.
        has_previous: [1, R, 1], 0 where the token is the first one; None where there is no first one.
        sizes: of the blocks.
        weights: of all layers.
    """
    hidden, intermediate, rank = sizes.hidden, sizes.intermediate, sizes.rank
    num_layers, rows = state.shape[:2]
    features, grams = _features(state, has_previous, sizes, weights)
    entries, exits = 2 * rank * intermediate, rank * hidden
    parts = torch.bmm(F.pad(features, (1, 0), value=1.0), weights.heads).split(
        [entries, exits, entries, exits, 2 * rank * hidden, rank * intermediate, 2 * intermediate, hidden, 1], -1
    )
    entry_b, exit_b, entry_c, exit_c = (
        part.reshape(num_layers, rows, count, rank, -1) for part, count in zip(parts, (2, 1, 2, 1), strict=False)
    )
    entry_scale = parts[6].reshape(num_layers, rows, 2, intermediate) * _inverse_norm(entry_b, entry_c, grams[:, :, :2])
    exit_scale = parts[7].reshape(num_layers, rows, 1, hidden) * _inverse_norm(exit_b, exit_c, grams[:, :, 2:])
    entry_b, exit_b = entry_b * entry_scale.unsqueeze(-2), exit_b * exit_scale.unsqueeze(-2)
    entry_a, exit_a = parts[4].unflatten(-1, (2 * rank, hidden)), parts[5].unflatten(-1, (rank, intermediate))
    states = []
    for n, layer in enumerate(weights.layers):
        normed = F.rms_norm(x, (hidden,), eps=sizes.epsilon)
        low = torch.bmm(entry_a[n], normed.unsqueeze(-1)).view(2 * rows, 1, rank)
        product = (normed @ layer.entry_w).view(2 * rows, 1, intermediate) * entry_scale[n].view(2 * rows, 1, -1)
        gate, up = torch.baddbmm(product, low, entry_b[n].flatten(0, 1)).view(rows, 2, intermediate).unbind(1)
        gated = F.silu(gate + parts[8][n]) * up
        low = torch.bmm(exit_a[n], gated.unsqueeze(-1)).view(rows, 1, rank)
        product = (gated @ layer.exit_w).unsqueeze(1) * exit_scale[n]
        x = x + torch.baddbmm(product, low, exit_b[n, :, 0]).squeeze(1)
        states.append(x)
    return x, torch.stack(states)


def _inverse_norm(b: Tensor, c: Tensor, gram: Tensor) -> Tensor:
    """Return 1 / ||W_o + B_o A|| in units of ||W_o||: [..., out] from b and c [..., r, out] and gram [..., r, r]."""
    return (1 + (b * (c + gram @ b)).sum(-2)).clamp(min=MIN_SQUARED_NORM).rsqrt()


# x [R, H], features [R, J], grams [R, 3, r, r], scales [R, 2 I + H + 1] -> the layer's new states [R, H]
RunLayer = Callable[[Tensor, Tensor, Tensor, Tensor, BlockSizes, LayerWeights], Tensor]


def many_rows(
    x: Tensor,
    state: Tensor,
    has_previous: Tensor | None,
    sizes: BlockSizes,
    weights: StepWeights,
    run_layer: RunLayer,
) -> tuple[Tensor, Tensor]:
    """Return what `few_rows` does; the adapters of one layer are made, used and forgotten before those of the next."""
    features, grams = _features(state, has_previous, sizes, weights)
    scales = torch.bmm(F.pad(features, (1, 0), value=1.0), weights.scales)
    new_state = torch.empty_like(state)
    for n, layer in enumerate(weights.layers):
        x = run_layer(x, features[n], grams[n], scales[n], sizes, layer)
        new_state[n] = x
    return x, new_state


def run_layer(
    x: Tensor, features: Tensor, grams: Tensor, scales: Tensor, sizes: BlockSizes, weights: LayerWeights
) -> Tensor:
    """Run one layer on many rows, a `RunLayer`: what is made is changed in place, which spares a third of the time."""
    hidden, intermediate, rank = sizes.hidden, sizes.intermediate, sizes.rank
    rows, width = features.shape
    gate_up, down, beta = scales.split([2 * intermediate, hidden, 1], -1)
    entry_b = torch.mm(features, weights.entry_b).view(2 * rows, rank, intermediate)
    entry_c = torch.mm(features, weights.entry_c).view(2 * rows, rank, intermediate)
    entry_scale = _scale_(entry_b, entry_c, grams[:, :2].reshape(-1, rank, rank)).view(rows, -1).mul_(gate_up)
    exit_b = torch.mm(features, weights.exit_b).view(rows, rank, hidden)
    exit_c = torch.mm(features, weights.exit_c).view(rows, rank, hidden)
    exit_scale = _scale_(exit_b, exit_c, grams[:, 2]).mul_(down)

    normed = F.rms_norm(x, (hidden,), eps=sizes.epsilon)
    low = (features[:, None, None] @ torch.mm(normed, weights.entry_a).view(rows, 2, width, rank)).view(-1, 1, rank)
    product = torch.mm(normed, weights.entry_w).view(2 * rows, 1, intermediate).baddbmm_(low, entry_b)
    gate, up = product.view(rows, -1).mul_(entry_scale).split(intermediate, -1)
    gated = F.silu(gate.add_(beta)).mul_(up)
    low = features.unsqueeze(1) @ torch.mm(gated, weights.exit_a).view(rows, width, rank)
    product = torch.mm(gated, weights.exit_w).unsqueeze(1).baddbmm_(low, exit_b)
    return product.squeeze(1).mul_(exit_scale).add_(x)


def _scale_(b: Tensor, c: Tensor, gram: Tensor) -> Tensor:
    """Return `_inverse_norm` [S, out] of b and c [S, r, out] and gram [S, r, r]; c is not c any more."""
    squared = c.baddbmm_(gram, b).mul_(b).sum(1)
    return squared.add_(1).clamp_(min=MIN_SQUARED_NORM).rsqrt_()
