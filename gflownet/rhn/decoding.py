"""One token at a time: what generation and serving ask of any recurrent language model, and how an RHN does it.

R is the number of rows (sequences), V of the vocabulary, N of layers, H the hidden size, I the intermediate size, r the
rank and J = bottleneck + 1. A state is one tensor (layers, rows, width): all that a sequence leaves behind.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.cell import CellSizes, cell
from gflownet.rhn.fold import Fold, fold
from gflownet.rhn.layers import MIN_SQUARED_NORM
from gflownet.rhn.network import RHN
from gflownet.rhn.products import Products
from gflownet.rhn.wavefront import diagonals, inputs_of, layers_per_group, sizes_of
from gflownet.rhn.wavefront import step as diagonal_step

TILE_ROWS = 32  # of a layer's rows at once: what they make of its adapters then stays in the second-level cache
# Up to here the adapters of all layers are made in one call; above, what that call writes no longer stays in cache.
ADAPTER_BYTES = 8 * 2**20


class LanguageModel(Protocol):
    """What tokens are generated from.

    A state (layers, rows, width) belongs to its caller: a model neither keeps nor changes one that it was given. What a
    row says depends on that row alone; in floating point its last bits may depend on how many rows there are.
    """

    @property
    def vocabulary_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        ...

    @property
    def state_shape(self) -> tuple[int, int]:
        """(layers, width) of the state of one sequence."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of states and logits."""
        ...

    @property
    def device(self) -> torch.device:
        """Where tokens are read, and states and logits made."""
        ...

    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read whole sequences.

        Args:
            tokens: [R, T], at least one each.
            state: [layers, R, width] of the tokens before; None at the beginning of the sequences.

        Returns:
            logits [R, V] of the token after the last, and the states [layers, R, width] of the last.
        """
        ...

    def step(self, tokens: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read one more token of each sequence.

        Args:
            tokens: [R].
            state: [layers, R, width] of the tokens before.
            starts: [R] bool, the rows whose token is the first of its sequence: their state is not looked at, but must
                be finite; None where there is no such row.

        Returns:
            logits [R, V] of the next token, and the new states [layers, R, width].
        """
        ...

    def for_rows(self, rows: int) -> LanguageModel:
        """Return this model with steps that are computed in one way only, that which is fastest for so many rows.

        In a step of 2 .. `rows` rows the bits of each are then the same whatever and however many the others are. (One
        row alone is another kernel of a BLAS, with other last bits.)
        """
        ...


@dataclass(frozen=True)
class _Weights:
    """What a step of few rows multiplies by; all heads of a BHN side by side, so that they are one product."""

    squeeze: Tensor  # [N, H + 1, J - 1]
    heads: Tensor  # [N, J + 1, *], 1 and features -> B, C, A, magnitudes and beta
    gram: Tensor  # [N, J J, 3 r r]
    entry: Tensor  # [N, H, 2 I], normed x -> gate and up
    exit: Tensor  # [N, I, H]


def _weights(folded: Fold, sizes: CellSizes) -> _Weights:
    """Return the weights of a step from those of the wavefront."""
    split = 2 * sizes.intermediate
    num_features = folded.entry_b.shape[1]

    def by_feature(through: Tensor, num_projections: int) -> Tensor:
        """[N, in, p J r] -> [N, J, p r in]."""
        parts = through.mT.unflatten(1, (num_projections, num_features, sizes.rank))
        return parts.transpose(1, 2).flatten(2)

    entry_a, exit_a = by_feature(folded.entry[..., split:], 2), by_feature(folded.exit[..., sizes.hidden :], 1)
    of_features = torch.cat([folded.entry_b, folded.exit_b, folded.entry_c, folded.exit_c, entry_a, exit_a], -1)
    return _Weights(
        folded.squeeze,
        torch.cat([F.pad(of_features, (0, 0, 1, 0)), folded.scales], -1),
        folded.gram,
        folded.entry[..., :split].contiguous(),
        folded.exit[..., : sizes.hidden].contiguous(),
    )


def _few_rows(
    x: Tensor, state: Tensor, has_previous: Tensor | None, sizes: CellSizes, weights: _Weights
) -> tuple[Tensor, Tensor]:
    """Return what the last layer makes of x [R, H], and the new states [N, R, H].

    All that depends on the state [N, R, H] alone, which is known before the token is, is made for all layers at once.
    `has_previous` is [1, R, 1], 0 where the token is the first one; None where there is no first one.
    """
    hidden, intermediate, rank = sizes.hidden, sizes.intermediate, sizes.rank
    num_layers, rows = state.shape[:2]
    normed = F.pad(F.rms_norm(state, (hidden,), eps=sizes.epsilon), (0, 1), value=1.0)
    features = F.pad(F.silu(torch.bmm(normed, weights.squeeze)), (1, 0), value=1.0)
    if has_previous is not None:
        features = features * has_previous
    squares = (features.unsqueeze(-1) * features.unsqueeze(-2)).flatten(-2)
    grams = torch.bmm(squares, weights.gram).view(num_layers, rows, 3, rank, rank)
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
    for n in range(num_layers):
        normed = F.rms_norm(x, (hidden,), eps=sizes.epsilon)
        low = torch.bmm(entry_a[n], normed.unsqueeze(-1)).view(2 * rows, 1, rank)
        product = (normed @ weights.entry[n]).view(2 * rows, 1, intermediate) * entry_scale[n].view(2 * rows, 1, -1)
        gate, up = torch.baddbmm(product, low, entry_b[n].flatten(0, 1)).view(rows, 2, intermediate).unbind(1)
        gated = F.silu(gate + parts[8][n]) * up
        low = torch.bmm(exit_a[n], gated.unsqueeze(-1)).view(rows, 1, rank)
        product = (gated @ weights.exit[n]).unsqueeze(1) * exit_scale[n]
        x = x + torch.baddbmm(product, low, exit_b[n, :, 0]).squeeze(1)
        states.append(x)
    return x, torch.stack(states)


