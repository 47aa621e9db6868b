"""A list of graphs as a search space: a few choices lead to exactly the listed graphs.

The graphs are ordered by similarity and get evenly spread codes of digits, so that graphs with a common prefix are
similar. The choices write a code from left to right; each graph has one trajectory.

Letters: B states, M graphs, N nodes of the largest graph, G graphs, F features.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflownet.envs.choice_limits import ListedSettings
from gflownet.envs.choice_places import Place, Places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.config import EnvConfig
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.listed_graphs import Graph, read_listed_graphs
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import GraphDescription
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, LabelledGraphs

KEY = "env.catalogue.graphs"


class CatalogueEnv(ChoicesEnv):
    """Listed graphs, isomorphic ones once, as codes of digits; a digit may be chosen once the one before it is."""

    def __init__(self, graphs: Sequence[Graph], *, branching: int = 8) -> None:
        """Order the graphs, of one class, and give them codes of digits below `branching`."""
        unique = {graph.canonical_key(): graph for graph in graphs}
        ordered = [unique[key] for key in sorted(unique)]
        order = similarity_order([label_counts(graph.to_dict()) for graph in ordered])
        self.graphs = [ordered[index] for index in order]  # in the order of their codes
        num, self.num_digits = len(self.graphs), 1
        while branching**self.num_digits < num:
            self.num_digits += 1
        digits, names = tuple(range(branching)), [f"choice{place}" for place in range(self.num_digits)]
        before = [(), *(((name, digits),) for name in names)]
        places = Places(tuple(Place(name, digits, only_if) for name, only_if in zip(names, before, strict=False)))
        codes = [index * branching**self.num_digits // num for index in range(num)]
        weights = [branching**place for place in reversed(range(self.num_digits))]
        settings = ({n: code // weight % branching for n, weight in zip(names, weights, strict=True)} for code in codes)
        self._listed = ListedSettings(places, tuple(settings))
        super().__init__(places, self._listed, attribute="branch")
        self.terminal_type = type(self.graphs[0])
        self._position = {graph.canonical_key(): position for position, graph in enumerate(self.graphs)}

    def terminal(self, states: GraphStates, index: int) -> Any:
        return self.graphs[int(self.positions(states[index : index + 1])[0])]

    def positions(self, states: GraphStates) -> Tensor:
        """Return the position of the graph of each complete code, [B] int64, -1 for an incomplete one."""
        agrees = self._listed.agrees(states.node_attr[:, :, 0]).view(torch.uint8).argmax(1)
        return torch.where(self.filled(states).all(1), agrees, -1)

    def describe(self, candidate: Any) -> GraphDescription:
        position = self._position.get(candidate.canonical_key())
        if position is None:
            raise ValueError(f"expected one of {len(self.graphs)} listed graphs, got another one")
        return super().describe(Assignment.of(self._listed.settings[position]))

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        """Return the listed graphs of complete codes, and graphs without nodes for the others."""
        positions = self.positions(states)
        labels, edges = self._arrays
        is_incomplete = (positions < 0)[:, None, None]
        return LabelledGraphs(
            labels[positions].long().masked_fill(is_incomplete, UNSET),
            edges[positions].long().masked_fill(is_incomplete, NO_EDGE),
            torch.empty(len(states), 0, dtype=torch.int64),
        )

    @cached_property
    def _arrays(self) -> tuple[Tensor, Tensor]:
        """Return the labels [M, N, 1] and the edges [M, N, N] of the listed graphs as numbers, int16."""
        texts = [label_texts(graph.to_dict()) for graph in self.graphs]
        node_texts = sorted({text for nodes, _ in texts for text in nodes.values()})
        edge_texts = sorted({text for _, edges in texts for text in edges.values()})
        label = {text: number for number, text in enumerate(node_texts)}
        code = {text: number for number, text in enumerate(edge_texts, start=NO_EDGE + 1)}
        num_nodes = max(len(nodes) for nodes, _ in texts)
        labels = torch.full((len(texts), num_nodes, 1), UNSET, dtype=torch.int16)
        edges = torch.full((len(texts), num_nodes, num_nodes), NO_EDGE, dtype=torch.int16)
        for index, (of_nodes, of_edges) in enumerate(texts):
            place = {node: position for position, node in enumerate(of_nodes)}
            for node, text in of_nodes.items():
                labels[index, place[node], 0] = label[text]
            for (source, target), text in of_edges.items():
                edges[index, place[source], place[target]] = code[text]
        return labels, edges


class CatalogueContext(GraphBuildingEnvContext):
    """Context of a list of graphs, from the options under `env.catalogue`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> CatalogueEnv:
        catalogue = config.catalogue
        listed = read_listed_graphs(catalogue.graphs, key=KEY)
        return CatalogueEnv([each.graph for each in listed])


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
