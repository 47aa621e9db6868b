"""Automorphism counts and isomorphism tests by backtracking on single states, independent of `Environment.identify`.

The certificate compares an environment's own counts with these. The search extends a partial map of the nodes one node
at a time; labels of nodes and of their neighbourhoods exclude most candidates. Letters: n nodes of one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gflownet.mdp.states import ABSENT, GraphStates

MAX_STEPS = 20_000  # pairs of nodes compared for one graph: a few hundredths of a second


class _TooManySteps(Exception):  # noqa: N818 (not an error: the search gives up)
    """The search exceeds its limit."""


@dataclass(frozen=True)
class LabelledGraph:
    """A directed graph with labelled nodes 0 .. n-1 and labelled edges; an undirected edge is stored both ways."""

    nodes: tuple[tuple[int, ...], ...]  # label of each node
    edges: tuple[tuple[tuple[int, ...], ...], ...]  # [n][n] label of each pair, () without an edge

    @cached_property
    def neighbourhoods(self) -> list[tuple]:
        """Return the label of each node with the labels of its edges and neighbours in sorted order."""
        columns = list(zip(*self.edges, strict=True))
        return [
            (label, sorted(zip(self.edges[node], columns[node], self.nodes, strict=True)), self.edges[node][node])
            for node, label in enumerate(self.nodes)
        ]


def labelled_graphs(states: GraphStates) -> list[LabelledGraph]:
    """Return the graph of each state: types, attributes and ranks of edges as labels."""
    types, attributes = states.node_type.tolist(), states.node_attr.tolist()
    edge_types, edge_attributes, orders = (x.tolist() for x in (states.edge_type, states.edge_attr, states.edge_order))
    graphs = []
    for index, n in enumerate(states.num_nodes.tolist()):
        nodes = tuple((types[index][node], *attributes[index][node]) for node in range(n))
        rows = zip(edge_types[index][:n], edge_attributes[index][:n], orders[index][:n], strict=True)
        edges = tuple(
            tuple(
                () if kind == ABSENT else (kind, *values, order)
                for kind, values, order in zip(kinds[:n], attributes_of[:n], ranks[:n], strict=True)
            )
            for kinds, attributes_of, ranks in rows
        )
        graphs.append(LabelledGraph(nodes, edges))
    return graphs


def count_automorphisms(graph: LabelledGraph, *, max_steps: int = MAX_STEPS) -> int | None:
    """Return the number of automorphisms, None if the search takes more than `max_steps`.

    The product over the nodes i of the number of images of i under automorphisms that fix all nodes before i
    (orbit-stabiliser theorem).
    """
    search, n = _Search(graph, graph, max_steps), len(graph.nodes)
    count = 1
    try:
        for node in range(n):
            prefix = list(range(node))
            count *= sum(search.extends([*prefix, image]) for image in range(node, n))
    except _TooManySteps:
        return None
    return count


def are_isomorphic(graph: LabelledGraph, other: LabelledGraph, *, max_steps: int = MAX_STEPS) -> bool | None:
    """Return whether two graphs are isomorphic, None if the search takes more than `max_steps`."""
    if len(graph.nodes) != len(other.nodes):
        return False
    try:
        return _Search(graph, other, max_steps).extends([])
    except _TooManySteps:
        return None


class _Search:
    """Looks for isomorphisms between two graphs with the same number of nodes."""

    def __init__(self, graph: LabelledGraph, other: LabelledGraph, max_steps: int) -> None:
        self._steps_left = max_steps
        rows, images = graph.edges, other.edges
        candidates = _candidates(graph.neighbourhoods, other.neighbourhoods)

        def fits(node: int, image: int, mapped: Sequence[int]) -> bool:
            """Return whether node -> image keeps the label and the edges to all nodes mapped before it."""
            self._count_step()
            return image in candidates[node] and all(
                rows[node][k] == images[image][mapped[k]] and rows[k][node] == images[mapped[k]][image]
                for k in range(len(mapped))
            )

        self._fits: Callable[[int, int, Sequence[int]], bool] = fits
        self._candidates = candidates

    def extends(self, mapped: list[int]) -> bool:
        """Return whether some isomorphism maps nodes 0, 1, ... to `mapped`; all but its last image fit already."""
        if mapped and not self._fits(len(mapped) - 1, mapped[-1], mapped[:-1]):
            return False
        if len(mapped) == len(self._candidates):
            return True
        return any(self.extends([*mapped, image]) for image in self._candidates[len(mapped)] if image not in mapped)

    def _count_step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _TooManySteps


def _candidates(labels: Sequence[tuple], other_labels: Sequence[tuple]) -> list[list[int]]:
    """Return the nodes of the other graph with the same neighbourhood as each node."""
    return [[image for image, other in enumerate(other_labels) if other == label] for label in labels]
