"""Language models of recurrent layers, the Recurrent Hyper Network, and training on long sequences.

R is the number of rows (sequences of a batch), T of tokens, V of the vocabulary; H or W is the width of a layer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.rhn.config import PROJECTIONS, RHNConfig, StackConfig, StackLayer
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.layers import RecurrentLayer, RHNBlock, RMSNorm, Run, check_state, check_tokens, embedding_table
from gflownet.rhn.serving.generation import generate
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import BYTES, TextCodec
from gflownet.rhn.wavefront import along_wavefront

# Runs blocks over embedded tokens [R, T, H] from the states [depth, R, H] of the token before, None at the beginning of
# the sequences; returns the outputs [R, T, H] of the last block, and the last token's states [depth, R, H].
Stack = Callable[[Sequence[RHNBlock], Tensor, Tensor | None], tuple[Tensor, Tensor]]
# Upper bound of the search for the width that gives a number of parameters.
_MAX_WIDTH = 2**14
# Units by which feed-forward networks may differ from their ratio to meet a number of parameters, smallest first: of
# two equally near stacks the less adjusted one is returned.
_ADJUSTMENTS = sorted(range(-8, 9), key=abs)


def layer_by_layer(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run one block after the other, token by token, under torch.autograd; a `Stack`."""
    last_states = []
    for n, block in enumerate(blocks):
        x, last_state = block(x, None if state is None else state[n])
        last_states.append(last_state)
    return x, torch.stack(last_states)


