"""Weisfeiler-Lehman features of graphs (Shervashidze et al. 2011; Ru et al. 2021), as hashes of labels; distances.

Round 0 has one label per node; each further round combines the label of a node with the multisets of labels of its
in-neighbours and of its out-neighbours. A graph is described by the histogram of the labels of each round, the
histogram of single parts of labels (such as "kernel size 3"), and its named places. Hashes of 64 bits may collide: two
out of a million labels do with a probability of 3e-8.

There is one squared distance of each block of labels, and one of each group of numbers. Histograms are scaled to length
1, so that graphs of different sizes are compared by their composition. Numbers (sizes, paths, settings with an order,
counts, shapes) are computed for a whole batch from the graphs and the vocabulary of any environment.

Letters: B and n graphs, N nodes, P parts of a label, K distances, L labels of a graph in all blocks, V distinct labels,
D numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gflownet.learning.sampler import uniform_states
from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import combine_codes
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, Group, LabelledGraphs, Numbers, nodes_at_ends
from gflownet.workers.process import Stream, stream_seed

ABSENT = 0  # in place of the label of a missing node or of an empty place
_OUT = 0x5BF03635  # distinguishes labels of out-neighbours from those of in-neighbours
_BY_GRAPH = ("labels", "counts", "numbers")
_MAX_ENTRIES = 2**18  # of one array at a time, to bound memory


@dataclass(frozen=True)
class GraphFeatures:
    """Labels and numeric features of B graphs."""

    labels: Tensor  # [B, L] int64 hashes, sorted and distinct within a block, different in different blocks; ABSENT
    counts: Tensor  # [B, L] int64, number of nodes with each label, 0 for ABSENT
    blocks: Tensor  # [L] int64, the block of each column, ascending
    numbers: Tensor  # [B, D] float64
    groups: Tensor  # [D] int64, ascending from 0: numbers of one group have one distance

    def __len__(self) -> int:
        """Return B."""
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> GraphFeatures:
        """Return the features of the graphs at an index."""
        return GraphFeatures(self.labels[index], self.counts[index], self.blocks, self.numbers[index], self.groups)

    def with_source(self, source: int, num_sources: int) -> GraphFeatures:
        """Return the features with a further group of numbers, whose squared distance is 1 for different sources."""
        numbers = self.numbers.new_zeros(len(self), num_sources)
        numbers[:, source] = math.sqrt(0.5)
        groups = self.groups.new_full((num_sources,), len(self.groups.unique()))
        numbers, groups = torch.cat([self.numbers, numbers], 1), torch.cat([self.groups, groups])
        return GraphFeatures(self.labels, self.counts, self.blocks, numbers, groups)

    @classmethod
    def cat(cls, parts: Sequence[GraphFeatures]) -> GraphFeatures:
        """Return the graphs of all parts, encoded alike."""
        labels, counts, numbers = (torch.cat([getattr(x, name) for x in parts]) for name in _BY_GRAPH)
        return cls(labels, counts, parts[0].blocks, numbers, parts[0].groups)

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks of labels."""
        return int(self.blocks.max()) + 1


