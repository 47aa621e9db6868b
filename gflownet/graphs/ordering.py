"""Execution order of a computation graph and the edges that stand in its way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from gflownet.graphs.elements import Edge, NodeType

if TYPE_CHECKING:
    from gflownet.graphs.computation_graph import ComputationGraph


def topological_order(graph: ComputationGraph, *, ignore_recurrent: bool) -> list[int]:
    """Every node id after those it reads from over enabled edges; ties by node id.

    Raises: ValueError naming the edges that close a cycle (marked ones count only without `ignore_recurrent`).
    """
    edges = followed_edges(graph, ignore_recurrent=ignore_recurrent)
    order = sorted_prefix(graph.nodes, edges)
    if len(order) < len(graph.nodes):
        closing = _closing_edges(graph, edges)
        named = ", ".join(f"edge {i} ({graph.edges[i].source} -> {graph.edges[i].target})" for i in closing)
        raise ValueError(f"expected no cycle of unmarked edges, got one closed by {named}")
    return order


def cycle_closing_edges(graph: ComputationGraph) -> tuple[int, ...]:
    """Ids, ascending, of the enabled unmarked edges without which no cycle is left.

    They are the back edges of a depth-first search from the inputs, which goes to hidden nodes before outputs and
    otherwise by canonical order: neither edge ids, nor insertion order, nor the ids of hidden nodes decide.
    """
    edges = followed_edges(graph, ignore_recurrent=True)
    order = sorted_prefix(graph.nodes, edges)
    return () if len(order) == len(graph.nodes) else _closing_edges(graph, edges)


def followed_edges(graph: ComputationGraph, *, ignore_recurrent: bool) -> list[Edge]:
    """The enabled edges between nodes of the graph, with or without those marked recurrent."""
    return [
        edge
        for edge in graph.edges.values()
        if edge.enabled
        and not (ignore_recurrent and edge.is_recurrent)
        and edge.source in graph.nodes
        and edge.target in graph.nodes
    ]


def sorted_prefix(nodes: Iterable[int], edges: Iterable[Edge]) -> list[int]:
    """Nodes in topological order, smallest ready id first (Kahn); those on or behind a cycle are left out."""
    waiting_for = dict.fromkeys(nodes, 0)
    targets: dict[int, list[int]] = {}
    for edge in edges:
        waiting_for[edge.target] += 1
        targets.setdefault(edge.source, []).append(edge.target)
    ready = [node for node, count in waiting_for.items() if count == 0]
    heapify(ready)
    order = []
    while ready:
        node = heappop(ready)
        order.append(node)
        for target in targets.get(node, ()):
            waiting_for[target] -= 1
            if waiting_for[target] == 0:
                heappush(ready, target)
    return order


def reachable(starts: Iterable[int], neighbours: Callable[[int], Iterable[int]]) -> set[int]:
    """The starts and everything that can be reached from them."""
    seen = set(starts)
    queue = deque(seen)
    while queue:
        for node in neighbours(queue.popleft()):
            if node not in seen:
                seen.add(node)
                queue.append(node)
    return seen


def _closing_edges(graph: ComputationGraph, edges: Iterable[Edge]) -> tuple[int, ...]:
    """Ids of the back edges of a depth-first search; the stack is a list, so that long chains fit."""
    # Inputs lead and outputs come last, so that what goes back from an output closes a cycle, not what leads to it.
    by_type = {NodeType.INPUT: 0, NodeType.HIDDEN: 1, NodeType.OUTPUT: 2}
    roots = sorted(graph.canonical_order(), key=lambda node: by_type[graph.nodes[node].node_type])
    rank = {node: place for place, node in enumerate(roots)}
    out_edges: dict[int, list[Edge]] = {node: [] for node in roots}
    for edge in sorted(edges, key=lambda edge: rank[edge.target]):
        out_edges[edge.source].append(edge)
    pending = {node: iter(out) for node, out in out_edges.items()}
    visited: set[int] = set()
    on_path: set[int] = set()
    closing = []
    for root in roots:
        stack = [] if root in visited else [root]
        visited.add(root)
        on_path.update(stack)
        while stack:
            edge = next(pending[stack[-1]], None)
            if edge is None:
                on_path.discard(stack.pop())
            elif edge.target in on_path:
                closing.append(edge.edge_id)
            elif edge.target not in visited:
                visited.add(edge.target)
                on_path.add(edge.target)
                stack.append(edge.target)
    return tuple(sorted(closing))
