"""Computation graphs: the architectures that are searched, translated, stored and drawn."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from gflownet.graphs import node_link, ordering
from gflownet.graphs.canonical import CanonicalForm, ColouredGraph, EqualUpToIsomorphism
from gflownet.graphs.elements import (
    DEFAULT_AGGREGATION,
    DEFAULT_WEIGHT,
    Edge,
    Node,
    NodeType,
    frozen_attributes,
    shown,
    thawed,
)
from gflownet.graphs.validation import GraphProblem, graph_problems
from gflownet.graphs.vocabulary import is_order_sensitive

if TYPE_CHECKING:
    import networkx

__all__ = ["ComputationGraph", "Edge", "GraphProblem", "Node", "NodeType"]


class ComputationGraph(EqualUpToIsomorphism):
    """A directed graph of operations, built by add_node and add_edge; its nodes and edges are read-only.

    Two graphs are equal iff one is the other with its hidden nodes renamed: types, sizes, activations, biases,
    weights, `enabled` and attributes count; edge ids, hidden ids, derivation_uuid, the config and the numbers under
    attributes["order"] do not. Inputs and outputs are identified by their place among the ids of their type. The place
    of an edge among its target's in-edges counts if the target's aggregation depends on it.
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None) -> None:
        """Make an empty graph; config["multigraph"] allows parallel edges, other entries are stored unchanged."""
        self.config = frozen_attributes({"multigraph": False, **(config or {})}, "graph")
        if not isinstance(self.config["multigraph"], bool):
            raise ValueError(f"graph: expected a bool multigraph, got {shown(self.config['multigraph'])}")
        self._nodes: dict[int, Node] = {}
        self._edges: dict[int, Edge] = {}
        self._in_edges: dict[int, list[Edge]] = {}
        self._out_edges: dict[int, list[Edge]] = {}
        self._next_edge_id = 0
        self._identity: tuple[CanonicalForm, tuple[int, ...]] | None = None

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The nodes by id, read-only."""
        return MappingProxyType(self._nodes)

    @property
    def edges(self) -> Mapping[int, Edge]:
        """The edges by id, read-only."""
        return MappingProxyType(self._edges)

    @property
    def input_node_ids(self) -> list[int]:
        """Ids of the INPUT nodes, ascending."""
        return self._ids_of(NodeType.INPUT)

    @property
    def output_node_ids(self) -> list[int]:
        """Ids of the OUTPUT nodes, ascending."""
        return self._ids_of(NodeType.OUTPUT)

    def add_node(
        self,
        node_id: int,
        node_type: NodeType | str,
        *,
        output_size: int | None,
        activation_function: str = "linear",
        bias: float = 0.0,
        attributes: Mapping[str, Any] | None = None,
    ) -> Node:
        """Add a node and return it. Raises ValueError for a value of the wrong type or an id already taken."""
        attributes = {} if attributes is None else attributes
        # Node turns the text of a type into the type.
        node = Node(node_id, cast(NodeType, node_type), output_size, activation_function, bias, attributes)
        self._insert_node(node)
        return node

    def add_edge(
        self,
        source: int,
        target: int,
        *,
        edge_id: int | None = None,
        weight: float = DEFAULT_WEIGHT,
        enabled: bool = True,
        attributes: Mapping[str, Any] | None = None,
    ) -> Edge:
        """Add an edge and return it; ids count up by default, and validate() reports ends that are missing.

        Raises: ValueError for a value of the wrong type or an id already taken.
        """
        edge_id = self._next_edge_id if edge_id is None else edge_id
        edge = Edge(edge_id, source, target, weight, enabled, {} if attributes is None else attributes)
        self._insert_edge(edge)
        return edge

    def in_edges(self, node_id: int) -> list[Edge]:
        """Return all edges into a node, by (order, edge_id)."""
        return list(self._in_edges.get(self._checked_id(node_id), ()))

    def out_edges(self, node_id: int) -> list[Edge]:
        """Return all edges out of a node, by (order, edge_id)."""
        return list(self._out_edges.get(self._checked_id(node_id), ()))

    def subgraph(self, name: str) -> ComputationGraph:
        """Return the graph under config["subgraphs"] with this name; it finds the other subgraphs by name, too.

        Raises: ValueError for an unknown name.
        """
        subgraphs = thawed(self.config.get("subgraphs", {}))
        if name not in subgraphs:
            raise ValueError(f"expected a subgraph out of {', '.join(subgraphs) or 'none'}, got {shown(name)}")
        data = subgraphs.pop(name)
        return ComputationGraph.from_dict({**data, "subgraphs": {**subgraphs, **data.get("subgraphs", {})}})

    def detect_cycles(self) -> tuple[int, ...]:
        """Return ids of enabled non-recurrent edges that close a cycle; marking them recurrent removes all cycles."""
        return ordering.cycle_closing_edges(self, self.canonical_order)

    def topological_sort(self, ignore_recurrent: bool = True) -> list[int]:
        """Return node ids, sources before targets, ties by id. Raises ValueError naming edges that close a cycle."""
        return ordering.topological_order(self, self.canonical_order, ignore_recurrent=ignore_recurrent)

    def validate(self) -> list[GraphProblem]:
        """Return all problems that prevent the translation of the graph; an empty list for a valid graph."""
        return graph_problems(self)

    def canonical_form(self) -> CanonicalForm:
        """Return the canonical form, computed once until the graph changes."""
        return self._identified()[0]

    def canonical_order(self) -> tuple[int, ...]:
        """Return node ids in an order that does not depend on the ids of hidden nodes (up to automorphisms)."""
        return self._identified()[1]

    def __repr__(self) -> str:
        return f"ComputationGraph({len(self._nodes)} nodes, {len(self._edges)} edges)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (thawed(self.config), list(self._nodes.values()), list(self._edges.values()))

    def copy(self) -> ComputationGraph:
        """Return an independent graph with the same ids, attributes and config."""
        return _rebuilt(self.config, self._nodes.values(), self._edges.values())

    def with_translation(self, settings: Mapping[str, Any]) -> ComputationGraph:
        """Return a copy with default settings of its translation (projection, dtype).

        They are stored under config["translation"] and do not count for equality.
        """
        return _rebuilt({**self.config, "translation": settings}, self._nodes.values(), self._edges.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the graph in networkx's node-link form, as plain JSON values."""
        return node_link.node_link_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ComputationGraph:
        """Return the graph of node-link data, missing fields at their defaults.

        Well-typed but invalid values (dangling edges, unknown activations) are accepted: validate() reports them.
        Raises: ValueError that names the node or edge and the field.
        """
        graph = cls(config=node_link.read_config(data))
        for node in node_link.read_nodes(data):
            graph.add_node(**node)
        for edge in node_link.read_edges(data):
            graph.add_edge(**edge)
        return graph

    def to_json(self) -> str:
        """Return the node-link form as text; non-finite numbers are written as NaN and Infinity."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> ComputationGraph:
        """Return the graph of a node-link text. Raises ValueError for invalid JSON, too."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"graph: expected JSON text, got {type(error).__name__}: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def from_networkx(cls, graph: networkx.Graph) -> ComputationGraph:
        """Return the graph of a networkx graph with the fields of to_dict as data."""
        from networkx import node_link_data

        return cls.from_dict(node_link_data(graph, edges="edges"))

    def _insert_node(self, node: Node) -> None:
        if node.node_id in self._nodes:
            raise ValueError(f"node {node.node_id}: expected an unused id, got one already taken")
        self._nodes[node.node_id] = node
        self._identity = None

    def _insert_edge(self, edge: Edge) -> None:
        if edge.edge_id in self._edges:
            raise ValueError(f"edge {edge.edge_id}: expected an unused id, got one already taken")
        self._edges[edge.edge_id] = edge
        for adjacent, end in ((self._in_edges, edge.target), (self._out_edges, edge.source)):
            insort(adjacent.setdefault(end, []), edge, key=_place)
        self._next_edge_id = max(self._next_edge_id, edge.edge_id + 1)
        self._identity = None

    def _ids_of(self, node_type: NodeType) -> list[int]:
        return sorted(node_id for node_id, node in self._nodes.items() if node.node_type is node_type)

    def _checked_id(self, node_id: int) -> int:
        if node_id not in self._nodes:
            raise ValueError(f"expected the id of a node of this graph, got {shown(node_id)}")
        return node_id

    def _identified(self) -> tuple[CanonicalForm, tuple[int, ...]]:
        if self._identity is None:
            ids, coloured = _coloured_graph(self)
            form = coloured.canonical_form()
            self._identity = form, tuple(ids[index] for index in form.order if ids[index] in self._nodes)
        return self._identity


