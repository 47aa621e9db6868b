"""Modes, best scores and diversity of sampled objects.

Letters: n nodes of the larger of two graphs, P permutations of n.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, combinations, permutations
from typing import TypeVar

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from gflownet.graphs.canonical import ColouredGraph

T = TypeVar("T")
MAX_EXACT_NODES = 8  # up to this size all n! mappings of two graphs are tried: 40,320 in 30 ms
_ABSENT = 0  # in place of the colour of a missing node or edge


def find_modes(
    objects: Sequence[T],
    scores: Sequence[float],
    *,
    threshold: float,
    key: Callable[[T], Hashable],
    distance: Callable[[T, T], float] | None = None,
    min_distance: float = 0.0,
) -> list[int]:
    """Return the positions of the modes, best first.

    A mode is a distinct object with a score of at least `threshold` and, if a distance is given, at least
    `min_distance` from every better mode (as Bengio et al. 2021 count modes of molecules, by similarity).

    Args:
        objects: in any order.
        scores: their scores.
        threshold: minimum score of a mode.
        key: equal for equal objects.
        distance: between two objects.
        min_distance: between two modes.
    """
    modes: list[int] = []
    for index in _best_distinct([key(each) for each in objects], scores):
        if scores[index] < threshold:
            break
        if distance is None or all(distance(objects[index], objects[mode]) >= min_distance for mode in modes):
            modes.append(index)
    return modes


def modes_by_evaluations(keys: Sequence[Hashable], scores: Sequence[float], *, threshold: float) -> list[int]:
    """Return the number of distinct objects with a score of at least `threshold` among the first n, for each n."""
    earlier: set[Hashable] = set()
    is_new = []
    for key, score in zip(keys, scores, strict=True):
        is_new.append(score >= threshold and key not in earlier)
        earlier.add(key)
    return list(accumulate(is_new, initial=0))[1:]


def top_k_mean(keys: Sequence[Hashable], scores: Sequence[float], *, k: int) -> float:
    """Return the mean score of the k best distinct objects, each with its best score; of all if there are fewer.

    Raises:
        ValueError: there is no object, or k is not positive.
    """
    best = [scores[index] for index in _best_distinct(keys, scores)[: max(k, 0)]]
    if not best:
        raise ValueError(f"top_k_mean: expected k >= 1 and an object, got k={k} and {len(keys)} objects")
    return sum(best) / len(best)


def top_k_diversity(
    objects: Sequence[T],
    scores: Sequence[float],
    *,
    k: int,
    key: Callable[[T], Hashable],
    distance: Callable[[T, T], float],
) -> float:
    """Return the mean pairwise distance of the k best distinct objects, of all if there are fewer.

    Raises:
        ValueError: there are fewer than two distinct objects.
    """
    best = _best_distinct([key(each) for each in objects], scores)[:k]
    return mean_pairwise_distance([objects[index] for index in best], distance)


def mean_pairwise_distance(
    objects: Sequence[T],
    distance: Callable[[T, T], float],
    *,
    most_pairs: int | None = None,
    generator: torch.Generator | None = None,
) -> float:
    """Return the mean distance between two different positions of a sample.

    Args:
        objects: two or more.
        distance: between two of them.
        most_pairs: if there are more pairs, the mean is over this many random ones.
        generator: of the random pairs.

    Raises:
        ValueError: there are fewer than two objects.
    """
    if len(objects) < 2:
        raise ValueError(f"mean_pairwise_distance: expected two or more objects, got {len(objects)}")
    pairs = list(combinations(range(len(objects)), 2))
    if most_pairs is not None and len(pairs) > most_pairs:
        pairs = [pairs[i] for i in torch.randperm(len(pairs), generator=generator)[:most_pairs].tolist()]
    return sum(distance(objects[i], objects[j]) for i, j in pairs) / len(pairs)


def hamming_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the number of positions at which two sequences differ (Hamming 1950).

    Raises:
        ValueError: they differ in length.
    """
    if len(a) != len(b):
        raise ValueError(f"hamming_distance: expected sequences of one length, got {len(a)} and {len(b)}")
    return sum(x != y for x, y in zip(a, b, strict=True))


