"""Label counts of graphs, and an order in which similar graphs are near each other.

G: graphs, F: features.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def label_texts(graph: Mapping[str, Any]) -> tuple[dict[Any, str], dict[tuple[Any, Any], str]]:
    """Return the labels of the nodes and edges of a graph in node-link form: their fields as text."""
    nodes = {node["id"]: _text(node, {"id"}) for node in graph["nodes"]}
    edges: dict[tuple[Any, Any], str] = {}
    for edge in graph["edges"]:
        ends = edge["source"], edge["target"]
        edges[ends] = "+".join(filter(None, (edges.get(ends), _text(edge, {"source", "target", "key"}))))
        if not graph.get("directed", True):
            edges[ends[::-1]] = edges[ends]
    return nodes, edges


def label_counts(graph: Mapping[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each label of a node, and each label of an edge with its ends, occurs in a node-link graph."""
    nodes, edges = label_texts(graph)
    ends = Counter(f"{nodes[source]}>{label}>{nodes[target]}" for (source, target), label in edges.items())
    return Counter(nodes.values()), ends


def similarity_order(counts: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]) -> list[int]:
    """Return the order of G graphs by their label counts, ties in the given order.

    The list is split by the count with the largest variance, near its median and between different values, and so is
    each part: by labels of nodes, then among graphs with equal nodes by those of edges. Computed in integers: the same
    on every machine.
    """
    levels = [_matrix([each[level] for each in counts]) for level in (0, 1)]
    order, parts = list[int](), [np.arange(len(counts))]
    while parts:
        rows = parts.pop()
        split = _split(rows, levels)
        if split is None:
            order += rows.tolist()
        else:
            parts += reversed(split)
    return order


def _matrix(counts: Sequence[Mapping[str, int]]) -> np.ndarray:
    """Return counts by label, [G, F] int64."""
    names = sorted({name for each in counts for name in each})
    column = {name: place for place, name in enumerate(names)}
    matrix = np.zeros((len(counts), len(names)), dtype=np.int64)
    for row, each in enumerate(counts):
        for name, count in each.items():
            matrix[row, column[name]] = count
    return matrix


def _split(rows: np.ndarray, levels: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return two parts of some rows by the first matrix in which they differ, None if they differ in none."""
    for matrix in levels:
        values = matrix[rows]
        spread = len(rows) * (values**2).sum(0) - values.sum(0) ** 2  # the variance times the squared number of rows
        if spread.any():
            column = values[:, spread.argmax()]
            place = np.argsort(column, kind="stable")
            ends = np.flatnonzero(np.diff(column[place])) + 1
            end = ends[np.abs(2 * ends - len(rows)).argmin()]
            return rows[place[:end]], rows[place[end:]]
    return None


def _text(fields: Mapping[str, Any], without: set[str]) -> str:
    return json.dumps({name: value for name, value in fields.items() if name not in without}, sort_keys=True)
