"""Execution order of a computation graph and the edges that close its cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from gflownet.graphs.elements import Edge, GraphElements, NodeType


def topological_order(
    graph: GraphElements, canonical_order: Callable[[], Sequence[int]], *, ignore_recurrent: bool
) -> list[int]:
    """Return all node ids, each after the sources of its enabled edges; ties by node id.

    Raises: ValueError naming the edges that close a cycle (recurrent ones only count without `ignore_recurrent`).
    """
    edges = followed_edges(graph, ignore_recurrent=ignore_recurrent)
    order = sorted_prefix(graph.nodes, edges)
    if len(order) < len(graph.nodes):
        closing = _closing_edges(graph, edges, canonical_order())
        named = ", ".join(f"edge {i} ({graph.edges[i].source} -> {graph.edges[i].target})" for i in closing)
        raise ValueError(f"expected no cycle of unmarked edges, got one closed by {named}")
    return order


def cycle_closing_edges(graph: GraphElements, canonical_order: Callable[[], Sequence[int]]) -> tuple[int, ...]:
    """Return the ids, ascending, of enabled non-recurrent edges without which no cycle remains.

    They are the back edges of a depth-first search from the inputs that visits hidden nodes before outputs and
    otherwise follows the canonical order: independent of edge ids, insertion order and ids of hidden nodes.
    """
    edges = followed_edges(graph, ignore_recurrent=True)
    has_cycle = len(sorted_prefix(graph.nodes, edges)) < len(graph.nodes)
    return _closing_edges(graph, edges, canonical_order()) if has_cycle else ()


def followed_edges(graph: GraphElements, *, ignore_recurrent: bool) -> list[Edge]:
    """Return the enabled edges between nodes of the graph, with or without those marked recurrent."""
    nodes = graph.nodes
    return [
        edge
        for edge in graph.edges.values()
        if edge.enabled
        and not (ignore_recurrent and edge.is_recurrent)
        and edge.source in nodes
        and edge.target in nodes
    ]


def sorted_prefix(nodes: Iterable[int], edges: Iterable[Edge]) -> list[int]:
    """Return nodes in topological order, smallest ready id first (Kahn), without those on or behind a cycle."""
    num_pending = dict.fromkeys(nodes, 0)
    targets: dict[int, list[int]] = {}
    for edge in edges:
        num_pending[edge.target] += 1
        targets.setdefault(edge.source, []).append(edge.target)
    ready = [node for node, count in num_pending.items() if count == 0]
    heapify(ready)
    order = []
    while ready:
        node = heappop(ready)
        order.append(node)
        for target in targets.get(node, ()):
            num_pending[target] -= 1
            if num_pending[target] == 0:
                heappush(ready, target)
    return order


def reachable(starts: Iterable[int], neighbours: Callable[[int], Iterable[int]]) -> set[int]:
    """Return the starts and all nodes that can be reached from them."""
    visited = set(starts)
    queue = deque(visited)
    while queue:
        for node in neighbours(queue.popleft()):
            if node not in visited:
                visited.add(node)
                queue.append(node)
    return visited


def _closing_edges(graph: GraphElements, edges: Iterable[Edge], canonical_order: Sequence[int]) -> tuple[int, ...]:
    """Return the ids of the back edges of a depth-first search, with a list as stack so that long chains fit."""
    # Inputs first and outputs last, so that an edge out of an output closes a cycle, not one on the path to it.
    by_type = {NodeType.INPUT: 0, NodeType.HIDDEN: 1, NodeType.OUTPUT: 2}
    roots = sorted(canonical_order, key=lambda node: by_type[graph.nodes[node].node_type])
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