def _inverse_norm(b: Tensor, c: Tensor, gram: Tensor) -> Tensor:
    """Return 1 / ||W_o + B_o A|| in units of ||W_o||: [..., out] from b and c [..., r, out] and gram [..., r, r]."""
    return (1 + (b * (c + gram @ b)).sum(-2)).clamp(min=MIN_SQUARED_NORM).rsqrt()


class RHNDecoder:
    """An RHN as a `LanguageModel`, its weights folded once; a change of the network's weights needs `refresh`."""

    def __init__(self, network: RHN, *, compiled: bool = False) -> None:
        """Fold the weights.

        Args:
            network: whose weights are read, now and at every `refresh`.
            compiled: whether the step of few rows goes through torch.compile, which takes seconds per number of rows.
        """
        self._network = network
        self._few_rows = torch.compile(_few_rows, dynamic=False) if compiled else _few_rows
        self._rows: int | None = None  # that steps are computed as if they had; None: those that they have
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the network's weights again."""
        network = self._network
        blocks = network.layers
        self._sizes = sizes_of(blocks[0])
        self._fold = fold(blocks)
        self._weights = _weights(self._fold, self._sizes)
        self._layers_per_group = layers_per_group(blocks)
        dtype = self._fold.entry.dtype
        unembedding = network.embedding.weight if network.unembedding.weight is None else network.unembedding.weight
        self._embedding = network.embedding.weight.detach().to(dtype, copy=True)
        self._unembedding = (unembedding.detach().to(dtype) * network.norm.weight.detach().to(dtype)).mT.contiguous()

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self._network.config.vocabulary_size

    @property
    def state_shape(self) -> tuple[int, int]:
        """(depth, H)."""
        return self._network.config.depth, self._network.config.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """At least float32."""
        return self._embedding.dtype

    @property
    def device(self) -> torch.device:
        """That of the network's weights."""
        return self._embedding.device

    def _logits(self, x: Tensor) -> Tensor:
        """Return [R, V] from the last layer's states [R, H]."""
        return F.rms_norm(x, (self._sizes.hidden,), eps=self._network.norm.epsilon) @ self._unembedding

    @torch.no_grad()
    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what `LanguageModel` says, along the wavefront.

        Raises:
            ValueError: no token.
        """
        if tokens.ndim != 2 or 0 in tokens.shape:
            raise ValueError(f"tokens: expected (rows, tokens), at least one of each, got {tuple(tokens.shape)}")
        x = F.embedding(tokens.mT, self._embedding)
        last_states = []
        for first in range(0, self.state_shape[0], self._layers_per_group):
            group = slice(first, first + self._layers_per_group)
            x, last = self._run_group(group, x, None if state is None else state[group])
            last_states.append(last)
        return self._logits(x[-1]), torch.cat(last_states)

    def _run_group(self, group: slice, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run some layers over x [T, R, H]: the last one's states of all tokens, and the last token's of all layers."""
        products = Products(Fold(*(getattr(self._fold, field.name)[group] for field in fields(Fold))))
        num_layers = len(self._fold.entry[group])
        live = x.new_zeros(num_layers, *x.shape[1:]) if state is None else state
        outputs = []
        for diagonal in diagonals(num_layers, len(x)):
            inputs = inputs_of(diagonal, x, live)
            new = diagonal_step(inputs, diagonal, self._sizes, products, has_state=state is not None)
            live = torch.cat([live[: diagonal.first], new, live[diagonal.last + 1 :]])
            if diagonal.last == num_layers - 1:
                outputs.append(new[-1])
        return torch.stack(outputs), live

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what `LanguageModel` says."""
        x = F.embedding(tokens, self._embedding)
        has_previous = None if starts is None else (~starts).to(x.dtype).view(1, -1, 1)
        if (self._rows or len(tokens)) * self._weights.heads[:, 0].nbytes <= ADAPTER_BYTES:
            x, new_state = self._few_rows(x, state, has_previous, self._sizes, self._weights)
        else:
            x, new_state = self._tiles(x, state, has_previous)
        return self._logits(x), new_state

    def for_rows(self, rows: int) -> Self:
        """Return what `LanguageModel` says, with the same weights: `refresh` is for the model that it came from.

        Raises:
            ValueError: less than one row.
        """
        if rows < 1:
            raise ValueError(f"rows: expected at least 1, got {rows}")
        fixed = copy.copy(self)
        fixed._rows = rows
        return fixed

    def _tiles(self, x: Tensor, state: Tensor, has_previous: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what `_few_rows` does, layer after layer and tile of rows after tile."""
        new_state = torch.empty_like(state)
        for n in range(len(state)):

            def multiply(x: Tensor, name: str, n: int = n) -> Tensor:
                return torch.bmm(x, getattr(self._fold, name)[n : n + 1])

            for first in range(0, len(x), TILE_ROWS):
                tile = slice(first, first + TILE_ROWS)
                mask = None if has_previous is None else has_previous[:, tile]
                new_state[n, tile] = cell(x[None, tile], state[n : n + 1, tile], mask, self._sizes, multiply)[0]
            x = new_state[n]
        return x, new_state
