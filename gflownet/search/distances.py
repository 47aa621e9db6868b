"""Squared distances between features of graphs: one of each block of labels, one of each numeric feature.

Histograms are scaled to length 1, so that graphs of different sizes are compared by their composition.

Letters: K distances, B and n graphs, m reference graphs.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gflownet.search.features import GraphFeatures
from gflownet.search.label_index import LabelIndex, squared_norms

_MAX_ENTRIES = 2**23  # of one array at a time, to bound memory
_ROUNDING = 2e-6  # below it, a squared distance in float32 is zero
_ALL = slice(None)


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
        size = max(1, _MAX_ENTRIES // max(1, self.features.num_blocks * len(self)))
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