def _place(edge: Edge) -> tuple[float, int]:
    return edge.order, edge.edge_id


def _rebuilt(config: Mapping[str, Any], nodes: Iterable[Node], edges: Iterable[Edge]) -> ComputationGraph:
    graph = ComputationGraph(config=config)
    for node in nodes:
        graph._insert_node(node)
    for edge in edges:
        graph._insert_edge(edge)
    return graph


def _coloured_graph(graph: ComputationGraph) -> tuple[list[int], ColouredGraph]:
    """Return the node id of every index, and the coloured graph over these indices.

    The colour of an input or output contains its place, which fixes it. Missing ends of edges become nodes, so that an
    invalid graph has an identity, too. Parallel edges are merged into one colour.
    """
    ids, colours = [], []
    for group in (graph.input_node_ids, graph.output_node_ids):
        ids += group
        colours += [f"{place} {_node_colour(graph.nodes[node_id])}" for place, node_id in enumerate(group)]
    for node_id, node in graph.nodes.items():
        if node.node_type is NodeType.HIDDEN:
            ids.append(node_id)
            colours.append(_node_colour(node))
    index_of = {node_id: index for index, node_id in enumerate(ids)}
    for end in (end for edge in graph.edges.values() for end in (edge.source, edge.target)):
        if end not in index_of:
            index_of[end] = len(ids)
            ids.append(end)
            colours.append(f"missing {end}")
    ranks = {
        edge.edge_id: f"#{rank} "
        for node_id, node in graph.nodes.items()
        if is_order_sensitive(node.aggregation)
        for rank, edge in enumerate(graph.in_edges(node_id))
    }
    merged: dict[tuple[int, int], list[str]] = {}
    for edge in graph.edges.values():
        ends = index_of[edge.source], index_of[edge.target]
        merged.setdefault(ends, []).append(ranks.get(edge.edge_id, "") + _edge_colour(edge))
    edges = {ends: each[0] if len(each) == 1 else json.dumps(sorted(each)) for ends, each in merged.items()}
    return ids, ColouredGraph(tuple(colours), edges)


def _node_colour(node: Node) -> str:
    head = f"{node.node_type.value} {node.output_size} {node.bias!r} {json.dumps(node.activation_function)}"
    return head + _attributes_colour(node.attributes, {"aggregation": DEFAULT_AGGREGATION}, ("derivation_uuid",))


def _edge_colour(edge: Edge) -> str:
    head = f"{edge.weight!r} {'on' if edge.enabled else 'off'}"
    return head + _attributes_colour(edge.attributes, {"is_recurrent": False}, ("derivation_uuid", "order"))


def _attributes_colour(attributes: Mapping[str, Any], defaults: Mapping[str, Any], labels: tuple[str, ...]) -> str:
    """Return the attributes as text, without labels and default values."""
    counted = {
        key: thawed(value)
        for key, value in attributes.items()
        # repr, because an ill-valued 0 equals the default False.
        if key not in labels and not (key in defaults and repr(value) == repr(defaults[key]))
    }
    return " " + json.dumps(counted, sort_keys=True) if counted else ""
