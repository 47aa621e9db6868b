"""Language models of RHN, GRU and LSTM layers in any order; neighbouring RHN layers run along the wavefront.

R is the number of rows (sequences of a batch), T of tokens, L of layers, W their width, S the width of a state, V of
the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.layers import RHNBlock, RMSNorm, embedding_table
from gflownet.rhn.network import WAVEFRONT, check_state, check_tokens
from gflownet.rhn.stack_config import PROJECTIONS, StackConfig, StackLayer

if TYPE_CHECKING:
    from gflownet.rhn.stack_decoding import StackDecoder

_RECURRENT = {"gru": nn.GRU, "lstm": nn.LSTM}
# Widths between which one is looked for that has a number of parameters.
_MOST_WIDTH = 2**14
# How many units a feed-forward network may be narrower or wider than its ratio says, to meet a number of parameters.
_MOST_ADJUSTMENT = 8


class RecurrentLayer(nn.Module):
    """x + cell(RMSNorm(x)) with one of torch's recurrent cells, as wide as x."""

    def __init__(self, cell: str, config: StackConfig) -> None:
        """Start as torch does."""
        super().__init__()
        self.norm = RMSNorm(config.width, config.epsilon)
        self.cell = _RECURRENT[cell](config.width, config.width, batch_first=True)
        self.state_width = config.width * (2 if cell == "lstm" else 1)  # an LSTM has its memory cell besides

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the layer makes of x [R, T, W], and its last state to go on from.

        Args:
            x: [R, T, W].
            state: [R, W], of an LSTM [R, 2 W], output and memory cell side by side; None is zero.
        """
        is_lstm, given = self.state_width > x.shape[-1], None
        if state is not None:
            parts = tuple(part.contiguous().unsqueeze(0) for part in state.split(x.shape[-1], -1))
            given = parts if is_lstm else parts[0]
        out, last = self.cell(self.norm(x), given)
        return x + out, torch.cat(last if is_lstm else (last,), -1).squeeze(0)


def _rhn_block(layer: StackLayer, config: StackConfig) -> RHNBlock:
    """Return a block in which what is not to be adapted stays as it is: zeros in place of parameters."""
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
    """Turn parameters into buffers of zeros that no checkpoint holds."""
    for name in names:
        parameter = getattr(module, name)
        delattr(module, name)
        # Not on the meta device that a checkpoint is loaded on: nothing would fill it there.
        zeros = torch.zeros((), dtype=parameter.dtype, device="cpu").expand(parameter.shape)
        module.register_buffer(name, zeros, persistent=False)


@dataclass(frozen=True)
class Run:
    """Neighbouring layers that are run together: RHN layers of equal sizes, or one layer of another cell."""

    layers: slice
    blocks: tuple[RHNBlock, ...]  # none of another cell


class RecurrentStack(nn.Module):
    """A stack of recurrent layers as a language model."""

    def __init__(self, config: StackConfig) -> None:
        """Draw the weights from torch's random state."""
        super().__init__()
        self.config = config
        self.embedding = embedding_table(config.vocabulary_size, config.width)
        # A layer that repeats has no weights of its own, so that a checkpoint holds none twice.
        self.layers = nn.ModuleDict(
            {
                str(place): _rhn_block(layer, config) if layer.cell == "rhn" else RecurrentLayer(layer.cell, config)
                for place, layer in enumerate(config.layers)
                if config.owners[place] == place
            }
        )
        self.norm = RMSNorm(config.width, config.epsilon)

    def layer(self, place: int) -> RHNBlock | RecurrentLayer:
        """Return the layer at a place, from 0: of one that repeats, that which it repeats."""
        return cast("RHNBlock | RecurrentLayer", self.layers[str(self.config.owners[place])])

    def runs(self) -> Iterator[Run]:
        """Yield what is run together, first to last."""
        sizes = [self._sizes(place) for place in range(len(self.config.layers))]
        first = 0
        for place in range(1, len(sizes) + 1):
            if place < len(sizes) and sizes[place] is not None and sizes[place] == sizes[first]:
                continue
            blocks = tuple(self.layer(i) for i in range(first, place)) if sizes[first] is not None else ()
            yield Run(slice(first, place), cast(tuple[RHNBlock, ...], blocks))
            first = place

    def _sizes(self, place: int) -> tuple[int, int] | None:
        """Return what RHN layers of one wavefront share beside the width; None for another cell."""
        layer = self.config.layers[self.config.owners[place]]
        return (layer.rank, layer.intermediate_size(self.config.width)) if layer.cell == "rhn" else None

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits of the token after each, and the state to go on from.

        Args:
            tokens: [R, T], of the vocabulary.
            state: [L, R, S] as an earlier call returned it; None at the beginning of the sequences.

        Returns:
            logits [R, T, V] and the states [L, R, S] of the last tokens.

        Raises:
            ValueError: no token, or a state of another shape.
        """
        check_tokens(tokens)
        check_state(state, layers=len(self.config.layers), rows=len(tokens), state_width=self.config.state_width)
        x, last_states = F.embedding(tokens, self.embedding), []
        for run in self.runs():
            given = None if state is None else state[run.layers]
            x, last = self._run(run, x, given)
            last_states.append(F.pad(last, (0, self.config.state_width - last.shape[-1])))
        return self.logits(x), torch.cat(last_states)

    def _run(self, run: Run, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the layers of a run make of x [R, T, W], and their last states [n, R, width of theirs]."""
        if run.blocks:
            return WAVEFRONT(run.blocks, x, None if state is None else state[..., : self.config.width])
        layer = cast(RecurrentLayer, self.layer(run.layers.start))
        x, last = layer(x, None if state is None else state[0, :, : layer.state_width])
        return x, last.unsqueeze(0)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits [..., V] of what the last layer made, x [..., W]."""
        return F.linear(self.norm(x), self.embedding)

    def decoder(self) -> StackDecoder:
        """Return what generates from the weights as they are now."""
        from gflownet.rhn.stack_decoding import StackDecoder

        return StackDecoder(self)


@lru_cache(maxsize=4096)
def num_parameters(config: StackConfig) -> int:
    """Return how many parameters a stack has, each counted once; nothing is drawn for it."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in RecurrentStack(config).parameters())


def fit_parameters(config: StackConfig, budget: int) -> StackConfig:
    """Return the stack with the width at which it has as nearly as possible so many parameters.

    Feed-forward networks are a few units narrower or wider than their ratio says where that meets the number better.
    A stack without one comes as near as whole widths allow.
    """
    low, high = 1, _MOST_WIDTH
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if num_parameters(replace(config, width=middle)) <= budget else (low, middle)
    candidates = [_adjusted(replace(config, width=width), units) for width in (low, high) for units in _ADJUSTMENTS]
    return min(candidates, key=lambda fitted: abs(num_parameters(fitted) - budget))


# The smallest ones first: of equally near stacks the least adjusted is taken.
_ADJUSTMENTS = sorted(range(-_MOST_ADJUSTMENT, _MOST_ADJUSTMENT + 1), key=abs)


def _adjusted(config: StackConfig, units: int) -> StackConfig:
    """Return the stack with every feed-forward network so many units wider."""
    layers = []
    for layer in config.layers:
        size = max(1, layer.intermediate_size(config.width) + units)
        layers.append(replace(layer, ratio=size / config.width) if layer.cell == "rhn" and units else layer)
    return replace(config, layers=tuple(layers))
