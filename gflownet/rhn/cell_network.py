"""Language models whose layers are computation graphs: recurrent cells of neurons, or blocks of causal operations.

R is the number of rows (sequences of a batch), T of tokens, W the width of the layers, S of a layer's state, V the size
of the vocabulary.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.rhn.layers import RMSNorm, Run, SequenceLayer, embedding_table
from gflownet.rhn.network import RecurrentNetwork
from gflownet.translation.graph_summary import GraphSummary, summary
from gflownet.translation.model import TranslatedModel, to_pytorch_model

_MAX_WIDTH = 2**12  # upper bound of the search for the width that gives a number of parameters


@dataclass(frozen=True)
class CellConfig:
    """Layers of blocks between an embedding and the tied unembedding.

    A block maps an input to an output of width W: a cell of neurons at one position, or a graph of operations on a
    sequence [1, W], whose model reads sequences of any length.

    Raises:
        ValueError: an invalid graph, blocks of other widths, an unknown name, or a size below 1.
    """

    blocks: Mapping[str, Mapping[str, Any]]  # node-link data by name
    layers: Sequence[str]  # names of blocks, first to last
    repeat: int = 1  # passes through the layers
    shared: bool = False  # whether all passes have the weights of the first
    vocabulary_size: int = 256  # one token per byte
    epsilon: float = 1e-6  # of the RMS norms

    def __post_init__(self) -> None:
        if not isinstance(self.blocks, Mapping) or not all(isinstance(each, Mapping) for each in self.blocks.values()):
            raise ValueError(f"blocks: expected graphs by name, got {self.blocks!r:.80}")
        ends = {name: (each.inputs, each.outputs) for name in self.blocks for each in [self.summary_of(name)]}
        sizes = {tuple(shape.sizes) for inputs, outputs in ends.values() for shape in (*inputs, *outputs)}
        if len(sizes) != 1 or any(len(shapes) != 1 for each in ends.values() for shapes in each):
            raise ValueError(f"blocks: expected one input and one output each, all of one width, got {sorted(sizes)}")
        if not self.layers or not set(self.layers) <= set(self.blocks):
            raise ValueError(f"layers: expected some of {', '.join(self.blocks)}, got {[*self.layers]}")
        for name in ("vocabulary_size", "repeat"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon: expected a number > 0, got {self.epsilon}")

    def graph(self, name: str) -> ComputationGraph:
        """Return the graph of a block."""
        return ComputationGraph.from_dict(self.blocks[name])

    def summary_of(self, name: str) -> GraphSummary:
        """Return the shapes, sizes and state of a block. Raises ValueError for an invalid graph."""
        try:
            return _summary(json.dumps(self.blocks[name], sort_keys=True))
        except ValueError as error:
            problems = "; ".join(line.removeprefix("- ") for line in str(error).splitlines())
            raise ValueError(f"blocks: {name}: {problems}") from None

    @property
    def width(self) -> int:
        """W, the width of the input and output of every block."""
        return self.summary_of(self.layers[0]).inputs[0].channels

    @property
    def words(self) -> str:
        """The model in words, for example "lstm > gated x2 shared, width 96"."""
        times = f" x{self.repeat}{' shared' if self.shared else ''}" if self.repeat > 1 else ""
        names = " > ".join(self.layers)
        return f"{f'({names})' if times and len(self.layers) > 1 else names}{times}, width {self.width}"


@lru_cache(maxsize=4096)
def _summary(graph: str) -> GraphSummary:
    return cast(GraphSummary, summary(ComputationGraph.from_dict(json.loads(graph))))


class CellLayer(SequenceLayer):
    """x + block(RMSNorm(x)); the state is the block's state tensors, flat and concatenated.

    A block without state maps every position alone.
    """

    def __init__(self, graph: ComputationGraph, width: int, epsilon: float) -> None:
        super().__init__()
        self.norm = RMSNorm(width, epsilon)
        with torch.device("cpu"):  # on the meta device nothing would fill tables that no checkpoint holds
            self.cell: TranslatedModel = to_pytorch_model(graph)
        self.slots = self.cell.plan.slots
        self.state_width = sum(slot.size for slot in self.slots)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs [R, T, W] and the last state [R, S], see `SequenceLayer`."""
        state = x.new_zeros(len(x), self.state_width) if state is None else state
        y, is_vector = self.norm(x), self.cell.plan.takes_columns
        if not self.slots:
            positions = y.flatten(0, 1)
            return x + self.cell(positions if is_vector else positions.unsqueeze(1)).view_as(x), state
        parts = zip(self.slots, state.split([slot.size for slot in self.slots], -1), strict=True)
        tensors = tuple(part.unflatten(1, slot.shape) for slot, part in parts)
        y, last = (self.cell.steps if is_vector else self.cell.step)(y, tensors)
        return x + y, torch.cat([each.flatten(1) for each in last], -1)


class CellStack(SequenceLayer):
    """The layers of all passes, one after the other; their states are concatenated."""

    def __init__(self, config: CellConfig) -> None:
        super().__init__()
        names = [*config.layers] * (1 if config.shared else config.repeat)
        self.layers = nn.ModuleList(CellLayer(config.graph(name), config.width, config.epsilon) for name in names)
        self.passes = config.repeat if config.shared else 1
        self.widths = [layer.state_width for layer in self.order()]
        self.state_width = sum(self.widths)

    @property
    def norm(self) -> RMSNorm:  # type: ignore[override]
        """The norm of the first layer."""
        return next(self.order()).norm

    def order(self) -> Iterator[CellLayer]:
        """Yield the layers as they are computed."""
        for _ in range(self.passes):
            yield from cast(Sequence[CellLayer], self.layers)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs [R, T, W] and the last state [R, S], see `SequenceLayer`."""
        before = [None] * len(self.widths) if state is None else state.split(self.widths, -1)
        states = []
        for layer, part in zip(self.order(), before, strict=True):
            x, last = layer(x, part)
            states.append(last)
        return x, torch.cat(states, -1)


class CellNetwork(RecurrentNetwork):
    """Layers of found cells or blocks as a language model; the state of a sequence is [1, W]."""

    def __init__(self, config: CellConfig) -> None:
        """Initialise from torch's global random state."""
        super().__init__()
        self.config, width = config, config.width
        self.embedding = embedding_table(config.vocabulary_size, width)
        self.stack = CellStack(config)
        self.norm = RMSNorm(width, config.epsilon)
        self.state_shape = 1, max(1, self.stack.state_width)

    def runs(self) -> Iterator[Run]:
        """Yield the layers as one run."""
        yield Run(slice(0, 1), other=self.stack)


def num_cell_parameters(config: CellConfig) -> int:
    """Return the number of parameters of a network, computed from its graphs."""
    of_block = {name: config.summary_of(name).num_parameters for name in set(config.layers)}
    width, passes = config.width, 1 if config.shared else config.repeat
    of_layers = sum(of_block[name] + width for name in config.layers)
    return config.vocabulary_size * width + passes * of_layers + width


def largest_cell(make: Callable[[int], CellConfig], budget: int) -> CellConfig:
    """Return the network of the largest width whose number of parameters is at most `budget`.

    Raises:
        ValueError: a network of width 1 has more.
    """
    width = bisect_right(range(1, _MAX_WIDTH), budget, key=lambda width: num_cell_parameters(make(width)))
    if not width:
        raise ValueError(f"expected a network of at most {budget:,} parameters, got more at width 1")
    return make(width)
