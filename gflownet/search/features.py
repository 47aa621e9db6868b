"""Weisfeiler-Lehman features of graphs (Shervashidze et al. 2011; Ru et al. 2021), as hashes of labels; distances.

Round 0 has one label per node; each further round combines the label of a node with the multisets of labels of its
in-neighbours and of its out-neighbours. A graph is described by the histogram of the labels of each round, the
histogram of single parts of labels (such as "kernel size 3"), and its named places. Hashes of 64 bits may collide: two
out of a million labels do with a probability of 3e-8.

There is one squared distance of each block of labels, and one of each group of numbers. Histograms are scaled to length
1, so that graphs of different sizes are compared by their composition.

Letters: B and n graphs, N nodes, P parts of a label, K distances, L labels of a graph in all blocks, V distinct labels,
D numeric features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import combine_codes
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, LabelledGraphs

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


class WeisfeilerLehman:
    """Encodes terminal states of an environment; isomorphic states have equal features."""

    def __init__(self, env: Environment, *, num_rounds: int) -> None:
        self.env, self.num_rounds = env, num_rounds

    def encode(self, states: GraphStates, numbers: Tensor, groups: Tensor) -> GraphFeatures:
        """Return the features of B states, with their numbers [B, D] in groups [D]."""
        size = max(1, _MAX_ENTRIES // max(1, states.exists.shape[1] ** 2))
        starts = range(0, max(len(states), 1), size)
        graphs = [self.env.labelled_graphs(states[first : first + size]) for first in starts]
        labels, counts, blocks = zip(*map(self._histograms, graphs), strict=True)
        return GraphFeatures(torch.cat(labels), torch.cat(counts), blocks[0], numbers, groups)

    def _histograms(self, graphs: LabelledGraphs) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels and counts [B, L] and blocks [L]: rounds, parts of labels (of several parts), named places."""
        columns = rounds(graphs, self.num_rounds)
        num_parts, num_places = graphs.labels.shape[2], graphs.places.shape[1]
        if num_parts > 1:
            numbered = combine_codes(graphs.labels, torch.arange(num_parts))
            columns.append(numbered.masked_fill(graphs.labels == UNSET, ABSENT).flatten(1))
        if num_places:
            numbered = combine_codes(graphs.places, torch.arange(num_places))
            columns.append(numbered.masked_fill(graphs.places == UNSET, ABSENT))
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
