"""Scalar products of histograms of labels, without comparing all pairs of labels.

Letters: n indexed graphs, B other graphs, K blocks, V distinct labels, F frequent labels.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from gflownet.search.features import ABSENT, GraphFeatures

_FREQUENT = 1 / 8  # share of the graphs from which a label has a column of a matrix; others have lists of graphs
_MAX_ENTRIES = 2**21  # of one array at a time, to bound memory


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
    """Return slices of entries with about _MAX_ENTRIES in all, at least one."""
    chunk = size.cumsum(0) // _MAX_ENTRIES
    bounds = [0, *((chunk[1:] != chunk[:-1]).nonzero().squeeze(1) + 1).tolist(), len(size)]
    return [slice(first, last) for first, last in pairwise(bounds) if last > first]
