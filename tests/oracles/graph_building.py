"""Reference rules of GraphBuildingEnv on networkx graphs, each by its definition, without the state arrays.

Nodes are 0 .. n-1 with `type` and `attributes`; edges have `type`, `attributes` and `order`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import networkx as nx

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind

NxGraph = Any  # nx.Graph, or nx.DiGraph in directed environments


class GraphBuildingOracle:
    """Connected undirected graphs, or directed acyclic graphs with a single source."""

    def __init__(
        self,
        node_types: Sequence[str],
        *,
        max_nodes: int,
        min_nodes: int = 1,
        directed: bool = False,
        node_attributes: Mapping[str, Sequence] | None = None,
        edge_attributes: Mapping[str, Sequence] | None = None,
        edge_types: Sequence[str] = ("edge",),
    ) -> None:
        self.node_types, self.edge_types = node_types, edge_types
        self.max_nodes, self.min_nodes, self.directed = max_nodes, min_nodes, directed
        self.node_attributes, self.edge_attributes = node_attributes or {}, edge_attributes or {}

    def initial(self) -> NxGraph:
        return nx.DiGraph() if self.directed else nx.Graph()

    def forward(self, graph: NxGraph) -> set[GraphAction]:
        return {action for action in self._candidate_actions(graph) if self.allows(graph, action)}

    def backward(self, graph: NxGraph) -> set[GraphAction]:
        """Return the legal backward actions: reverses of legal forward actions of some state."""
        return {
            action for action in self._candidate_backward_actions(graph) if self._reverses_legal_action(graph, action)
        }

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        """Return whether a forward action is legal."""
        kind, (source, target) = action.action_type, ends(action)
        if kind == Kind.Stop:
            nodes_set = all(self.node_attributes.keys() == d["attributes"].keys() for _, d in graph.nodes(data=True))
            edges_set = all(self.edge_attributes.keys() == d["attributes"].keys() for *_, d in graph.edges(data=True))
            return len(graph) >= self.min_nodes and nodes_set and edges_set
        if kind == Kind.AddNode:
            has_valid_source = source is None if len(graph) == 0 else source is not None
            return has_valid_source and len(graph) < self.max_nodes
        if kind == Kind.SetNodeAttr:
            return action.attribute not in graph.nodes[source]["attributes"]
        if not self.directed and not source < target:
            return False
        if kind == Kind.AddEdge:
            fits = source != target and not graph.has_edge(source, target)
            return fits and (not self.directed or nx.is_directed_acyclic_graph(self.apply(graph, action)))
        return graph.has_edge(source, target) and action.attribute not in graph.edges[source, target]["attributes"]

    def is_state(self, graph: NxGraph) -> bool:
        if len(graph) == 0:
            return True
        if not isinstance(graph, nx.DiGraph):
            return nx.is_connected(graph)
        return nx.is_directed_acyclic_graph(graph) and sum(d == 0 for _, d in graph.in_degree()) == 1

    def is_ordered(self, graph: NxGraph, node: int) -> bool:
        """Return whether the in-edges of a node are ordered."""
        return False

    def apply(self, graph: NxGraph, action: GraphAction) -> NxGraph:
        """Return a copy of the graph after a forward or backward action, legal or not."""
        after = _copy(graph)
        source, target = ends(action)
        match action.action_type:
            case Kind.AddNode:
                after.add_node(len(graph), type=action.value, attributes={})
                if source is not None:
                    after.add_edge(source, len(graph), type=self.edge_types[0], attributes={}, order=0)
            case Kind.AddEdge:
                rank = graph.in_degree(target) if self.is_ordered(graph, target) else 0
                after.add_edge(source, target, type=action.value, attributes={}, order=rank)
            case Kind.SetNodeAttr:
                after.nodes[source]["attributes"][action.attribute] = action.value
            case Kind.SetEdgeAttr:
                after.edges[source, target]["attributes"][action.attribute] = action.value
            case Kind.RemoveNode:
                after = moved_last(graph, source)
                after.remove_node(len(graph) - 1)
            case Kind.RemoveEdge:
                after.remove_edge(source, target)
            case Kind.RemoveNodeAttr:
                del after.nodes[source]["attributes"][action.attribute]
            case Kind.RemoveEdgeAttr:
                del after.edges[source, target]["attributes"][action.attribute]
        return after

    def inverse(self, graph: NxGraph, action: GraphAction) -> GraphAction | None:
        """Return the forward action that a backward action undoes, or None."""
        source, target = ends(action)
        match action.action_type:
            case Kind.RemoveNode:
                neighbours = set(nx.all_neighbors(graph, source))
                if len(neighbours) > 1 or source in neighbours:
                    return None
                parent = next(iter(neighbours), None)
                if parent is not None and parent > source:
                    parent -= 1
                return GraphAction(Kind.AddNode, parent, value=graph.nodes[source]["type"])
            case Kind.RemoveEdge:
                return GraphAction(Kind.AddEdge, source, target, value=graph.edges[source, target]["type"])
            case Kind.RemoveNodeAttr:
                value = graph.nodes[source]["attributes"][action.attribute]
                return GraphAction(Kind.SetNodeAttr, source, attribute=action.attribute, value=value)
        value = graph.edges[source, target]["attributes"][action.attribute]
        return GraphAction(Kind.SetEdgeAttr, source, target, attribute=action.attribute, value=value)

    def _reverses_legal_action(self, graph: NxGraph, action: GraphAction) -> bool:
        forward = self.inverse(graph, action)
        if forward is None:
            return False
        before = self.apply(graph, action)
        expected = moved_last(graph, ends(action)[0]) if action.action_type == Kind.RemoveNode else graph
        restored = self.allows(before, forward) and nx.utils.graphs_equal(self.apply(before, forward), expected)
        return restored and self.is_state(before)

    def _candidate_actions(self, graph: NxGraph) -> Iterator[GraphAction]:
        yield GraphAction(Kind.Stop)
        for source in (None, *graph):
            yield from (GraphAction(Kind.AddNode, source, value=value) for value in self.node_types)
        for source in graph:
            for target in graph:
                yield from (GraphAction(Kind.AddEdge, source, target, value=value) for value in self.edge_types)
                for name, values in self.edge_attributes.items():
                    for value in values:
                        yield GraphAction(Kind.SetEdgeAttr, source, target, attribute=name, value=value)
            for name, values in self.node_attributes.items():
                yield from (GraphAction(Kind.SetNodeAttr, source, attribute=name, value=value) for value in values)

    def _candidate_backward_actions(self, graph: NxGraph) -> Iterator[GraphAction]:
        for node, data in graph.nodes(data=True):
            yield GraphAction(Kind.RemoveNode, node)
            yield from (GraphAction(Kind.RemoveNodeAttr, node, attribute=name) for name in data["attributes"])
        for source, target, data in graph.edges(data=True):
            pair = (source, target) if self.directed else (min(source, target), max(source, target))
            yield GraphAction(Kind.RemoveEdge, *pair)
            yield from (GraphAction(Kind.RemoveEdgeAttr, *pair, attribute=name) for name in data["attributes"])


def ends(action: GraphAction) -> tuple[Any, Any]:
    return action.source, action.target


def moved_last(graph: NxGraph, node: int) -> NxGraph:
    """Return a copy with one node moved to the end; later nodes move down by one."""
    new = {v: v - (v > node) for v in graph}
    return nx.relabel_nodes(_copy(graph), {**new, node: len(graph) - 1})


def _copy(graph: NxGraph) -> NxGraph:
    copy = graph.__class__()
    copy.add_nodes_from((v, {**d, "attributes": dict(d["attributes"])}) for v, d in graph.nodes(data=True))
    copy.add_edges_from((s, t, {**d, "attributes": dict(d["attributes"])}) for s, t, d in graph.edges(data=True))
    return copy
