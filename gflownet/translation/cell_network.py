"""Language models whose recurrent cell is a computation graph with recurrent edges.

R is the number of rows (sequences of a batch), T of tokens, W the width of the layers, S of a cell's state, V the size
of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
    """Layers of one cell, of the width of its input and output, between an embedding and the tied unembedding.

    Raises:
        ValueError: an invalid graph, not one input and one output of the same width, or a size below 1.
    """

    graph: Mapping[str, Any]  # node-link data of the cell
    vocabulary_size: int = 256  # one token per byte
    layers: int = 1  # each with weights of its own
    epsilon: float = 1e-6  # of the RMS norms

    def __post_init__(self) -> None:
        sizes = [node.output_size for node in self.cell.nodes.values() if node.node_type.value != "hidden"]
        if len(sizes) != 2 or sizes[0] != sizes[1] or len(self.cell.input_node_ids) != 1:
            raise ValueError(f"graph: expected one input and one output of the same width, got widths {sizes}")
        for name in ("vocabulary_size", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon: expected a number > 0, got {self.epsilon}")

    @property
    def cell(self) -> ComputationGraph:
        """The graph of the cell."""
        return ComputationGraph.from_dict(self.graph)

    @property
    def width(self) -> int:
        """W, the width of the cell's input and output."""
        cell = self.cell
        return cast(int, cell.nodes[cell.input_node_ids[0]].output_size)


class CellLayer(SequenceLayer):
    """x + cell(RMSNorm(x)), step by step; the state is the cell's state tensors, concatenated."""

    def __init__(self, cell: ComputationGraph, width: int, epsilon: float) -> None:
        super().__init__()
        self.norm = RMSNorm(width, epsilon)
        self.cell: TranslatedModel = to_pytorch_model(cell)
        self.sizes = [slot.size for slot in self.cell.plan.slots]
        self.state_width = sum(self.sizes)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs [R, T, W] and the last state [R, S], see `SequenceLayer`."""
        state = x.new_zeros(len(x), self.state_width) if state is None else state
        if not self.sizes:
            return x + self.cell(self.norm(x).flatten(0, 1)).view_as(x), state
        y, last = self.cell.steps(self.norm(x), state.split(self.sizes, -1))
        return x + y, torch.cat(last, -1)


class CellNetwork(RecurrentNetwork):
    """Layers of a found cell as a language model."""

    def __init__(self, config: CellConfig) -> None:
        """Initialise from torch's global random state."""
        super().__init__()
        self.config, width, cell = config, config.width, config.cell
        self.embedding = embedding_table(config.vocabulary_size, width)
        self.layers = nn.ModuleList(CellLayer(cell, width, config.epsilon) for _ in range(config.layers))
        self.norm = RMSNorm(width, config.epsilon)
        self.state_shape = config.layers, max(1, cast(CellLayer, self.layers[0]).state_width)

    def runs(self) -> Iterator[Run]:
        """Yield the layers, first to last."""
        for place, layer in enumerate(self.layers):
            yield Run(slice(place, place + 1), other=cast(CellLayer, layer))

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the weights of embedding and unembedding, [V, W] both."""
        return self.embedding, self.embedding


def num_cell_parameters(config: CellConfig) -> int:
    """Return the number of parameters of a network, computed from its graph."""
    of_cell = cast(GraphSummary, summary(config.cell)).num_parameters
    width = config.width
    return config.vocabulary_size * width + config.layers * (of_cell + width) + width


def fit_cell_parameters(config: CellConfig, budget: int) -> CellConfig:
    """Return the network with the width for which the number of parameters is nearest to `budget`.

    The widths of all nodes are scaled by the same factor, and rounded.
    """
    low, high = 1, _MAX_WIDTH
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if num_cell_parameters(_scaled(config, middle)) <= budget else (low, middle)
    return min(
        (_scaled(config, width) for width in (low, high)),
        key=lambda candidate: abs(num_cell_parameters(candidate) - budget),
    )


def _scaled(config: CellConfig, width: int) -> CellConfig:
    """Return the network of a width."""
    factor = width / config.width
    nodes = [{**node, "output_size": max(1, round(node["output_size"] * factor))} for node in config.graph["nodes"]]
    return replace(config, graph={**config.graph, "nodes": nodes})
