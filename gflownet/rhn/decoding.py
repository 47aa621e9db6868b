"""Interface of recurrent language models for generation and serving, and its implementation for RHNs and stacks.

R is the number of rows (sequences), T of tokens, V of the vocabulary, H the hidden size. The state of a sequence is one
tensor (layers, rows, width).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.decoding_steps import few_rows, many_rows, step_weights
from gflownet.rhn.fold import fold, normalised, sizes_of
from gflownet.rhn.layers import RMSNorm, Run, SequenceLayer, check_tokens
from gflownet.rhn.wavefront import layers_per_group, run_diagonals

TILE_ROWS = 64  # rows at once: their adapters of one layer nearly fit the second-level cache
# Maximum size of the adapters of all layers computed in one call; a larger result does not fit the cache.
ADAPTER_BYTES = 8 * 2**20


class LanguageModel(Protocol):
    """A recurrent language model for generation.

    The caller owns the states: a model neither keeps nor changes a state that it gets. The logits of a row are a
    function of that row alone, up to rounding: a BLAS may add the same terms in another order if the number of rows or
    the position of a row changes.
    """

    vocabulary_size: int  # V: tokens are 0 .. V - 1
    state_shape: tuple[int, int]  # (layers, width) of the state of one sequence
    dtype: torch.dtype  # of states and logits
    device: torch.device  # of tokens, states and logits

    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read whole sequences.

        Args:
            tokens: [R, T], at least one each.
            state: [layers, R, width] of the tokens before; None at the beginning of the sequences.

        Returns:
            logits [R, V] of the token after the last, and the states [layers, R, width] of the last.
        """
        ...

    def read(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read as `prefill`, but return the logits [R, T, V] of the token after each."""
        ...

    def step(self, tokens: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read one more token of each sequence.

        Args:
            tokens: [R].
            state: [layers, R, width] of the tokens before.
            starts: [R] bool, the rows whose token is the first of its sequence: their state is not used; None if there
                is no such row.

        Returns:
            logits [R, V] of the next token, and the new states [layers, R, width].
        """
        ...


class Network(Protocol):
    """Interface of a decoder to the weights of an `RHN` or a `RecurrentStack`."""

    norm: RMSNorm  # of the outputs of the last layer
    state_shape: tuple[int, int]  # (layers, width)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the weights of embedding and unembedding, [V, H] both."""
        ...

    def runs(self) -> Iterable[Run]:
        """Return the layers in the groups that are computed together."""
        ...


class _FoldedRun:
    """Folded weights of consecutive RHN layers."""

    def __init__(self, run: Run) -> None:
        self.layers, self.sizes, self.fold = run.layers, sizes_of(run.blocks[0]), fold(run.blocks)
        self.weights = step_weights(self.fold, self.sizes)
        self._layers_per_group = layers_per_group(run.blocks)

    def prefill(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs [T, R, H] for x [T, R, H], and the last states [n, R, H]."""
        last_states = []
        for first in range(0, len(self.fold.exit), self._layers_per_group):
            group = slice(first, first + self._layers_per_group)
            result = run_diagonals(self.fold.of(group), self.sizes, x, None if state is None else state[group])
            x = result.outputs
            last_states.append(result.last)
        return x, torch.cat(last_states)


class RHNDecoder:
    """A `LanguageModel` with the weights of a network, folded once; call `refresh` after a change of the weights."""

    def __init__(self, network: Network) -> None:
        """Fold the weights of an `RHN` or a `RecurrentStack`."""
        self._network = network
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the weights again."""
        embedding, unembedding = self._network.tables()
        norm, hidden = self._network.norm, embedding.shape[1]
        self.vocabulary_size, self.state_shape = len(embedding), self._network.state_shape
        self.device = embedding.device
        dtype = self.dtype = torch.promote_types(embedding.dtype, torch.float32)
        self._runs = [run if run.other else _FoldedRun(run) for run in self._network.runs()]
        self._embedding = embedding.detach().to(dtype, copy=True)
        gain = norm.weight.detach().to(dtype) * math.sqrt(hidden)
        self._unembedding = (unembedding.detach().to(dtype) * gain).mT.contiguous()
        self._root = gain.new_full((), math.sqrt(hidden * norm.epsilon))

    def _logits(self, x: Tensor) -> Tensor:
        """Return [..., V] from the last layer's states [..., H]."""
        return normalised(x, self._root) @ self._unembedding

    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.prefill`, RHN layers along the wavefront.

        Raises:
            ValueError: no token.
        """
        logits, new_state = self._read(tokens, state, num_logits=1)
        return logits[:, 0], new_state

    def read(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.read`; raises as `prefill`."""
        return self._read(tokens, state, num_logits=tokens.shape[-1])

    def _read(self, tokens: Tensor, state: Tensor | None, *, num_logits: int) -> tuple[Tensor, Tensor]:
        """Return the logits [R, num_logits, V] of the tokens after the last ones, and the last states."""
        check_tokens(tokens)
        new_state = self._embedding.new_zeros(self.state_shape[0], len(tokens), self.state_shape[1])
        logits = self._embedding.new_empty(len(tokens), num_logits, self.vocabulary_size)
        with torch.inference_mode():  # as in `step`
            x = F.embedding(tokens.mT, self._embedding)
            for run in self._runs:
                before = None if state is None else state[run.layers]
                if isinstance(run, _FoldedRun):
                    x, last = run.prefill(x, None if before is None else before[..., : x.shape[-1]])
                else:
                    x, last = _run_recurrent_layer(run, x, before)
                new_state[run.layers, :, : last.shape[-1]] = last
            logits.copy_(self._logits(x[-num_logits:]).transpose(0, 1))
        return logits, new_state

    def step(self, tokens: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.step`."""
        if starts is not None:  # masks multiply, and the state of an earlier sequence need not be finite
            state = state.masked_fill(starts.view(1, -1, 1), 0)
        new_state = self._embedding.new_zeros(state.shape)
        logits = self._embedding.new_empty(len(tokens), self.vocabulary_size)
        with torch.inference_mode():  # saves a tenth of the time and more; the returned tensors are made outside
            x = F.embedding(tokens, self._embedding)
            has_previous = None if starts is None else (~starts).to(x.dtype).view(1, -1, 1)
            for run in self._runs:
                before = state[run.layers]
                if isinstance(run, _FoldedRun):
                    x, last = _step(run, x, before[..., : x.shape[-1]], has_previous)
                else:
                    before = before if has_previous is None else before * has_previous
                    outputs, last = _run_recurrent_layer(run, x.unsqueeze(0), before)
                    x = outputs[0]
                new_state[run.layers, :, : last.shape[-1]] = last
            logits.copy_(self._logits(x))
        return logits, new_state


def _step(run: _FoldedRun, x: Tensor, state: Tensor, has_previous: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the result of `few_rows`, computed by the faster one of two schedules."""
    if len(x) * run.weights.heads[:, 0].nbytes <= ADAPTER_BYTES:
        return few_rows(x, state, has_previous, run.sizes, run.weights)
    masks = [None] * len(x) if has_previous is None else has_previous.split(TILE_ROWS, 1)
    tiles = zip(x.split(TILE_ROWS), state.split(TILE_ROWS, 1), masks, strict=False)
    results = [many_rows(*tile, run.sizes, run.weights) for tile in tiles]
    if len(results) == 1:
        return results[0]
    outputs, states = zip(*results, strict=True)
    return torch.cat(outputs), torch.cat(states, 1)


def _run_recurrent_layer(run: Run, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the outputs [T, R, H] of a `SequenceLayer` for x [T, R, H], and its last state [R, state width]."""
    layer = run.other
    assert isinstance(layer, SequenceLayer)
    dtype = layer.norm.weight.dtype
    before = None if state is None else state[0, :, : layer.state_width].to(dtype)
    outputs, last = layer(x.transpose(0, 1).to(dtype), before)
    return outputs.transpose(0, 1).to(x.dtype), last.to(x.dtype)
