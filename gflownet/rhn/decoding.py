"""One-token steps: the interface of recurrent language models for generation and serving, and the RHN behind it.

R is the number of rows (sequences), V of the vocabulary, N of layers, H the hidden size, I the intermediate size, r the
rank and J = bottleneck + 1. A state is one tensor (layers, rows, width): all that a sequence leaves behind.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.cell import normalised
from gflownet.rhn.decoding_steps import few_rows, many_rows, run_layer, step_weights
from gflownet.rhn.fold import fold, sizes_of
from gflownet.rhn.network import RHN, check_tokens
from gflownet.rhn.wavefront import CORE_BYTES, layers_per_group, run_diagonals

TILE_ROWS = 64  # rows at once: their adapters of one layer nearly fit the second-level cache
# Up to here the adapters of all layers are made in one call; above, the output of that call does not fit the cache.
ADAPTER_BYTES = 8 * 2**20


class LanguageModel(Protocol):
    """A recurrent language model for generation.

    A state (layers, rows, width) belongs to its caller: a model neither keeps nor changes one that it was given. The
    logits of a row are a function of that row alone, up to rounding: a BLAS may add the same terms in another order if
    the number of rows or the position of a row changes.
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


class RHNDecoder:
    """An RHN as a `LanguageModel`, its weights folded once; a change of the network's weights needs `refresh`."""

    def __init__(self, network: RHN, *, compiled: bool = False) -> None:
        """Fold the weights.

        Args:
            network: whose weights are read, now and at every `refresh`.
            compiled: whether steps go through torch.compile, which takes seconds for each new number of rows: batches
                are padded to a power of two.
        """
        self._network = network
        self._compiled = compiled
        self._few_rows = torch.compile(few_rows, dynamic=False) if compiled else few_rows
        self._run_layer = torch.compile(run_layer, dynamic=False) if compiled else run_layer
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the network's weights again."""
        network = self._network
        blocks = network.layers
        self._sizes = sizes_of(blocks[0])
        self._fold = fold(blocks)
        self._weights = step_weights(self._fold, self._sizes)
        self._layers_per_group = layers_per_group(blocks)
        dtype = self._fold.entry.dtype
        unembedding = network.embedding.weight if network.unembedding.weight is None else network.unembedding.weight
        self._embedding = network.embedding.weight.detach().to(dtype, copy=True)
        gain = network.norm.weight.detach().to(dtype) * math.sqrt(self._sizes.hidden)
        self._unembedding = (unembedding.detach().to(dtype) * gain).mT.contiguous()
        self._root = self._sizes.root(gain)

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
        """The device of the weights."""
        return self._embedding.device

    def _logits(self, x: Tensor) -> Tensor:
        """Return [R, V] from the last layer's states [R, H]."""
        return normalised(x, self._root) @ self._unembedding

    @torch.no_grad()
    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.prefill`, along the wavefront.

        Raises:
            ValueError: no token.
        """
        check_tokens(tokens)
        x = F.embedding(tokens.mT, self._embedding)
        last_states = []
        for first in range(0, self.state_shape[0], self._layers_per_group):
            group = slice(first, first + self._layers_per_group)
            made = run_diagonals(self._fold.of(group), self._sizes, x, None if state is None else state[group])
            x = made.outputs
            last_states.append(made.last)
        return self._logits(x[-1]), torch.cat(last_states)

    def step(self, tokens: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.step`."""
        rows = len(tokens)
        missing = self._num_compiled_rows(rows) - rows if self._compiled else 0
        if missing:
            tokens, state = F.pad(tokens, (0, missing)), F.pad(state, (0, 0, 0, missing))
            starts = None if starts is None else F.pad(starts, (0, missing))
        new_state = self._embedding.new_empty(state.shape)
        logits = self._embedding.new_empty(len(tokens), self.vocabulary_size)
        with torch.inference_mode():  # saves a tenth of the time and more; the returned tensors are made outside
            x = F.embedding(tokens, self._embedding)
            has_previous = None if starts is None else (~starts).to(x.dtype).view(1, -1, 1)
            x, made = self._layers(x, state, has_previous)
            new_state.copy_(made)
            logits.copy_(self._logits(x))
        return logits[:rows], new_state[:, :rows]

    def _layers(self, x: Tensor, state: Tensor, has_previous: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the result of `few_rows` by the faster of two methods."""
        if len(x) * self._weights.heads[:, 0].nbytes <= ADAPTER_BYTES:
            return self._few_rows(x, state, has_previous, self._sizes, self._weights)
        return self._in_tiles(x, state, has_previous)

    def _num_compiled_rows(self, rows: int) -> int:
        """Return the number of rows that a compiled step of `rows` rows is padded to."""
        # torch.compile turns the product of one row into a sum, which is slow where the weights do not stay in cache.
        fewest = 2 if self._weights.heads.nbytes > CORE_BYTES else 1
        return max(fewest, 1 << (rows - 1).bit_length())

    def _in_tiles(self, x: Tensor, state: Tensor, has_previous: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the result of `many_rows`, some rows at a time."""
        masks = [None] * len(x) if has_previous is None else has_previous.split(TILE_ROWS, 1)
        tiles = zip(x.split(TILE_ROWS), state.split(TILE_ROWS, 1), masks, strict=False)
        done = [many_rows(*tile, self._sizes, self._weights, self._run_layer) for tile in tiles]
        if len(done) == 1:
            return done[0]
        outputs, states = zip(*done, strict=True)
        return torch.cat(outputs), torch.cat(states, 1)