def encoded(
    env: Environment, states: GraphStates, numbers: Tensor, groups: Tensor, *, num_rounds: int
) -> GraphFeatures:
    """Return the features of B terminal states with numbers [B, D] in groups [D]; isomorphic states have equal ones."""
    size = max(1, _MAX_ENTRIES // max(1, states.exists.shape[1] ** 2))
    starts = range(0, max(len(states), 1), size)
    graphs = [env.labelled_graphs(states[first : first + size]) for first in starts]
    labels, counts, blocks = zip(*(_histograms(each, num_rounds) for each in graphs), strict=True)
    return GraphFeatures(torch.cat(labels), torch.cat(counts), blocks[0], numbers, groups)


def _histograms(graphs: LabelledGraphs, num_rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels and counts [B, L] and blocks [L]: rounds, parts of labels (of several parts), named places."""
    columns = rounds(graphs, num_rounds)
    for parts in (graphs.labels if graphs.labels.shape[2] > 1 else graphs.labels[:, :, :0], graphs.places):
        if parts.shape[-1]:
            numbered = combine_codes(parts, torch.arange(parts.shape[-1]))
            columns.append(numbered.masked_fill(parts == UNSET, ABSENT).flatten(1))
    histograms = [_histogram(column, block) for block, column in enumerate(columns)]
    labels, counts = (torch.cat(arrays, 1) for arrays in zip(*histograms, strict=True))
    return labels, counts, torch.cat([torch.full((x.shape[1],), k) for k, x in enumerate(columns)])


def rounds(graphs: LabelledGraphs, num_rounds: int) -> list[Tensor]:
    """Return the labels of rounds 0 .. num_rounds, [B, N] int64 each, ABSENT for missing nodes."""
    missing, no_edge = ~graphs.exists, graphs.edges == NO_EDGE
    incoming, outgoing = combine_codes(graphs.edges), combine_codes(graphs.edges + _OUT)
    label = combine_codes(*graphs.labels.unbind(2)).masked_fill(missing, ABSENT)
    labels = [label]
    for _ in range(num_rounds):
        sources = combine_codes(incoming + label[:, :, None]).masked_fill(no_edge, 0).sum(1)
        targets = combine_codes(outgoing + label[:, None, :]).masked_fill(no_edge, 0).sum(2)
        label = combine_codes(label, sources, targets).masked_fill(missing, ABSENT)
        labels.append(label)
    return labels


def _histogram(labels: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the distinct labels of each row [B, N] as labels of a block, and how often each occurs."""
    codes = combine_codes(labels, torch.tensor(block)).masked_fill(labels == ABSENT, ABSENT).sort(1).values
    position = torch.zeros_like(codes)
    position[:, 1:] = (codes[:, 1:] != codes[:, :-1]).cumsum(1)
    distinct = torch.full_like(codes, ABSENT).scatter_(1, position, codes)
    counts = torch.zeros_like(codes).scatter_add_(1, position, torch.ones_like(codes))
    return distinct, counts.masked_fill(distinct == ABSENT, 0)


_ROUNDING = 1e-12  # below it, a squared distance of normalised histograms is zero


def squared_distances(first: GraphFeatures, second: GraphFeatures) -> Iterator[Tensor]:
    """Yield each of the K squared distances of B graphs to n others, [B, n] float64: of labels, then of numbers.

    Each entry depends on its two graphs only.
    """
    for block in range(first.num_blocks):
        known = second.labels[:, second.blocks == block].unique()
        left, right = _counts(first, block, known), _counts(second, block, known)
        products = torch.from_numpy((left @ right.T).toarray())  # of integers: exact
        (left, left_exists), (right, right_exists) = _inverse_lengths(first, block), _inverse_lengths(second, block)
        squared = products.mul_(left[:, None]).mul_(right).mul_(-2).add_(left_exists[:, None]).add_(right_exists)
        yield squared.masked_fill_(squared < _ROUNDING, 0)
    for group in first.groups.unique():
        left, right = (each.numbers[:, each.groups == group] for each in (first, second))
        yield torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _counts(features: GraphFeatures, block: int, known: Tensor) -> Any:
    """Return how often each graph has each known label of a block, a sparse array [B, V]."""
    from scipy.sparse import csr_array  # its import takes a quarter of a second

    labels, counts = features.labels[:, features.blocks == block], features.counts[:, features.blocks == block]
    column = torch.searchsorted(known, labels).clamp(max=len(known) - 1)
    row, place = (known[column] == labels).nonzero(as_tuple=True)
    entries = counts[row, place].double().numpy(), (row.numpy(), column[row, place].numpy())
    return csr_array(entries, shape=(len(labels), len(known)))


def _inverse_lengths(features: GraphFeatures, block: int) -> tuple[Tensor, Tensor]:
    """Return the inverse lengths of the histograms of a block, 0 for empty ones, and 1 for others, [B] float64."""
    norms = features.counts[:, features.blocks == block].square().sum(1).double()
    return norms.rsqrt().masked_fill(norms == 0, 0), (norms > 0).double()


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
    groups: Tensor  # [D]


class Descriptors:
    """Standardised numbers of terminal states; those that are equal for all random architectures are left out."""

    def __init__(self, env: Environment, *, seed: int) -> None:
        """Take the seed of the random architectures; they are measured on first use."""
        self.env, self._seed = env, seed

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
        groups, values = self._numbers(self._references)
        mean = values.nanmean(0)
        deviation, smallest = (values - mean).square().nanmean(0).sqrt(), _CONSTANT * (1 + mean.abs())
        columns = ((values - mean).nan_to_num(0.0).abs().amax(0) > smallest).nonzero().squeeze(1)
        return _Scale(mean, torch.where(deviation > smallest, deviation, 1.0), columns, torch.tensor(groups)[columns])

    def __call__(self, states: GraphStates) -> Tensor:
        """Return the numbers [B, D] float64 of terminal states, 0 for an unknown one."""
        starts = range(0, max(len(states), 1), _CHUNK)
        values = torch.cat([self._numbers(states[first : first + _CHUNK])[1] for first in starts])
        values = ((values - self._scale.mean) / self._scale.deviation)[:, self._scale.columns]
        return values.nan_to_num(0.0).clamp(-_BOUND, _BOUND).round(decimals=_DECIMALS)

    def _numbers(self, states: GraphStates) -> tuple[tuple[Group, ...], Tensor]:
        """Return the groups [D] and the values [B, D] float64 of all numbers."""
        graphs = self.env.labelled_graphs(states)
        columns = [*path_numbers(graphs), *type_counts(graphs, self._types), *self.env.numbers(states)]
        _, groups, values = zip(*columns, strict=True)
        return groups, torch.stack([value.double() for value in values], 1)


@lru_cache(maxsize=1)
def descriptors_of(env: Environment, seed: int) -> Descriptors:
    """Return the numbers of architectures, whose random references all models of a run share."""
    return Descriptors(env, seed=seed)


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
