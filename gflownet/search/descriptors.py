"""Numbers that describe architectures of any environment: sizes, paths, settings with an order, counts, shapes.

They are computed for a whole batch from the graphs and the vocabulary. Isomorphic states have equal numbers.

Letters: B states, N nodes, P parts of a label, V values, S places, D numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gflownet.data.sampler import uniform_states
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, Group, LabelledGraphs, Numbers, nodes_at_ends
from gflownet.workers.process import Stream, stream_seed

_NUM_REFERENCES = 256  # random architectures: they determine means, deviations and the labels that are counted
_CHUNK = 2_048  # architectures at a time, to bound memory
_BOUND = 4.0  # of a standardised number
_DECIMALS = 9  # sums over nodes in another order are equal
_CONSTANT = 1e-9  # deviation below which a number is left out


class _Scale(NamedTuple):
    """Random architectures in numbers, and the D numbers that vary over them."""

    mean: Tensor
    deviation: Tensor
    columns: Tensor  # [D]
    names: tuple[str, ...]  # D
    groups: Tensor  # [D]


class Descriptors:
    """Standardised numbers of terminal states; those that are equal for all random architectures are left out."""

    def __init__(self, env: Environment, *, seed: int) -> None:
        """Take the seed of the random architectures; they are measured on first use."""
        self.env, self._seed = env, seed

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names [D]."""
        return self._scale.names

    @property
    def groups(self) -> Tensor:
        """Return the groups [D]."""
        return self._scale.groups

    @cached_property
    def _references(self) -> GraphStates:
        generator = torch.Generator().manual_seed(stream_seed(self._seed, Stream.DESCRIPTORS))
        return uniform_states(self.env, _NUM_REFERENCES, generator=generator)

    @cached_property
    def _types(self) -> list[int]:
        types = self.env.labelled_graphs(self._references).labels[:, :, 0].unique()
        return types[types != UNSET].tolist()

    @cached_property
    def _scale(self) -> _Scale:
        names, groups, values = self._numbers(self._references)
        mean, deviation = mean_and_deviation(values)
        varying = (values - mean).nan_to_num(0.0).abs().amax(0) > _CONSTANT * (1 + mean.abs())
        columns = varying.nonzero().squeeze(1)
        names = tuple(names[column] for column in columns.tolist())
        return _Scale(mean, deviation, columns, names, torch.tensor(groups)[columns])

    def __call__(self, states: GraphStates) -> Tensor:
        """Return the numbers [B, D] float64 of terminal states, 0 for an unknown one."""
        starts = range(0, max(len(states), 1), _CHUNK)
        values = torch.cat([self._numbers(states[first : first + _CHUNK])[2] for first in starts])
        values = ((values - self._scale.mean) / self._scale.deviation)[:, self._scale.columns]
        return values.nan_to_num(0.0).clamp(-_BOUND, _BOUND).round(decimals=_DECIMALS)

    def _numbers(self, states: GraphStates) -> tuple[tuple[str, ...], tuple[Group, ...], Tensor]:
        """Return the names [D], the groups [D] and the values [B, D] float64 of all numbers."""
        graphs = self.env.labelled_graphs(states)
        columns = [*path_numbers(graphs), *type_counts(graphs, self._types), *self.env.numbers(states)]
        names, groups, values = zip(*columns, strict=True)
        return names, groups, torch.stack([value.double() for value in values], 1)


def mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation [D] of the finite values of each column of [n, D]; 1 for a constant one."""
    mean = values.nanmean(0)
    deviation = (values - mean).square().nanmean(0).sqrt()
    return mean, torch.where(deviation > _CONSTANT * (1 + mean.abs()), deviation, 1.0)


def path_numbers(graphs: LabelledGraphs) -> Numbers:
    """Return numbers of nodes and edges, lengths and number of paths from a source to a sink, and the width."""
    edge, exists = graphs.edges != NO_EDGE, graphs.exists
    has_edge = edge.any(1) | edge.any(2)
    is_source, is_sink = exists & ~edge.any(1), exists & ~edge.any(2)
    longest = torch.zeros(exists.shape)  # edges from a source
    shortest = torch.where(is_source, 0.0, torch.inf)
    num_paths, adjacency = is_source.double(), edge.double()
    total = torch.zeros(exists.shape, dtype=torch.float64)
    for step in range(exists.shape[1]):
        total += num_paths
        longest = torch.where(num_paths > 0, float(step), longest)
        shortest = torch.where((num_paths > 0) & shortest.isinf(), float(step), shortest)
        num_paths = torch.einsum("bs,bst->bt", num_paths, adjacency)  # walks of the next length
    level = torch.nn.functional.one_hot(longest.long(), exists.shape[1]) * exists[:, :, None]
    ends = shortest.masked_fill(~is_sink, torch.inf).amin(1)
    return [
        ("nodes", Group.SIZES, exists.sum(1)),
        ("edges", Group.SIZES, edge.sum((1, 2))),
        ("longest path", Group.PATHS, longest.amax(1)),
        ("shortest path", Group.PATHS, ends.nan_to_num(posinf=0.0)),
        ("log paths", Group.PATHS, (total * is_sink).sum(1).log1p()),
        ("edges from sources", Group.PATHS, (edge & is_source[:, :, None]).sum((1, 2))),
        ("edges to sinks", Group.PATHS, (edge & is_sink[:, None, :]).sum((1, 2))),
        ("edges from sources to sinks", Group.PATHS, (edge & is_source[:, :, None] & is_sink[:, None, :]).sum((1, 2))),
        ("mean depth", Group.PATHS, (longest * exists).sum(1) / exists.sum(1).clamp(min=1)),
        ("width", Group.PATHS, level.sum(1).amax(1)),
        ("nodes without edges", Group.PATHS, (exists & ~has_edge).sum(1)),
        ("largest number of inputs", Group.PATHS, edge.sum(1).amax(1)),
        ("largest number of outputs", Group.PATHS, edge.sum(2).amax(1)),
    ]


def type_counts(graphs: LabelledGraphs, types: Sequence[int]) -> Numbers:
    """Return the numbers of nodes of each type: all, those that read a source, those that a sink reads."""
    places, labels = nodes_at_ends(graphs.exists, graphs.edges != NO_EDGE), graphs.labels[:, :, 0]
    return [
        (f"nodes of type {value}{place}", Group.ENDS if place else Group.COUNTS, ((labels == value) & at).sum(1))
        for value in types
        for place, at in places.items()
    ]