class RecurrentNetwork(nn.Module):
    """Base of language models of recurrent layers.

    Subclasses provide the attributes and `runs`.
    """

    config: Any
    embedding: nn.Parameter  # [V, H], of the unembedding too
    norm: RMSNorm  # of the outputs of the last layer
    state_shape: tuple[int, int]  # (layers, width) of the state of one sequence
    codec: TextCodec = BYTES  # of the texts of `generate`

    def runs(self) -> Iterable[Run]:
        """Return the layers in the groups that are computed together, first to last."""
        raise NotImplementedError

    def decoder(self) -> RHNDecoder:
        """Return a `LanguageModel` with the present weights."""
        return RHNDecoder(self)

    def generate(
        self,
        prompt: str | Sequence[int] | Tensor,
        *,
        max_new_tokens: int = SamplingParams.max_tokens,
        temperature: float = SamplingParams.temperature,
        seed: int | None = None,
    ) -> Any:
        """Return the continuation of a prompt: a text of a text, a list of tokens of tokens [T].

        `gflownet.rhn.serving` has more options, streams and batches; a network that generates often is folded once
        there, by `decoder`.

        Args:
            prompt: at least one token.
            max_new_tokens: length of the continuation.
            temperature: 0 for the likeliest token.
            seed: of the tokens; None for another continuation each time.

        Raises:
            ValueError: an option out of its bounds, an empty prompt, or tokens outside the vocabulary.
        """
        if isinstance(prompt, str):
            size = len(self.embedding)
            if size != self.codec.vocabulary_size:
                raise ValueError(f"prompt: expected tokens, for a vocabulary of {size} without a tokenizer, got a text")
            tokens = self.codec.encode(prompt)
            options: Any = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
            return self.codec.decode(self.generate(tokens, **options))
        params = SamplingParams(max_tokens=max_new_tokens, temperature=temperature, seed=seed)
        return generate(self.decoder(), [*map(int, prompt)], params).tokens

    def forward(
        self, tokens: Tensor, state: Tensor | None = None, *, stack: Stack = along_wavefront
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of the token after each, and the state to continue from.

        Args:
            tokens: [R, T], of the vocabulary.
            state: [layers, R, width] returned by an earlier call; None at the beginning of the sequences.
            stack: the algorithm that runs RHN layers; the result does not depend on it.

        Returns:
            logits [R, T, V] and the states [layers, R, width] of the last tokens.

        Raises:
            ValueError: no token, or a state of another shape.
        """
        check_tokens(tokens)
        layers, width = self.state_shape
        check_state(state, layers=layers, rows=len(tokens), width=width)
        x, last_states = F.embedding(tokens, self.embedding), []
        for run in self.runs():
            before = None if state is None else state[run.layers]
            if run.other is None:
                x, last = stack(run.blocks, x, None if before is None else before[..., : x.shape[-1]])
            else:
                x, last = run.other(x, None if before is None else before[0, :, : run.other.state_width])
                last = last.unsqueeze(0)
            last_states.append(F.pad(last, (0, width - last.shape[-1])))
        return F.linear(self.norm(x), self.embedding), torch.cat(last_states)


class RHN(RecurrentNetwork):
    """Recurrent Hyper Network."""

    def __init__(self, config: RHNConfig) -> None:
        """Initialise from torch's global random state, with adapters that change nothing."""
        super().__init__()
        self.config = config
        self.state_shape = config.depth, config.hidden_size
        self.embedding = embedding_table(config.vocabulary_size, config.hidden_size)
        self.blocks = nn.ModuleList(RHNBlock(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.hidden_size, config.epsilon)

    @property
    def layers(self) -> list[RHNBlock]:
        """The blocks, first to last."""
        return cast(list[RHNBlock], list(self.blocks))

    def runs(self) -> list[Run]:
        """Return all layers as one run."""
        return [Run(slice(0, self.config.depth), tuple(self.layers))]


def backward_in_chunks(
    network: RHN,
    tokens: Tensor,
    targets: Tensor,
    *,
    chunk: int,
    state: Tensor | None = None,
    stack: Stack = along_wavefront,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the mean cross-entropy to the parameters' `grad`, with the memory of one chunk.

    Truncated backpropagation through time (Williams and Peng 1990): the state passes from chunk to chunk, the gradient
    does not. With one chunk the gradient is exact.

    Args:
        network: to differentiate.
        tokens: [R, T].
        targets: [R, T], the token after each.
        chunk: number of tokens of one backward pass.
        state: [depth, R, H] of the tokens before; None at the beginning.
        stack: the algorithm that runs the layers.

    Returns:
        the loss, in nats per token, and the state [depth, R, H] to continue from, both detached.

    Raises:
        ValueError: targets of another shape than tokens, or a chunk without a token.
    """
    if targets.shape != tokens.shape:
        raise ValueError(f"targets: expected the shape {tuple(tokens.shape)} of tokens, got {tuple(targets.shape)}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 token, got {chunk}")
    total = torch.zeros((), dtype=network.embedding.dtype, device=tokens.device)
    for inputs, labels in zip(tokens.split(chunk, 1), targets.split(chunk, 1), strict=True):
        logits, last = network(inputs, state, stack=stack)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / tokens.numel()
        loss.backward()
        total, state = total + loss.detach(), last.detach()
    assert state is not None
    return total, state


class RecurrentStack(RecurrentNetwork):
    """RHN, GRU and LSTM layers in any order as a language model; consecutive RHN layers run along the wavefront."""

    def __init__(self, config: StackConfig) -> None:
        """Initialise from torch's global random state."""
        super().__init__()
        self.config = config
        self.state_shape = len(config.layers), config.state_width
        self.embedding = embedding_table(config.vocabulary_size, config.width)
        # A repeated layer shares the weights of its owner: a checkpoint holds them once.
        self.layers = nn.ModuleDict(
            {
                str(place): _new_layer(layer, config)
                for place, layer in enumerate(config.layers)
                if config.owners[place] == place
            }
        )
        self.norm = RMSNorm(config.width, config.epsilon)

    def layer(self, place: int) -> RHNBlock | RecurrentLayer:
        """Return the layer at an index from 0; for a repeated layer, its owner."""
        return cast("RHNBlock | RecurrentLayer", self.layers[str(self.config.owners[place])])

    def runs(self) -> Iterator[Run]:
        """Yield the layers in groups that are computed together, first to last."""
        sizes = [self._sizes(place) for place in range(len(self.config.layers))]
        first = 0
        for place in range(1, len(sizes) + 1):
            if place < len(sizes) and sizes[place] is not None and sizes[place] == sizes[first]:
                continue
            layers, group = [self.layer(i) for i in range(first, place)], slice(first, place)
            yield (
                Run(group, other=layers[0])
                if isinstance(layers[0], RecurrentLayer)
                else Run(group, cast(tuple[RHNBlock, ...], tuple(layers)))
            )
            first = place

    def _sizes(self, place: int) -> tuple[int, int] | None:
        """Return the sizes that RHN layers of one wavefront share; None for another cell."""
        layer = self.config.layers[self.config.owners[place]]
        return (layer.rank, layer.intermediate_size(self.config.width)) if layer.cell == "rhn" else None


def _new_layer(layer: StackLayer, config: StackConfig) -> RHNBlock | RecurrentLayer:
    """Return a new layer; in an RHN block, parameters of projections that are not adapted become constant zeros."""
    if layer.cell != "rhn":
        sizes = config.width, config.epsilon
        return RecurrentLayer(layer.cell, *sizes, units=layer.units, residual=layer.residual)
    block = RHNBlock(
        RHNConfig(
            vocabulary_size=config.vocabulary_size,
            hidden_size=config.width,
            intermediate_size=layer.intermediate_size(config.width),
            depth=len(config.layers),
            rank=layer.rank,
            bottleneck=config.bottleneck,
            epsilon=config.epsilon,
        )
    )
    for name in PROJECTIONS:
        if name not in layer.projections:
            _hold_at_zero(getattr(block.bhn, name), "a", "b", "delta")
    if not layer.beta:
        _hold_at_zero(block.bhn, "beta")
    return block


def _hold_at_zero(module: nn.Module, *names: str) -> None:
    """Turn parameters into buffers of zeros that are not part of a checkpoint."""
    for name in names:
        parameter = getattr(module, name)
        delattr(module, name)
        # Not on the meta device that a checkpoint is loaded on: nothing would fill it there.
        zeros = torch.zeros((), dtype=parameter.dtype, device="cpu").expand(parameter.shape)
        module.register_buffer(name, zeros, persistent=False)


def num_parameters(config: StackConfig) -> int:
    """Return the number of parameters of a stack, shared ones counted once, without building it."""
    width = config.width
    owned = [layer for place, layer in enumerate(config.layers) if config.owners[place] == place]
    return (config.vocabulary_size + 1) * width + sum(_layer_parameters(layer, config) for layer in owned)


def _layer_parameters(layer: StackLayer, config: StackConfig) -> int:
    width = config.width
    if layer.cell != "rhn":
        units, gates = layer.units or width, 4 if layer.cell == "lstm" else 3
        projection = 0 if units == width else units * width
        return width + gates * units * (width + units + 2) + projection
    features, size = config.bottleneck + 1, layer.intermediate_size(width)
    ends = {"gate": (width, size), "up": (width, size), "down": (size, width)}
    heads = sum(layer.rank * (ends[name][0] + ends[name][1]) + ends[name][1] for name in layer.projections)
    hyper_network = width + (width + 1) * config.bottleneck + features * (heads + int(layer.beta))
    return width + 3 * width * size + hyper_network


def fit_parameters(config: StackConfig, budget: int) -> StackConfig:
    """Return the stack with the width for which the number of parameters is nearest to `budget`.

    Feed-forward networks become a few units narrower or wider than their ratio if that is nearer. A stack without
    feed-forward networks is as near as whole widths allow.
    """
    widths = range(1, _MAX_WIDTH)
    low = max(1, bisect_right(widths, budget, key=lambda width: num_parameters(replace(config, width=width))))
    near = [replace(config, width=width) for width in (low, low + 1)]
    candidates = [_adjusted(candidate, units) for candidate in near for units in _ADJUSTMENTS]
    return min(candidates, key=lambda candidate: abs(num_parameters(candidate) - budget))


def _adjusted(config: StackConfig, units: int) -> StackConfig:
    """Return the stack with every feed-forward network `units` wider."""
    layers = []
    for layer in config.layers:
        size = max(1, layer.intermediate_size(config.width) + units)
        layers.append(replace(layer, ratio=size / config.width) if layer.cell == "rhn" and units else layer)
    return replace(config, layers=tuple(layers))
