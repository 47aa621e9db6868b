"""Computation graphs: what is searched, translated, stored and drawn."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from gflownet.graphs import identity, node_link, ordering
from gflownet.graphs.canonical import CanonicalForm
from gflownet.graphs.elements import DEFAULT_WEIGHT, Edge, Node, NodeType, frozen_attributes, shown, thawed
from gflownet.graphs.validation import GraphProblem, graph_problems

if TYPE_CHECKING:
    import networkx

__all__ = ["ComputationGraph", "Edge", "GraphProblem", "Node", "NodeType"]


class ComputationGraph:
    """A directed graph of operations; grows by add_node and add_edge, its parts are read-only.

    Two graphs are equal iff one is the other with its hidden nodes renamed: types, sizes, activations, biases,
    weights, `enabled` and attributes count; edge ids, hidden ids, derivation_uuid, the config and the numbers under
    attributes["order"] do not. Inputs and outputs are fixed one by one, by their place among the ids of their type.
    The place of an edge among its target's in-edges counts where the target's aggregation depends on it.
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None) -> None:
        """Make an empty graph; config["multigraph"] allows parallel edges, other entries are kept as they are."""
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
        self._take_node(node)
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
        """Add an edge, its ends known or not (validate() reports those), and return it; ids count up unless given.

        Raises: ValueError for a value of the wrong type or an id already taken.
        """
        edge_id = self._next_edge_id if edge_id is None else edge_id
        edge = Edge(edge_id, source, target, weight, enabled, {} if attributes is None else attributes)
        self._take_edge(edge)
        return edge

    def in_edges(self, node_id: int) -> list[Edge]:
        """All edges into a node, by (order, edge_id)."""
        return list(self._in_edges.get(self._checked_id(node_id), ()))

    def out_edges(self, node_id: int) -> list[Edge]:
        """All edges out of a node, by (order, edge_id)."""
        return list(self._out_edges.get(self._checked_id(node_id), ()))

    def detect_cycles(self) -> tuple[int, ...]:
        """Ids of the enabled unmarked edges that close a cycle: with them marked recurrent none is left."""
        return ordering.cycle_closing_edges(self)

    def topological_sort(self, ignore_recurrent: bool = True) -> list[int]:
        """Node ids so that each follows what it reads from; ties by id. Raises ValueError naming edges on a cycle."""
        return ordering.topological_order(self, ignore_recurrent=ignore_recurrent)

    def validate(self) -> list[GraphProblem]:
        """Every problem that keeps the graph from being translated; an empty list for a sound graph."""
        return graph_problems(self)

    def canonical_form(self) -> CanonicalForm:
        """The canonical form of the graph as a coloured graph (parallel edges merged into one colour)."""
        return self._identified()[0]

    def canonical_order(self) -> tuple[int, ...]:
        """Node ids in an order that does not depend on the ids of hidden nodes (up to automorphisms)."""
        return self._identified()[1]

    def canonical_key(self) -> str:
        """A JSON text that two graphs share iff they are equal."""
        return self.canonical_form().key

    def canonical_hash(self) -> str:
        """A versioned sha256 of the key: a bucket, never an identity."""
        return self.canonical_form().hash

    def num_automorphisms(self) -> int:
        """The number of renamings of hidden nodes that leave the graph as it is."""
        return self.canonical_form().num_automorphisms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComputationGraph):
            return NotImplemented
        return self.canonical_key() == other.canonical_key()

    def __hash__(self) -> int:
        return hash(self.canonical_key())

    def __repr__(self) -> str:
        return f"ComputationGraph({len(self._nodes)} nodes, {len(self._edges)} edges)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (thawed(self.config), list(self._nodes.values()), list(self._edges.values()))

    def copy(self) -> ComputationGraph:
        """A graph of its own with the same ids, attributes and config."""
        return _rebuilt(self.config, self._nodes.values(), self._edges.values())

    def with_translation(self, settings: Mapping[str, Any]) -> ComputationGraph:
        """A copy that is translated with these settings (projection, dtype) unless a translation says otherwise.

        They travel with the graph under config["translation"] and do not count for equality.
        """
        return _rebuilt({**self.config, "translation": settings}, self._nodes.values(), self._edges.values())

    def to_dict(self) -> dict[str, Any]:
        """The graph in networkx's node-link form, as plain JSON values."""
        return node_link.node_link_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ComputationGraph:
        """The graph that node-link data describe. Raises ValueError that names the node or edge and the field."""
        return node_link.read_node_link(cls, data)

    def to_json(self) -> str:
        """The node-link form as text; non-finite numbers are written as NaN and Infinity."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> ComputationGraph:
        """The graph that a node-link text describes. Raises ValueError for text that is no JSON, too."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"graph: expected JSON text, got {type(error).__name__}: {error}") from None
        return cls.from_dict(data)

    def to_networkx(self) -> networkx.DiGraph | networkx.MultiDiGraph:
        """The graph as networkx's class; the fields of to_dict are its node and edge data."""
        from networkx import node_link_graph

        return node_link_graph(self.to_dict(), edges="edges")

    @classmethod
    def from_networkx(cls, graph: networkx.Graph) -> ComputationGraph:
        """The graph that a networkx graph with the fields of to_dict as data describes."""
        from networkx import node_link_data

        return cls.from_dict(node_link_data(graph, edges="edges"))

    def _take_node(self, node: Node) -> None:
        if node.node_id in self._nodes:
            raise ValueError(f"node {node.node_id}: expected an unused id, got one already taken")
        self._nodes[node.node_id] = node
        self._identity = None

    def _take_edge(self, edge: Edge) -> None:
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
            self._identity = identity.identified(self)
        return self._identity


def _place(edge: Edge) -> tuple[float, int]:
    return edge.order, edge.edge_id


def _rebuilt(config: Mapping[str, Any], nodes: Iterable[Node], edges: Iterable[Edge]) -> ComputationGraph:
    graph = ComputationGraph(config=config)
    for node in nodes:
        graph._take_node(node)
    for edge in edges:
        graph._take_edge(edge)
    return graph
