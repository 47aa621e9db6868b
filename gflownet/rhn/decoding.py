"""Interface of recurrent language models for generation and serving, and its implementation for RHNs and stacks.

The adapters of a token depend only on the states after the previous token. `few_rows` computes the adapters of all
layers in one call, `many_rows` layer by layer, so that they fit the cache: two schedules of the same formulas.
`RHNBlock.step` defines the result.

In ||W_o + B_o A||^2 = 1 + sum_r B_or (2 C_or + (B G)_or) both sum_r 2 B_or C_or and G are quadratic in the features:
one product with the Q = J (J + 1) / 2 products of two features gives them, so that C, a third of all adapters, is not
computed.

R is the number of rows (sequences), T of tokens, V of the vocabulary, N of layers, H the hidden size, I the
intermediate size, r the rank and J = bottleneck + 1. The state of a sequence is one tensor (layers, rows, width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.diagonal import silu
from gflownet.rhn.fold import BlockSizes, Fold, fold, normalised, sizes_of
from gflownet.rhn.layers import MIN_SQUARED_NORM, Run, SequenceLayer, check_tokens
from gflownet.rhn.wavefront import layers_per_group, run_diagonals

TILE_ROWS = 64  # rows at once: their adapters of one layer nearly fit the second-level cache
# Maximum size of the adapters of all layers computed in one call; a larger result does not fit the cache.
ADAPTER_BYTES = 8 * 2**20


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer for `many_rows`."""

    root: Tensor  # []
    gate_or_up: Tensor  # [2, 2 r]
    entry_w: Tensor  # [H, 2 I]
    exit_w: Tensor  # [I, H]
    entry_a: Tensor  # [H, J 2 r], every A_j
    exit_a: Tensor  # [I, J r]
    entry_b: Tensor  # [J, 2 r I], features -> B
    exit_b: Tensor  # [J, r H]


@dataclass(frozen=True)
class StepWeights:
    """Weights of all layers."""

    root: Tensor  # []
    squeeze: Tensor  # [N, H, J - 1], state / |state| -> bottleneck
    bias: Tensor  # [N, 1, J - 1]
    pairs: Tensor  # [Q], indices of the distinct ones among the J J products of two features
    forms: Tensor  # [N, Q, 2 I + H + 3 r r], products of features -> sum_r 2 B C of every output, and G
    heads: Tensor  # [N, J + 1, *], 1 and features -> B, A, magnitudes, beta and 0, in one product
    scales: Tensor  # [N, J + 1, 2 I + H + 2], the last columns of heads: magnitudes, beta and 0
    entry_w: Tensor  # [N, H, 2 I], x / |x| -> gate and up
    exit_w: Tensor  # [N, I, H]
    gate_or_up: Tensor  # [2, 2 r], 1 for the rows of A that belong to gate, to up
    layers: tuple[LayerWeights, ...]


def step_weights(folded: Fold, sizes: BlockSizes) -> StepWeights:
    """Return the weights of a step from folded weights; the gain is multiplied into the weights of x."""
    entry, exit_ = sizes.entry.parts(folded.entry_heads), sizes.exit.parts(folded.exit_heads)
    pairs, forms = _pair_forms(_forms([entry, exit_], sizes))
    entry_a, exit_a = entry[1] * folded.gain[:, None, None, None], exit_[1]
    adapters = [part.flatten(3) for part in (entry[2], exit_[2], entry_a, exit_a)]
    entry_b, exit_b, *_ = adapters = [_by_feature(part) for part in adapters]
    scales = torch.cat([_by_feature(entry[4]), _by_feature(exit_[4]), folded.exit_heads[..., -2:]], -1)
    root = sizes.root(scales)
    entry_w = folded.entry * folded.gain.unsqueeze(-1)
    gate_or_up = torch.eye(2).to(scales).repeat_interleave(sizes.rank, 1)
    through_a = [part[:, :, 1:].permute(0, 4, 2, 1, 3).flatten(2) for part in (entry_a, exit_a)]
    per_layer = (entry_w, folded.exit, *through_a, entry_b[:, 1:], exit_b[:, 1:])
    return StepWeights(
        root,
        folded.squeeze[:, :-1],
        folded.squeeze[:, -1:],
        pairs,
        forms,
        torch.cat([*adapters, scales], -1),
        scales,
        entry_w,
        folded.exit,
        gate_or_up,
        tuple(
            LayerWeights(root, gate_or_up, *layer)
            for layer in zip(*(part.unbind(0) for part in per_layer), strict=True)
        ),
    )


def _by_feature(part: Tensor) -> Tensor:
    """Return [N, J, P *] from [N, P, J, *]."""
    return part.transpose(1, 2).flatten(2)


