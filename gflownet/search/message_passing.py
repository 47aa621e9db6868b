"""Message passing on dense labelled graphs, for several networks at once.

Letters: M networks, B graphs, N nodes, P parts of a label, L known values of all parts, E kinds of edges, D numbers of
a graph, W width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from gflownet.mdp.labelled_graphs import NO_EDGE, LabelledGraphs
from gflownet.mdp.states import UNSET

# Of the first weights: predictions begin near zero.
_OUTPUT_SCALES = {"output": 0.3, "direct": 0.0}


@dataclass(frozen=True)
class LabelVocabulary:
    """Known values of the parts of labels, of edges and of places, each list ascending; others have no feature."""

    labels: tuple[Tensor, ...]  # P
    edges: Tensor  # [E]
    places: tuple[Tensor, ...]  # one per named place


@dataclass(frozen=True)
class GraphTensors:
    """B graphs as numbers, float32."""

    labels: Tensor  # [B, N, L], one-hot per part
    adjacency: Tensor  # [B, N, N], 1 for an edge s -> t
    received: Tensor  # [B, N, E], in-edges of each kind
    sent: Tensor  # [B, N, E], out-edges of each kind
    exists: Tensor  # [B, N]
    numbers: Tensor  # [B, D]: one-hot places, and numeric features

    def __len__(self) -> int:
        """Return B."""
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> GraphTensors:
        """Return the graphs at an index."""
        return GraphTensors(*(getattr(self, item.name)[index] for item in fields(self)))

    def double(self) -> GraphTensors:
        """Return the same numbers as float64."""
        return replace(self, **{item.name: getattr(self, item.name).double() for item in fields(self)})


def label_vocabulary(graphs: LabelledGraphs) -> LabelVocabulary:
    """Return the values that occur in some graphs."""
    edges = graphs.edges.unique()
    return LabelVocabulary(
        tuple(known_values(part) for part in graphs.labels.unbind(2)),
        edges[edges != NO_EDGE],
        tuple(known_values(place) for place in graphs.places.unbind(1)),
    )


def encode_graphs(graphs: LabelledGraphs, vocabulary: LabelVocabulary, numbers: Tensor | None) -> GraphTensors:
    """Return graphs as numbers, with numeric features [B, D] after the named places.

    Raises:
        ValueError: numeric features of the wrong shape, or not finite.
    """
    if numbers is None:
        numbers = torch.empty(len(graphs), 0)
    if numbers.dim() != 2 or len(numbers) != len(graphs) or not bool(numbers.isfinite().all()):
        raise ValueError(f"numeric features: expected finite [{len(graphs)}, D], got {list(numbers.shape)}")
    parts = [_one_hot(part, values) for part, values in zip(graphs.labels.unbind(2), vocabulary.labels, strict=True)]
    places = [_one_hot(place, values) for place, values in zip(graphs.places.unbind(1), vocabulary.places, strict=True)]
    edges = _one_hot(graphs.edges, vocabulary.edges)  # [B, N, N, E]
    return GraphTensors(
        torch.cat(parts, 2),
        (graphs.edges != NO_EDGE).float(),
        edges.sum(1),
        edges.sum(2),
        graphs.exists.float(),
        torch.cat([*places, numbers.float()], 1),
    )


def initial_weights(
    graphs: GraphTensors, *, num_members: int, width: int, num_rounds: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return random weights of M networks for graphs of this kind."""
    num_labels, num_edges, num_numbers = graphs.labels.shape[2], graphs.sent.shape[2], graphs.numbers.shape[1]
    num_pooled = (num_rounds + 1) * width + num_labels + num_numbers
    shapes = {"embedding": (num_labels + 2 * num_edges, width)}
    shapes |= {f"round{index}": (3 * width, width) for index in range(num_rounds)}
    shapes |= {"hidden": (num_pooled, width), "direct": (num_pooled, 1), "output": (width, 1)}
    weights = {}
    for name, shape in shapes.items():
        scale = math.sqrt(2 / shape[0]) * _OUTPUT_SCALES.get(name, 1.0)
        weights[name] = torch.randn(num_members, *shape, generator=generator) * scale
        weights[f"{name}_bias"] = torch.zeros(num_members, 1, shape[1])
    # Pooled values are divided by the mean size of a graph.
    weights["log_size"] = torch.full((num_members, 1, 1), math.log(max(1.0, float(graphs.exists.sum(1).mean()))))
    return weights


def forward(graphs: GraphTensors, weights: Mapping[str, Tensor]) -> Tensor:
    """Return the outputs [M, B] of M networks.

    Every round adds to the state of a node a function of itself, of the mean of its in-neighbours and of the mean of
    its out-neighbours. The sums over the nodes after each round, and of the labels, are read by one hidden layer and a
    linear one.
    """
    num_graphs, num_nodes, _ = graphs.labels.shape
    num_members = len(weights["embedding"])
    exists = graphs.exists.reshape(1, -1, 1)
    inputs = torch.cat([graphs.labels, graphs.received, graphs.sent], 2).flatten(0, 1)
    state = _linear(inputs.expand(num_members, -1, -1), weights, "embedding").relu() * exists
    size = weights["log_size"].exp()
    pooled = [graphs.labels.sum(1).expand(num_members, -1, -1) / size]
    forth = graphs.adjacency / graphs.adjacency.sum(1, keepdim=True).clamp(min=1)
    back = (graphs.adjacency / graphs.adjacency.sum(2, keepdim=True).clamp(min=1)).transpose(1, 2)
    for index in range(sum(name.startswith("round") and not name.endswith("_bias") for name in weights)):
        pooled.append(_pooled(state, num_graphs) / size)
        states = state.unflatten(1, (num_graphs, num_nodes))
        # [M, B, N, W]: sum over s of share[b, s, t] * state[m, b, s].
        received, sent = (torch.matmul(share.transpose(1, 2), states).flatten(1, 2) for share in (forth, back))
        state = state + _linear(torch.cat([state, received, sent], 2), weights, f"round{index}").relu() * exists
    pooled.append(_pooled(state, num_graphs) / size)
    every = torch.cat([*pooled, graphs.numbers.expand(num_members, -1, -1)], 2)
    hidden = _linear(every, weights, "hidden").relu()
    return (_linear(hidden, weights, "output") + _linear(every, weights, "direct")).squeeze(2)


def _linear(values: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Return values [M, R, I] times weights [M, I, O] plus biases [M, 1, O]."""
    return torch.baddbmm(weights[f"{name}_bias"], values, weights[name])


def _pooled(state: Tensor, num_graphs: int) -> Tensor:
    """Return the sums over the nodes, [M, B, W], of states [M, B * N, W]."""
    return state.unflatten(1, (num_graphs, -1)).sum(2)


def known_values(codes: Tensor) -> Tensor:
    """Return the codes that occur, ascending."""
    values = codes.unique()
    return values[values != UNSET]


def _one_hot(codes: Tensor, values: Tensor) -> Tensor:
    """Return codes [...] as [..., number of values] float32, zeros for an unknown one."""
    return (codes[..., None] == values).float()
