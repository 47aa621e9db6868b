"""Language models of RHN, GRU and LSTM layers in any order; consecutive RHN layers run along the wavefront.

R is the number of rows (sequences of a batch), T of tokens, L of layers, W their width, S the width of a state, V of
the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from gflownet.rhn.config import PROJECTIONS, RHNConfig, StackConfig, StackLayer
from gflownet.rhn.layers import RecurrentLayer, RHNBlock, RMSNorm, Run, embedding_table
from gflownet.rhn.network import RecurrentNetwork

# Upper bound of the search for the width that gives a number of parameters.
_MAX_WIDTH = 2**14
# Units by which feed-forward networks may differ from their ratio to meet a number of parameters, smallest first: of
# two equally near stacks the less adjusted one is returned.
_ADJUSTMENTS = sorted(range(-8, 9), key=abs)


class RecurrentStack(RecurrentNetwork):
    """A stack of recurrent layers as a language model."""

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

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the weights of embedding and unembedding, [V, W] both."""
        return self.embedding, self.embedding


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
    low, high = 1, _MAX_WIDTH
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if num_parameters(replace(config, width=middle)) <= budget else (low, middle)
    candidates = [_adjusted(replace(config, width=width), units) for width in (low, high) for units in _ADJUSTMENTS]
    return min(candidates, key=lambda candidate: abs(num_parameters(candidate) - budget))


def _adjusted(config: StackConfig, units: int) -> StackConfig:
    """Return the stack with every feed-forward network `units` wider."""
    layers = []
    for layer in config.layers:
        size = max(1, layer.intermediate_size(config.width) + units)
        layers.append(replace(layer, ratio=size / config.width) if layer.cell == "rhn" and units else layer)
    return replace(config, layers=tuple(layers))
