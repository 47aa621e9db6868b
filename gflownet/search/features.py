"""Weisfeiler-Lehman features of graphs (Shervashidze et al. 2011; Ru et al. 2021), as hashes of labels; distances.

Round 0 has one label per node; each further round combines the label of a node with the multisets of labels of its
in-neighbours and of its out-neighbours. A graph is described by the histogram of the labels of each round, the
histogram of single parts of labels (such as "kernel size 3"), and its named places. Hashes of 64 bits may collide: two
out of a million labels do with a probability of 3e-8.

There is one squared distance of each block of labels, and one of each numeric feature. Histograms are scaled to length
1, so that graphs of different sizes are compared by their composition.

Letters: B and n graphs, m reference graphs, N nodes, P parts of a label, K blocks of features (distances), L labels of
a graph in all blocks, V distinct labels, F frequent labels, D numeric features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import combine_codes
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, LabelledGraphs

ABSENT = 0  # in place of the label of a missing node or of an empty place
_OUT = 0x5BF03635  # distinguishes labels of out-neighbours from those of in-neighbours
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

    @property
    def num_blocks(self) -> int:
        """Return K."""
        return int(self.blocks.max()) + 1

    def starts_with(self, other: GraphFeatures) -> bool:
        """Return whether the first graphs have the features of `other`."""
        num = len(other)
        return (
            len(self) >= num
            and torch.equal(self.labels[:num], other.labels)
            and torch.equal(self.counts[:num], other.counts)
            and torch.equal(self.numbers[:num], other.numbers)
        )


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


_MEDIAN_ROWS = 128  # of the distances of n graphs at a time
_ROUNDING = 1e-12  # below it, a squared distance of normalised histograms is zero
_FREQUENT = 1 / 20  # share of the graphs from which a label has a column of a matrix; others have lists of graphs
_MAX_INDEXED = 2**17  # of one array at a time, to bound memory


class LabelIndex:
    """Histograms of n graphs by label, times a factor for each block and graph."""

    def __init__(self, features: GraphFeatures, scales: Tensor) -> None:
        """Index the labels of blocks whose factors [K, n], in the precision of the products, are not zero."""
        self.num_graphs = len(features)
        rows, labels, counts = _scaled_labels(features, scales)
        labels, order = labels.sort()
        self._labels, self._size = labels.unique_consecutive(return_counts=True)  # [V], graphs with each
        frequent = (self._size > _FREQUENT * self.num_graphs).nonzero().squeeze(1)
        self._column = torch.full_like(self._size, -1)  # of a frequent label
        self._column[frequent] = torch.arange(len(frequent))
        column = self._column.repeat_interleave(self._size)
        dense, rows, counts = column >= 0, rows[order], counts[order]
        self._matrix = torch.zeros(self.num_graphs, len(frequent), dtype=scales.dtype)
        self._matrix[rows[dense], column[dense]] = counts[dense]
        self._rows, self._counts = rows[~dense], counts[~dense]  # lists of the others
        num_listed = self._size.masked_fill(self._column >= 0, 0)
        self._first = num_listed.cumsum(0) - num_listed

    def products(self, features: GraphFeatures, scales: Tensor) -> Tensor:
        """Return the scalar products of the histograms of B graphs, times factors [K, B], with these n, [B, n]."""
        rows, labels, counts = _scaled_labels(features, scales)
        if not len(self._labels):
            return torch.zeros(len(features), self.num_graphs, dtype=scales.dtype)
        position = torch.searchsorted(self._labels, labels).clamp(max=len(self._labels) - 1)
        indexed = self._labels[position] == labels
        column = self._column[position].masked_fill(~indexed, -1)
        dense, sparse = column >= 0, indexed & (column < 0)
        matrix = torch.zeros(len(features), self._matrix.shape[1], dtype=scales.dtype)
        matrix[rows[dense], column[dense]] = counts[dense]
        products = matrix @ self._matrix.T
        self._add_rare(products, position[sparse], rows[sparse], counts[sparse])
        return products

    def _add_rare(self, products: Tensor, label: Tensor, target: Tensor, counts: Tensor) -> None:
        """Add the products of rare labels to those of the graphs `target`."""
        size = self._size[label]
        for part in _chunks(size):
            repeats = size[part]
            start = (self._first[label[part]] - repeats.cumsum(0) + repeats).repeat_interleave(repeats)
            entries = start + torch.arange(len(start))
            products.view(-1).index_put_(
                (target[part].repeat_interleave(repeats).mul_(self.num_graphs).add_(self._rows[entries]),),
                counts[part].repeat_interleave(repeats) * self._counts[entries],
                accumulate=True,
            )


def _scaled_labels(features: GraphFeatures, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return graph, label and count times factor of each label in blocks whose factors [K, B] are not all zero."""
    columns = (scales != 0).any(1)[features.blocks].nonzero().squeeze(1)
    labels, blocks = features.labels[:, columns], features.blocks[columns]
    rows, places = (labels != ABSENT).nonzero(as_tuple=True)
    counts = features.counts[:, columns][rows, places] * scales[blocks[places], rows]
    return rows, labels[rows, places], counts


