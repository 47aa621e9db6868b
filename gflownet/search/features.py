"""Weisfeiler-Lehman features of graphs, as hashes of their labels (Shervashidze et al. 2011; Ru et al. 2021).

Round 0 has one label per node; each further round combines the label of a node with the multisets of labels of its
in-neighbours and of its out-neighbours. A graph is described by the histogram of the labels of each round, the
histogram of single parts of labels (such as "kernel size 3"), and its named places. Hashes of 64 bits may collide: two
out of a million labels do with a probability of 3e-8.

Letters: B graphs, N nodes, P parts of a label, K blocks of features, L labels of a graph in all blocks, D numeric
features.
"""

from __future__ import annotations

from dataclasses import dataclass

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
