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

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import combine_codes
from gflownet.mdp.labelled_graphs import NO_EDGE, LabelledGraphs
from gflownet.mdp.states import UNSET, GraphStates

ABSENT = 0  # in place of the label of a missing node or of an empty place
_OUT = 0x5BF03635  # distinguishes labels of out-neighbours from those of in-neighbours
_MAX_ENTRIES = 2**21  # of one array at a time, to bound memory


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

    def encode(self, states: GraphStates, numbers: Tensor | None = None, groups: Tensor | None = None) -> GraphFeatures:
        """Return the features of B states, with numeric features [B, D] and their groups [D].

        Without groups each one is a group, next to the numbers of nodes and edges.

        Raises:
            ValueError: numeric features of the wrong shape, or not finite.
        """
        if numbers is None:
            numbers = torch.empty(len(states), 0)
        if numbers.dim() != 2 or len(numbers) != len(states):
            raise ValueError(f"numeric features: expected [{len(states)}, D], got {list(numbers.shape)}")
        if not bool(numbers.isfinite().all()):
            row, column = (~numbers.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"numeric feature {column} of graph {row}: expected a finite number")
        size = max(1, _MAX_ENTRIES // max(1, states.exists.shape[1] ** 2))
        starts = range(0, max(len(states), 1), size)
        graphs = [self.env.labelled_graphs(states[first : first + size]) for first in starts]
        labels, counts, blocks = zip(*map(self._histograms, graphs), strict=True)
        if groups is None:
            numbers = torch.cat([torch.cat([sizes(each) for each in graphs]), numbers.double()], 1)
            groups = torch.arange(numbers.shape[1])
        return GraphFeatures(torch.cat(labels), torch.cat(counts), blocks[0], numbers.double(), groups)

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


def sizes(graphs: LabelledGraphs) -> Tensor:
    """Return the numbers of nodes and edges [B, 2] float64, which normalised histograms do not show."""
    num_edges = (graphs.edges != NO_EDGE).sum((1, 2))
    return torch.stack([graphs.exists.sum(1), num_edges], 1).double()


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


_MAX_DISTANCES = 2**23  # of one array at a time, to bound memory
_ROUNDING = 2e-6  # below it, a squared distance in float32 is zero
_ALL = slice(None)
_FREQUENT = 1 / 8  # share of the graphs from which a label has a column of a matrix; others have lists of graphs
_MAX_INDEXED = 2**21  # of one array at a time, to bound memory


class LabelIndex:
    """Histograms of n graphs by label."""

    def __init__(self, features: GraphFeatures) -> None:
        rows, columns = (features.labels != ABSENT).nonzero(as_tuple=True)
        self.num_graphs, self._blocks = len(features), features.blocks
        labels, order = features.labels[rows, columns].sort()
        self._labels, self._size = labels.unique_consecutive(return_counts=True)  # [V], graphs with each
        self._first = self._size.cumsum(0) - self._size
        self._rows, self._counts = rows[order], features.counts[rows, columns][order]
        block = features.blocks[columns][order][self._first]
        is_frequent = self._size > _FREQUENT * self.num_graphs
        frequent = is_frequent.nonzero().squeeze(1)
        frequent = frequent[block[frequent].argsort(stable=True)]
        self._column = torch.full_like(self._first, -1)  # of a frequent label
        self._column[frequent] = torch.arange(len(frequent))
        self._bounds = [0, *block[frequent].bincount(minlength=features.num_blocks).cumsum(0).tolist()]
        column = self._column.repeat_interleave(self._size)
        dense = column >= 0
        # Counts are small integers: exact in float32.
        self._matrix = torch.zeros(self.num_graphs, len(frequent))
        self._matrix[self._rows[dense], column[dense]] = self._counts[dense].float()

    def products(self, features: GraphFeatures) -> Tensor:
        """Return the scalar products of the histograms of B graphs with these n, [K, B, n] float32 integers."""
        rows, columns = (features.labels != ABSENT).nonzero(as_tuple=True)
        labels, counts = features.labels[rows, columns], features.counts[rows, columns]
        position = torch.searchsorted(self._labels, labels).clamp(max=len(self._labels) - 1)
        indexed = self._labels[position] == labels
        column = self._column[position].masked_fill(~indexed, -1)
        dense, sparse = column >= 0, indexed & (column < 0)
        matrix = torch.zeros(len(features), self._matrix.shape[1])
        matrix[rows[dense], column[dense]] = counts[dense].float()
        products = torch.stack([matrix[:, a:b] @ self._matrix[:, a:b].T for a, b in pairwise(self._bounds)])
        target = (features.blocks[columns] * len(features) + rows) * self.num_graphs
        self._add_rare(products.view(-1), position[sparse], target[sparse], counts[sparse])
        return products

    def _add_rare(self, products: Tensor, label: Tensor, target: Tensor, counts: Tensor) -> None:
        """Add the products of rare labels to `products` at `target` + the graphs that have each."""
        size = self._size[label]
        for part in _chunks(size):
            repeats = size[part]
            start = (self._first[label[part]] - repeats.cumsum(0) + repeats).repeat_interleave(repeats)
            entries = start + torch.arange(len(start))
            products.index_put_(
                (target[part].repeat_interleave(repeats) + self._rows[entries],),
                (counts[part].repeat_interleave(repeats) * self._counts[entries]).float(),
                accumulate=True,
            )


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
        """Return the inverse lengths of the histograms, 0 for empty ones, [K, n] float32."""
        norms = squared_norms(self.features).float()
        return norms.rsqrt().masked_fill(norms == 0, 0)

    @cached_property
    def index(self) -> LabelIndex:
        """Return the index of the labels."""
        return LabelIndex(self.features)

    def label_distances(self, others: Points) -> Tensor:
        """Return the squared distances of the normalised histograms of B other graphs to these n, [K, B, n] float32."""
        size = max(1, _MAX_DISTANCES // max(1, self.features.num_blocks * len(self)))
        parts = []
        for first in range(0, max(len(others), 1), size):
            inverse = others.inverse_lengths[:, first : first + size, None]
            cosines = self.index.products(others.features[first : first + size])
            cosines *= inverse * self.inverse_lengths[:, None, :]
            squares = (inverse > 0).float() + (self.inverse_lengths > 0).float()[:, None, :]
            squared = squares.sub_(cosines, alpha=2)
            parts.append(squared.masked_fill_(squared < _ROUNDING, 0))
        return torch.cat(parts, 1)

    def distances(self, others: Points) -> Tensor:
        """Return the squared distances of B other graphs to these n, [K, B, n] float64."""
        groups = self.features.groups
        numbers = [
            squared_distances(others.features.numbers[:, groups == group], self.features.numbers[:, groups == group])
            for group in groups.unique().tolist()
        ]
        return torch.cat([self.label_distances(others).double(), *(each[None] for each in numbers)])


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared distances of points [B, D] and [n, D], [B, n]; each depends on its two points only."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").square_()


def median_scales(squared: Tensor) -> Tensor:
    """Return the median of the positive distances [K, n, n] of each kind, 1 where there is none, [K] float64."""
    medians = [row[row > 0].median() if bool((row > 0).any()) else torch.ones(()) for row in squared]
    return torch.stack([median.double() for median in medians])


class DistanceCache:
    """Squared distances of B graphs to a growing number of observations; those of labels are computed once."""

    def __init__(self, features: GraphFeatures) -> None:
        self._graphs = Points(features)
        self._rows = torch.empty(0, dtype=torch.int64)
        self._observed = Points(features[:0])
        self._labels = torch.empty(features.num_blocks, 0, len(features))  # [K, capacity, B]

    def extend(self, observed: Points, rows: Tensor) -> None:
        """Set the observations; `rows` identifies them: equal first rows are not computed again."""
        num = len(self._rows)
        if not torch.equal(rows[:num], self._rows):
            num = 0
        new = observed if num == 0 else Points(observed.features[num:])
        if len(self._graphs) > len(new):
            labels = self._graphs.label_distances(new)
        else:
            labels = new.label_distances(self._graphs).transpose(1, 2)
        if len(rows) > self._labels.shape[1]:
            blocks, _, size = self._labels.shape
            grown = torch.empty(blocks, len(rows) + len(rows) // 2 * (num > 0), size)
            grown[:, :num] = self._labels[:, :num]
            self._labels = grown
        self._labels[:, num : len(rows)] = labels
        self._rows, self._observed = rows, observed

    def weighted(self, weights: Tensor, rows: slice, part: slice = _ALL) -> Tensor:
        """Return the sum over the distances with weights [K] from observations to graphs at `part`, [m, B] float64."""
        total = torch.zeros(self._labels[0, rows, part].shape, dtype=torch.float64)
        labels, of_groups = weights[: len(self._labels)], weights[len(self._labels) :]
        for weight, squared in zip(labels.tolist(), self._labels, strict=True):
            if weight > 0:
                total.add_(squared[rows, part], alpha=weight)
        if not len(of_groups):
            return total
        scale = of_groups[self._observed.features.groups].sqrt()
        observed, graphs = self._observed.features.numbers[rows], self._graphs.features.numbers[part]
        return total.add_(squared_distances(observed * scale, graphs * scale))