def squared_norms(features: GraphFeatures) -> Tensor:
    """Return the squared lengths of the histograms, [K, B] int64."""
    norms = torch.zeros(len(features), features.num_blocks, dtype=torch.int64)
    return norms.index_add_(1, features.blocks, features.counts.square()).T


def _chunks(size: Tensor) -> list[slice]:
    """Return slices of entries with about _MAX_INDEXED in all, at least one."""
    chunk = size.cumsum(0) // _MAX_INDEXED
    bounds = [0, *((chunk[1:] != chunk[:-1]).nonzero().squeeze(1) + 1).tolist(), len(size)]
    return [slice(first, last) for first, last in pairwise(bounds) if last > first]


class Points:
    """Features with lengths and index, computed once."""

    def __init__(self, features: GraphFeatures) -> None:
        self.features = features

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self.features)

    @cached_property
    def inverse_lengths(self) -> Tensor:
        """Return the inverse lengths of the histograms, 0 for empty ones, [K, n] float64."""
        norms = squared_norms(self.features).double()
        return norms.rsqrt().masked_fill(norms == 0, 0)

    @cached_property
    def index(self) -> LabelIndex:
        """Return the index of the labels."""
        return LabelIndex(self.features, torch.ones_like(self.inverse_lengths))

    @property
    def num_kinds(self) -> int:
        """Return K."""
        return self.features.num_blocks + len(self.features.groups.unique())

    def kind(self, other: Points, number: int) -> Tensor:
        """Return one of the K squared distances of B other graphs to these n, [B, n] float64: labels, then numbers."""
        if number >= self.features.num_blocks:
            columns = self.features.groups == self.features.groups.unique()[number - self.features.num_blocks]
            return squared_distances(other.features.numbers[:, columns], self.features.numbers[:, columns])
        first, second = other.inverse_lengths[number], self.inverse_lengths[number]
        scales = torch.zeros_like(other.inverse_lengths)
        scales[number] = 1.0  # products of integers are exact: a distance depends on its two graphs only
        cosines = self.index.products(other.features, scales).mul_(first[:, None]).mul_(second)
        squared = cosines.mul_(-2).add_((first > 0).double()[:, None]).add_((second > 0).double())
        return squared.masked_fill_(squared < _ROUNDING, 0)

    def kinds(self, other: Points) -> Iterator[Tensor]:
        """Yield each of the K squared distances of B other graphs to these n, [B, n] float64."""
        return (self.kind(other, number) for number in range(self.num_kinds))

    def median_scales(self) -> Tensor:
        """Return the median of the positive distances of each kind, 1 where there is none, [K] float64."""
        parts = [
            (int(part[0]) + 1, Points(self.features[part])) for part in torch.arange(len(self)).split(_MEDIAN_ROWS)
        ]
        medians = []
        for number in range(self.num_kinds):
            above = (self.kind(other, number).triu(first) for first, other in parts)  # a pair counts once
            positive = torch.cat([squared[squared > 0] for squared in above])
            medians.append(positive.median() if len(positive) else torch.ones((), dtype=torch.float64))
        return torch.stack(medians)

    def distances(self, other: Points) -> Tensor:
        """Return the squared distances of B other graphs to these n, [K, B, n] float64."""
        return torch.stack(list(self.kinds(other)))


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared distances of points [B, D] and [n, D], [B, n]; each depends on its two points only."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").square_()


class WeightedDistances:
    """Sums of the squared distances to n graphs, each times its weight, as products of matrices.

    |x - y|^2 = |x|^2 + |y|^2 - 2 x y for scaled histograms and numbers: one array in place of one per distance.
    """

    def __init__(self, features: GraphFeatures, weights: Tensor, dtype: torch.dtype = torch.float64) -> None:
        """Scale the features of n graphs by the roots of weights [K]; those without a weight are left out."""
        self._dtype = dtype  # of the products
        roots, num = weights.sqrt(), features.num_blocks
        self._label_roots, of_numbers = roots[:num, None], roots[num:][features.groups]
        self._used = of_numbers.nonzero().squeeze(1)
        self._scale, self._centre = of_numbers[self._used], features.numbers[:, self._used].mean(0)
        scales, self._numbers, self._squares = self._scaled(features)
        self._index = LabelIndex(features, scales)

    def __call__(self, features: GraphFeatures) -> Tensor:
        """Return the weighted squared distances of B others to the n graphs, [B, n]."""
        scales, numbers, squares = self._scaled(features)
        products = self._index.products(features, scales).addmm_(numbers, self._numbers.T)
        return products.mul_(-2).add_(self._squares).add_(squares[:, None]).clamp_(min=0)

    def _scaled(self, features: GraphFeatures) -> tuple[Tensor, Tensor, Tensor]:
        """Return factors of histograms [K, B], numbers [B, D] and squared lengths of both together [B]."""
        lengths = Points(features).inverse_lengths
        numbers = (features.numbers[:, self._used] - self._centre) * self._scale
        squares = ((lengths > 0) * self._label_roots.square()).sum(0) + numbers.square().sum(1)
        scales = lengths * self._label_roots
        return scales.to(self._dtype), numbers.to(self._dtype), squares.to(self._dtype)
