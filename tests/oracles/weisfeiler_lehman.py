"""Weisfeiler-Lehman histograms with strings as labels, and cells of NAS-Bench-201 as graphs of operations by hand."""

import math
from collections import Counter

from gflownet.mdp.states import LabelledGraphs

Graph = tuple[dict[int, str], dict[tuple[int, int], str]]  # labels of nodes, labels of edges


def graph_of(graphs: LabelledGraphs, index: int) -> Graph:
    labels = {n: str(parts) for n, parts in enumerate(graphs.labels[index].tolist()) if parts[0] != -1}
    edges = {(s, t): str(int(graphs.edges[index, s, t])) for s, t in graphs.edges[index].nonzero().tolist()}
    return labels, edges


def histograms(graph: Graph, num_rounds: int) -> list[Counter[str]]:
    """Return the histogram of labels of every round."""
    labels, edges = graph
    result = [Counter(labels.values())]
    for _ in range(num_rounds):
        labels = {
            node: "({} from [{}] to [{}])".format(
                label,
                " ".join(sorted(f"{labels[s]}/{colour}" for (s, t), colour in edges.items() if t == node)),
                " ".join(sorted(f"{labels[t]}/{colour}" for (s, t), colour in edges.items() if s == node)),
            )
            for node, label in labels.items()
        }
        result.append(Counter(labels.values()))
    return result


def all_histograms(graphs: LabelledGraphs, index: int, num_rounds: int) -> list[Counter[str]]:
    """Return the histograms of rounds, of parts of labels (if there are several) and of places (if there are any)."""
    result = histograms(graph_of(graphs, index), num_rounds)
    parts = [f"{p}={value}" for row in graphs.labels[index].tolist() for p, value in enumerate(row) if value != -1]
    if graphs.labels.shape[2] > 1:
        result.append(Counter(parts))
    if graphs.places.shape[1]:
        places = enumerate(graphs.places[index].tolist())
        result.append(Counter(f"{place}={value}" for place, value in places if value != -1))
    return result


def squared_distance(left: Counter[str], right: Counter[str]) -> float:
    """Return the squared distance of two histograms, each divided by its length."""
    lengths = [math.sqrt(sum(count**2 for count in counter.values())) or 1.0 for counter in (left, right)]
    return sum((left[label] / lengths[0] - right[label] / lengths[1]) ** 2 for label in left | right)


def cell_graph(operations: dict[str, str], zeros: tuple[str, ...], *, last: int) -> tuple[Counter[str], set]:
    """Return operations on paths from node 0 to node `last` of a cell, and which follow one another, by paths.

    Returns:
        The operations, and pairs (place, place); "input" and "output" stand for the ends.
    """
    places = {place: tuple(map(int, place.split("<-"))) for place, op in operations.items() if op not in zeros}

    def paths(node: int) -> list[list[str]]:
        if node == last:
            return [[]]
        return [
            [place, *path] for place, (target, source) in places.items() if source == node for path in paths(target)
        ]

    followers = {pair for path in paths(0) for pair in zip(["input", *path], [*path, "output"], strict=True)}
    used = {place for pair in followers for place in pair} - {"input", "output"}
    return Counter(operations[place] for place in used), followers