def graph_edit_distance(a: ColouredGraph, b: ColouredGraph) -> int:
    """Return the number of nodes and edges to add, remove or recolour to turn one graph into the other.

    Every edit costs 1 (Sanfeliu and Fu 1983), so it suffices to map the graphs, padded to one size, onto each other.
    Exact up to `MAX_EXACT_NODES` nodes; above that an upper bound: the edits of a mapping that no swap improves.

    Raises:
        ValueError: one graph is directed, the other is not.
    """
    if a.directed != b.directed:
        raise ValueError("graph_edit_distance: expected two directed or two undirected graphs, got one of each")
    num_nodes = max(len(a.node_colours), len(b.node_colours))
    ids: dict[Hashable, int] = {}
    edits = _Edits(_arrays(a, num_nodes, ids), _arrays(b, num_nodes, ids), directed=a.directed)
    if num_nodes <= MAX_EXACT_NODES:
        return int(edits.count(_permutations(num_nodes)).min())
    return edits.count_by_swaps()


def _best_distinct(keys: Sequence[Hashable], scores: Sequence[float]) -> list[int]:
    """Return the position of each distinct key with its best score, best first."""
    best: dict[Hashable, int] = {}
    for index in sorted(range(len(keys)), key=lambda i: -scores[i]):
        best.setdefault(keys[index], index)
    return list(best.values())


@dataclass(frozen=True)
class _Edits:
    """Two graphs padded to n nodes each."""

    first: tuple[np.ndarray, np.ndarray]  # colours of nodes [n] and of edges [n, n]
    second: tuple[np.ndarray, np.ndarray]
    directed: bool

    def count(self, order: np.ndarray) -> np.ndarray:
        """Return the edits of P mappings, [P]: node i of the first graph is node order[:, i] of the second."""
        (nodes_a, edges_a), (nodes_b, edges_b) = self.first, self.second
        off = edges_a != edges_b[order[:, :, None], order[:, None, :]]  # [P, n, n]
        edges = off.sum((1, 2))
        if not self.directed:  # every edge but loops is stored twice
            edges = (edges + off.diagonal(axis1=1, axis2=2).sum(1)) // 2
        return (nodes_a != nodes_b[order]).sum(1) + edges

    def count_by_swaps(self) -> int:
        """Return the edits of a mapping that no swap improves, starting from `_initial_mapping`."""
        order = self._initial_mapping()
        swapped = np.arange(len(order)) + np.zeros((len(order) * (len(order) - 1) // 2, 1), dtype=np.int64)
        for row, (i, j) in zip(swapped, combinations(range(len(order)), 2), strict=True):
            row[[i, j]] = j, i
        best = int(self.count(order[None])[0])
        while True:
            edits = self.count(order[swapped])
            if edits.min() >= best:
                return best
            best, order = int(edits.min()), order[swapped[edits.argmin()]]

    def _initial_mapping(self) -> np.ndarray:
        """Return the mapping of nodes with the least cost of nodes and their incident edges (Riesen 2009)."""
        num_colours = int(max(self.first[1].max(), self.second[1].max())) + 1
        cost = (self.first[0][:, None] != self.second[0][None, :]).astype(np.float64)
        for axis in (0, 1):
            # [n, colours] edges of each colour at one end of each node
            counts = [(e[..., None] == np.arange(1, num_colours)).sum(axis) for _, e in (self.first, self.second)]
            cost += np.abs(counts[0][:, None, :] - counts[1][None, :, :]).sum(-1) / 4
        return linear_sum_assignment(cost)[1]


def _arrays(graph: ColouredGraph, num_nodes: int, ids: dict[Hashable, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return colours of nodes [n] and of edges [n, n] as integers, undirected edges in both halves."""
    nodes = np.full(num_nodes, _ABSENT, dtype=np.int16)
    edges = np.full((num_nodes, num_nodes), _ABSENT, dtype=np.int16)
    for node, colour in enumerate(graph.node_colours):
        nodes[node] = ids.setdefault(colour, len(ids) + 1)
    for (source, target), colour in graph.edge_colours.items():
        edges[source, target] = ids.setdefault(colour, len(ids) + 1)
        if not graph.directed:
            edges[target, source] = edges[source, target]
    return nodes, edges


@lru_cache(maxsize=MAX_EXACT_NODES + 1)
def _permutations(num: int) -> np.ndarray:
    return np.array(list(permutations(range(num))), dtype=np.int64)