def _forms(projections: list[tuple[Tensor, ...]], sizes: BlockSizes) -> Tensor:
    """Return the quadratic forms [N, 2 I + H + 3 r r, J, J] from the parts of gate and up, and of down."""
    if sizes.norm == "none":  # forms of 0 give a squared norm of 1
        a, width = projections[0][1], 2 * sizes.intermediate + sizes.hidden + 3 * sizes.rank**2
        return a.new_zeros(len(a), width, a.shape[2] - 1, a.shape[2] - 1)
    parts = [[part[:, :, 1:] for part in parts[1:4]] for parts in projections]  # from the first feature on
    crosses = [torch.einsum("npjro,npkro->npojk", 2 * b, c).flatten(1, 2) for _, b, c in parts]
    grams = [torch.einsum("npjri,npksi->nprsjk", a, a).flatten(1, 3) for a, _, _ in parts]
    return torch.cat(crosses + grams, 1)


def _pair_forms(forms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices [Q] of the distinct products of two features, and forms [N, F, J, J] as [N, Q, F]."""
    width = forms.shape[-1]
    first, second = torch.triu_indices(width, width, device=forms.device)
    return first * width + second, (forms.triu() + forms.tril(-1).mT)[..., first, second].mT.contiguous()


def _features(state: Tensor, has_previous: Tensor | None, weights: StepWeights) -> tuple[Tensor, Tensor]:
    """Return 1 and u [N, R, J + 1] of a state [N, R, H], and the forms' values [N R, *]; u = 0 for first tokens."""
    squeezed = torch.baddbmm(weights.bias, normalised(state, weights.root), weights.squeeze)
    features = F.pad(silu(squeezed), (2, 0), value=1.0)
    u = features[..., 1:]
    if has_previous is not None:
        u.mul_(has_previous)
    pairs = (u.unsqueeze(-1) * u.unsqueeze(-2)).flatten(-2).index_select(-1, weights.pairs)
    return features, torch.bmm(pairs, weights.forms).flatten(0, 1)


def _scales(forms: Tensor, scales: Tensor, entry_b: Tensor, exit_b: Tensor, sizes: BlockSizes) -> tuple[Tensor, ...]:
    """Return the scales of the outputs and beta for S pairs of layer and row.

    `forms` [S, 2 I + H + 3 r r], `scales` [S, 2 I + H + 2], `entry_b` [S, 2 r, I], `exit_b` [S, r, H]. The scales are
    magnitudes over norms in units of ||W_o||, [S, 2, I] and [S, H]; beta and 0 are [S, 2, 1].
    """
    hidden, intermediate, rank = sizes.hidden, sizes.intermediate, sizes.rank
    crosses, grams = forms.split([2 * intermediate + hidden, 3 * rank * rank], -1)
    pairs = zip(grams.unflatten(-1, (3, rank, rank)).unbind(1), (*entry_b.split(rank, 1), exit_b), strict=True)
    squared = torch.cat([torch.bmm(gram, b).mul_(b).sum(1) for gram, b in pairs], -1)
    magnitudes, beta = scales.split([2 * intermediate + hidden, 2], -1)
    scale = squared.add_(crosses).add_(1).clamp_(min=MIN_SQUARED_NORM).rsqrt_().mul_(magnitudes)
    entry, exit_ = scale.split([2 * intermediate, hidden], -1)
    return entry.unflatten(-1, (2, intermediate)), exit_, beta.unsqueeze(-1)


def _enter(normed: Tensor, low: Tensor, b: Tensor, scale: Tensor, beta: Tensor, weight: Tensor) -> Tensor:
    """Return the input [R, I] of the down projection from W x and B A x, with A x as `low` [R, 2, 2 r]."""
    both = torch.mm(normed, weight).view(scale.shape).baddbmm_(low, b)
    gate, up = torch.addcmul(beta, both, scale).unbind(1)
    return silu(gate).mul_(up)


def _leave(x: Tensor, gated: Tensor, low: Tensor, b: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """Return the states [R, H] from the down projection, with A x as `low` [R, 1, r]."""
    product = torch.mm(gated, weight).unsqueeze(1).baddbmm_(low, b)
    return torch.addcmul(x, product.squeeze(1), scale)


def few_rows(
    x: Tensor, state: Tensor, has_previous: Tensor | None, sizes: BlockSizes, weights: StepWeights
) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, H] of the last layer and the new states [N, R, H]; all adapters are computed in one call.

    `x` is X_{k:0}, [R, H], `state` X_{k-1:n}, [N, R, H]. `has_previous` [1, R, 1] is 0 for rows whose token is the
    first, else 1; None if all rows have a state.
    """
    hidden, intermediate, rank = sizes.hidden, sizes.intermediate, sizes.rank
    features, forms = _features(state, has_previous, weights)
    heads = torch.bmm(features, weights.heads).flatten(0, 1)
    widths = (2 * rank, intermediate), (rank, hidden), (2 * rank, hidden), (rank, intermediate)
    *parts, scales = heads.split([*(math.prod(width) for width in widths), weights.scales.shape[-1]], -1)
    b, exit_b, a, exit_a = (part.unflatten(-1, width) for part, width in zip(parts, widths, strict=True))
    adapters = a, b, exit_a, exit_b, *_scales(forms, scales, b, exit_b, sizes)
    by_layer = (part.unflatten(0, state.shape[:2]).unbind(0) for part in adapters)
    states = []
    for a, b, exit_a, exit_b, scale, exit_scale, beta, w, exit_w in zip(
        *by_layer, weights.entry_w.unbind(0), weights.exit_w.unbind(0), strict=True
    ):
        normed = normalised(x, weights.root)
        low = torch.bmm(a, normed.unsqueeze(-1)).mT  # the other order compiles to gathers
        gated = _enter(normed, low * weights.gate_or_up, b, scale, beta, w)
        x = _leave(x, gated, torch.bmm(exit_a, gated.unsqueeze(-1)).mT, exit_b, exit_scale, exit_w)
        states.append(x)
    return x, torch.stack(states)


def many_rows(
    x: Tensor, state: Tensor, has_previous: Tensor | None, sizes: BlockSizes, weights: StepWeights
) -> tuple[Tensor, Tensor]:
    """Return the result of `few_rows`; computes and applies the adapters of one layer at a time."""
    features, forms = _features(state, has_previous, weights)
    scales, forms = torch.bmm(features, weights.scales), forms.unflatten(0, state.shape[:2])
    new_state = torch.empty_like(state)
    for n, layer in enumerate(weights.layers):
        x = _run_layer(x, features[n, :, 1:], forms[n], scales[n], sizes, layer)
        new_state[n] = x
    return x, new_state


def _run_layer(x: Tensor, u: Tensor, forms: Tensor, scales: Tensor, sizes: BlockSizes, weights: LayerWeights) -> Tensor:
    """Return the states [R, H] of one layer of many rows; rows are multiplied by every A_j, so A is not computed.

    `x` [R, H] is the input of the layer; `u` [R, J], `forms` [R, *], `scales` [R, *].
    """
    rows, width = u.shape
    b = torch.mm(u, weights.entry_b).view(rows, 2 * sizes.rank, -1)
    exit_b = torch.mm(u, weights.exit_b).view(rows, sizes.rank, -1)
    scale, exit_scale, beta = _scales(forms, scales, b, exit_b, sizes)
    normed, u = normalised(x, weights.root), u.unsqueeze(1)
    low = torch.bmm(u, torch.mm(normed, weights.entry_a).view(rows, width, -1))
    gated = _enter(normed, low * weights.gate_or_up, b, scale, beta, weights.entry_w)
    low = torch.bmm(u, torch.mm(gated, weights.exit_a).view(rows, width, -1))
    return _leave(x, gated, low, exit_b, exit_scale, weights.exit_w)


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

    def __init__(self, network: Any) -> None:
        """Fold the weights of a `RecurrentNetwork`, whose module imports this one."""
        self._network = network
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the weights again."""
        embedding, norm = self._network.embedding, self._network.norm
        hidden = embedding.shape[1]
        self.vocabulary_size, self.state_shape = len(embedding), self._network.state_shape
        self.device = embedding.device
        dtype = self.dtype = torch.promote_types(embedding.dtype, torch.float32)
        self._runs = [run if run.other else _FoldedRun(run) for run in self._network.runs()]
        self._embedding = embedding.detach().to(dtype, copy=True)
        gain = norm.weight.detach().to(dtype) * math.sqrt(hidden)
        self._unembedding = (embedding.detach().to(dtype) * gain).mT.contiguous()
        self._root = gain.new_full((), math.sqrt(hidden * norm.epsilon))

    def _logits(self, x: Tensor) -> Tensor:
        """Return [..., V] from the last layer's states [..., H]."""
        return normalised(x, self._root) @ self._unembedding

    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.prefill`, RHN layers along the wavefront.

        Raises:
            ValueError: no token.
        """
        check_tokens(tokens)
        new_state = self._embedding.new_zeros(self.state_shape[0], len(tokens), self.state_shape[1])
        logits = self._embedding.new_empty(len(tokens), self.vocabulary_size)
        with torch.inference_mode():  # as in `step`
            x = F.embedding(tokens.mT, self._embedding)
            for run in self._runs:
                before = None if state is None else state[run.layers]
                if isinstance(run, _FoldedRun):
                    x, last = run.prefill(x, None if before is None else before[..., : x.shape[-1]])
                else:
                    x, last = _run_recurrent_layer(run, x, before)
                new_state[run.layers, :, : last.shape[-1]] = last
            logits.copy_(self._logits(x[-1]))
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
