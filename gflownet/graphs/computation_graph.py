"""Computation graphs: the architectures that are searched, translated, stored and drawn."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from gflownet.files import parse_json
from gflownet.graphs import node_link, ordering
from gflownet.graphs.canonical import CanonicalForm, EqualUpToIsomorphism
from gflownet.graphs.elements import DEFAULT_WEIGHT, Edge, Node, NodeType, maps_tensors
from gflownet.graphs.identity import coloured_graph
from gflownet.graphs.typed import TypedGraph, own_projection
from gflownet.graphs.validation import GraphProblem, graph_problems, typed
from gflownet.graphs.visit import visited
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.values import frozen_attributes, shown, thawed

if TYPE_CHECKING:
    import networkx

__all__ = ["ComputationGraph", "Edge", "GraphProblem", "Node", "NodeType"]


class ComputationGraph(EqualUpToIsomorphism):
    """A directed graph of operations, built by add_node and add_edge; its nodes and edges are read-only.

    Two graphs are equal iff one is the other with its hidden nodes renamed: types, sizes, activations, biases,
    weights, `enabled`, attributes and which nodes have one derivation_uuid count; edge ids, hidden ids, the config and
    the numbers under attributes["order"] do not. Inputs and outputs are identified by their place among the ids of
    their type. The place of an edge among its target's in-edges counts if the target's aggregation depends on it.
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None) -> None:
        """Make an empty graph; config["multigraph"] allows parallel edges, other entries are stored unchanged."""
        self.config = frozen_attributes({"multigraph": False, **(config or {})}, "graph")
        if not isinstance(self.config["multigraph"], bool):
            raise ValueError(f"graph: expected a bool multigraph, got {shown(self.config['multigraph'])}")
        self._nodes: dict[int, Node] = {}
        self._edges: dict[int, Edge] = {}
        self.nodes: Mapping[int, Node] = MappingProxyType(self._nodes)  # by id
        self.edges: Mapping[int, Edge] = MappingProxyType(self._edges)
        self._in_edges: dict[int, list[Edge]] = {}
        self._out_edges: dict[int, list[Edge]] = {}
        self._next_edge_id = 0
        self._identity: tuple[CanonicalForm, tuple[int, ...]] | None = None
        self._subgraphs: dict[str, ComputationGraph] = {}
        self._subgraph_key: str | None = None
        self._typed: dict[Any, TypedGraph] = {}

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
        """Return the graph that nodes apply by this name; it sees all subgraphs of this graph. Do not change it.

        Raises: ValueError for an unknown name, a subgraph that applies itself, or data that are not a graph.
        """
        if not isinstance(name, str) or name not in self._subgraphs:
            definitions = self.config.get("subgraphs", {})
            data = node_link.subgraph_data(definitions, name)
            inner = ComputationGraph._read(thawed(data), is_subgraph=True)
            inner_definitions = inner.config.get("subgraphs", {})
            inner.config = MappingProxyType(
                {**inner.config, "subgraphs": MappingProxyType({**definitions, **inner_definitions})}
            )
            if not inner_definitions:
                inner._subgraphs = self._subgraphs  # the same names: built once
            self._subgraphs[name] = inner
        return self._subgraphs[name]

    def detect_cycles(self) -> tuple[int, ...]:
        """Return ids of enabled non-recurrent edges that close a cycle; marking them recurrent removes all cycles."""
        return ordering.cycle_closing_edges(self, self.canonical_order)

    def topological_sort(self, ignore_recurrent: bool = True) -> list[int]:
        """Return node ids, sources before targets, ties by id. Raises ValueError naming edges that close a cycle."""
        return ordering.topological_order(self, self.canonical_order, ignore_recurrent=ignore_recurrent)

    def validate(self) -> list[GraphProblem]:
        """Return all problems that prevent the translation of the graph; an empty list for a valid graph."""
        return graph_problems(self)

    def typed(self, projection: str | None = None) -> TypedGraph:
        """Return operations, shapes, costs and problems by node; visited once until the graph changes.

        `projection` overrides the setting of the graph.
        """
        key = projection or own_projection(self)
        found = self._typed.get(key) or typed(self, key)
        if not found.problems:  # a class may be repaired
            self._typed[key] = found
        return found

    def body(self, name: str, shapes: Sequence[Shape], projection: str) -> TypedGraph:
        """Return a subgraph for the shapes of its INPUT nodes, by ascending id; its elements are valid."""
        key = name, tuple(shapes), projection
        found = self._typed.get(key) or visited(self, projection, name=name, shapes=shapes)
        if not found.failures:
            self._typed[key] = found
        return found

    def canonical_form(self) -> CanonicalForm:
        """Return the canonical form, computed once until the graph changes."""
        return self._identified()[0]

    def canonical_order(self) -> tuple[int, ...]:
        """Return node ids in an order that does not depend on the ids of hidden nodes (up to automorphisms)."""
        return self._identified()[1]

    def __repr__(self) -> str:
        return f"ComputationGraph({len(self._nodes)} nodes, {len(self._edges)} edges)"

    def __reduce__(self) -> tuple[Any, ...]:
        return graph_of, (thawed(self.config), list(self._nodes.values()), list(self._edges.values()))

    def copy(self) -> ComputationGraph:
        """Return an independent graph with the same ids, attributes and config."""
        return graph_of(self.config, self._nodes.values(), self._edges.values())

    def with_translation(self, settings: Mapping[str, Any]) -> ComputationGraph:
        """Return a copy with default settings of its translation (projection, dtype).

        They are stored under config["translation"] and do not count for equality.
        """
        return graph_of({**self.config, "translation": settings}, self._nodes.values(), self._edges.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the graph in networkx's node-link form, as plain JSON values."""
        return node_link.node_link_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ComputationGraph:
        """Return the graph of node-link data, missing fields at their defaults.

        Well-typed but invalid values (dangling edges, unknown activations) are accepted: validate() reports them.
        Raises: ValueError that names the node or edge and the field.
        """
        return cls._read(data)

    @classmethod
    def _read(cls, data: Mapping[str, Any], *, is_subgraph: bool = False) -> ComputationGraph:
        graph = cls(config=node_link.read_config(data))
        for node in node_link.read_nodes(data, is_subgraph=is_subgraph):
            graph.add_node(**node)
        for edge in node_link.read_edges(data, is_subgraph=is_subgraph):
            graph.add_edge(**edge)
        return graph

    def to_json(self) -> str:
        """Return the node-link form as text; non-finite numbers are written as NaN and Infinity."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> ComputationGraph:
        """Return the graph of a node-link text. Raises ValueError for invalid JSON, too."""
        try:
            data = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"graph: expected JSON text, got {type(error).__name__}: {error}") from None
        return cls.from_dict(data)

    def to_networkx(self) -> networkx.DiGraph | networkx.MultiDiGraph:
        """Return the graph as networkx's class; the fields of `to_dict` are its node and edge data.

        Parallel edges into different ports need networkx's MultiDiGraph; subgraphs are graph data.
        """
        from networkx import node_link_graph

        data = node_link.networkx_dict(self.to_dict()) if maps_tensors(self) else self.to_dict()
        return cast("networkx.DiGraph", node_link_graph(data, edges="edges"))

    @classmethod
    def from_networkx(cls, graph: networkx.Graph) -> ComputationGraph:
        """Return the graph of a networkx graph with the fields of to_dict as data."""
        from networkx import node_link_data

        return cls.from_dict(node_link.from_networkx_dict(node_link_data(graph, edges="edges")))

    def _insert_node(self, node: Node) -> None:
        if node.node_id in self._nodes:
            raise ValueError(f"node {node.node_id}: expected an unused id, got one already taken")
        self._nodes[node.node_id] = node
        self._identity = self._subgraph_key = None
        self._typed.clear()

    def _insert_edge(self, edge: Edge) -> None:
        if edge.edge_id in self._edges:
            raise ValueError(f"edge {edge.edge_id}: expected an unused id, got one already taken")
        self._edges[edge.edge_id] = edge
        for adjacent, end in ((self._in_edges, edge.target), (self._out_edges, edge.source)):
            insort(adjacent.setdefault(end, []), edge, key=_place)
        self._next_edge_id = max(self._next_edge_id, edge.edge_id + 1)
        self._identity = self._subgraph_key = None
        self._typed.clear()

    def _ids_of(self, node_type: NodeType) -> list[int]:
        return sorted(node_id for node_id, node in self._nodes.items() if node.node_type is node_type)

    def _checked_id(self, node_id: int) -> int:
        if node_id not in self._nodes:
            raise ValueError(f"expected the id of a node of this graph, got {shown(node_id)}")
        return node_id

    def _identified(self) -> tuple[CanonicalForm, tuple[int, ...]]:
        if self._identity is None:
            ids, coloured = coloured_graph(self, self._key_of_subgraph)
            form = coloured.canonical_form()
            self._identity = form, tuple(ids[index] for index in form.order if ids[index] in self._nodes)
        return self._identity

    def _key_of_subgraph(self, name: str) -> str:
        """Return the identity of a subgraph: its content, whatever its name and the shapes that its inputs declare."""
        inner = self.subgraph(name)
        if inner._subgraph_key is None:
            _, coloured = coloured_graph(inner, inner._key_of_subgraph, is_subgraph=True)
            inner._subgraph_key = coloured.canonical_hash()
        return inner._subgraph_key


def _place(edge: Edge) -> tuple[float, int]:
    return edge.order, edge.edge_id


def graph_of(config: Mapping[str, Any], nodes: Iterable[Node], edges: Iterable[Edge]) -> ComputationGraph:
    """Return the graph of nodes and edges. Raises ValueError for an id that occurs twice."""
    graph = ComputationGraph(config=config)
    for node in nodes:
        graph._insert_node(node)
    for edge in edges:
        graph._insert_edge(edge)
    return graph
