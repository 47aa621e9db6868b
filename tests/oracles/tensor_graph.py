"""The rules of TensorGraphEnv on networkx graphs, one operation, index and axis at a time."""

from collections.abc import Mapping, Sequence

import networkx as nx

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from tests.oracles.graph_building import GraphBuildingOracle, NxGraph, ends

BINARY = ("+", "-", "*")


class TensorGraphOracle(GraphBuildingOracle):
    """Programs on given inputs; at most one operation is unfinished, and no other uses it."""

    def __init__(
        self,
        inputs: Mapping[str, Sequence[int]],
        node_types: Sequence[str],
        *,
        max_operations: int,
        max_rank: int,
        max_nodes: int,
        functions: Sequence,
    ) -> None:
        attributes = {"function": functions} if functions else {}
        super().__init__(node_types, max_nodes=max_nodes, directed=True, node_attributes=attributes)
        self.inputs, self.max_operations, self.max_rank = inputs, max_operations, max_rank

    def initial(self) -> NxGraph:
        """Return the inputs, each with its axes."""
        graph = nx.DiGraph()
        for name, shape in self.inputs.items():
            tensor = len(graph)
            graph.add_node(tensor, type=name, attributes={})
            for axis, extent in enumerate(shape):
                graph.add_node(len(graph), type=f"{name}.{axis}:{extent}", attributes={})
                graph.add_edge(tensor, len(graph) - 1, type="edge", attributes={}, order=0)
        return graph

    def is_ordered(self, graph: NxGraph, node: int) -> bool:
        return graph.nodes[node]["type"] == "-"

    def apply(self, graph: NxGraph, action: GraphAction) -> NxGraph:
        """Return a copy of the graph after an action; an index hung on an axis belongs to the open operation."""
        after = super().apply(graph, action)
        if action.action_type == Kind.AddNode and action.value in ("keep", "sum"):
            for operation in self.open(graph):
                after.add_edge(operation, len(graph), type="edge", attributes={}, order=0)
        return after

    def inverse(self, graph: NxGraph, action: GraphAction) -> GraphAction | None:
        """Return the forward action that a backward action undoes, None where there cannot be one."""
        source, _ = ends(action)
        if action.action_type == Kind.RemoveNode and graph.nodes[source]["type"] in ("keep", "sum"):
            axes = [node for node in graph.predecessors(source) if self.is_axis(graph, node)]
            if len(axes) != 1 or graph.out_degree(source):
                return None
            return GraphAction(Kind.AddNode, axes[0] - (axes[0] > source), value=graph.nodes[source]["type"])
        return super().inverse(graph, action)

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        kind, (source, target) = action.action_type, ends(action)
        if kind == Kind.Stop:
            return not self.open(graph) and len(self.results(graph)) == 1
        if kind == Kind.SetNodeAttr:
            free = source in self.results(graph) and not self.open(graph)
            return free and not graph.nodes[source]["attributes"]
        if kind == Kind.AddNode:
            return source is not None and self._may_add(graph, source, str(action.value))
        if graph.has_edge(source, target):
            return False
        after = self.apply(graph, action)
        if self.is_tensor(graph, source) and self.is_operation(graph, target):
            is_short = len(self.operands(graph, target)) < self.arity(graph, target)
            return is_short and source not in self.open(graph) and self.can_finish(after)
        return self._may_match(graph, source, target)

    def _may_add(self, graph: NxGraph, source: int, value: str) -> bool:
        """Return whether a node of a type may be hung on a node."""
        if value in ("keep", "sum"):
            owner = next(iter(self.open(graph)), None)
            if owner is None or source not in self.unplaced(graph, owner):
                return False
            return value == "sum" or len(self.axes(graph, owner)) < self.max_rank
        other_nodes = [node for node in self.open(graph) if node != source]
        if value.startswith("new:"):
            is_transform = graph.nodes[source]["type"] == "transform"
            is_bare = not self.users(graph, source) and not graph.nodes[source]["attributes"]
            return is_transform and is_bare and not other_nodes and len(self.axes(graph, source)) < self.max_rank
        if value not in ("transform", *BINARY) or not self.is_tensor(graph, source) or self.open(graph):
            return False
        after = self.apply(graph, GraphAction(Kind.AddNode, source, value=value))
        if len(self.operations(after)) > self.max_operations:
            return False
        if value == "transform":
            return self.can_finish(after)
        seconds = [t for t in graph if self.is_tensor(graph, t) and t != source]
        new = len(graph)
        return any(self.can_finish(self.apply(after, GraphAction(Kind.AddEdge, t, new, value="edge"))) for t in seconds)

    def _may_match(self, graph: NxGraph, axis: int, index: int) -> bool:
        """Return whether an axis may be placed on an index that is there."""
        if graph.nodes[index]["type"] not in ("keep", "sum") or not self.is_axis(graph, axis):
            return False
        owner = next(node for node in graph.predecessors(index) if self.is_operation(graph, node))
        if owner not in self.open(graph) or axis not in self.unplaced(graph, owner):
            return False
        placed = [node for node in graph.predecessors(index) if self.is_axis(graph, node)]
        if len(placed) != 1 or self.extent(graph, axis) != self.extent(graph, index):
            return False
        return not any({axis, placed[0]} <= set(self.axes(graph, t)) for t in self.operands(graph, owner))

    def is_state(self, graph: NxGraph) -> bool:
        """Return whether some trajectory leads through the graph."""
        if len(self.open(graph)) > 1 or len(self.operations(graph)) > self.max_operations:
            return False
        for operation in self.operations(graph):
            is_open = operation in self.open(graph)
            if is_open and (self.users(graph, operation) or graph.nodes[operation]["attributes"]):
                return False
            if not self._is_sound(graph, operation):
                return False
        return nx.is_directed_acyclic_graph(graph)

    def _is_sound(self, graph: NxGraph, operation: int) -> bool:
        operands = self.operands(graph, operation)
        if not 1 <= len(operands) <= self.arity(graph, operation) or len(self.axes(graph, operation)) > self.max_rank:
            return False
        indices = self.indices(graph, operation)
        if indices and len(operands) < self.arity(graph, operation):
            return False
        for index in indices:
            placed = [node for node in graph.predecessors(index) if self.is_axis(graph, node)]
            sides = [[axis for axis in placed if axis in self.axes(graph, tensor)] for tensor in operands]
            is_new = graph.nodes[index]["type"].startswith("new:")
            if max(map(len, sides)) > 1 or sum(map(len, sides)) != len(placed) or is_new != (not placed):
                return False
        return True

    def can_finish(self, graph: NxGraph) -> bool:
        """Return whether the operations that are left can join all results into one."""
        num_results, left = len(self.results(graph)), self.max_operations - len(self.operations(graph))
        while num_results > 1 and left > 0 and any(kind in BINARY for kind in self.node_types):
            num_results, left = num_results - 1, left - 1
        return num_results == 1

    def is_operation(self, graph: NxGraph, node: int) -> bool:
        return graph.nodes[node]["type"] in ("transform", *BINARY)

    def is_tensor(self, graph: NxGraph, node: int) -> bool:
        """Return whether a node is an input or an operation."""
        return graph.nodes[node]["type"] in self.inputs or self.is_operation(graph, node)

    def is_axis(self, graph: NxGraph, node: int) -> bool:
        return graph.nodes[node]["type"] == "keep" or ":" in graph.nodes[node]["type"]

    def arity(self, graph: NxGraph, operation: int) -> int:
        """Return how many operands an operation takes."""
        return 2 if graph.nodes[operation]["type"] in BINARY else 1

    def operations(self, graph: NxGraph) -> list[int]:
        return [node for node in graph if self.is_operation(graph, node)]

    def operands(self, graph: NxGraph, operation: int) -> list[int]:
        """Return the operands an operation has so far."""
        return [node for node in graph.predecessors(operation) if self.is_tensor(graph, node)]

    def users(self, graph: NxGraph, tensor: int) -> list[int]:
        """Return the operations that a tensor is an operand of."""
        return [node for node in graph.successors(tensor) if self.is_operation(graph, node)]

    def indices(self, graph: NxGraph, operation: int) -> list[int]:
        """Return the indices of an operation, summed ones too."""
        return [node for node in graph.successors(operation) if not self.is_operation(graph, node)]

    def axes(self, graph: NxGraph, tensor: int) -> list[int]:
        return [node for node in graph.successors(tensor) if self.is_axis(graph, node)]

    def unplaced(self, graph: NxGraph, operation: int) -> list[int]:
        """Return the axes that an operation with all its operands has put on no index."""
        if len(self.operands(graph, operation)) < self.arity(graph, operation):
            return []
        axes = [axis for tensor in self.operands(graph, operation) for axis in self.axes(graph, tensor)]
        return [axis for axis in axes if not set(graph.successors(axis)) & set(self.indices(graph, operation))]

    def open(self, graph: NxGraph) -> list[int]:
        """Return the operations that lack an operand or an axis's index."""
        extents_found = self.operations(graph)
        short = [o for o in extents_found if len(self.operands(graph, o)) < self.arity(graph, o)]
        return [o for o in extents_found if o in short or self.unplaced(graph, o)]

    def results(self, graph: NxGraph) -> list[int]:
        """Return the operations that no other uses."""
        return [node for node in self.operations(graph) if not self.users(graph, node)]

    def extent(self, graph: NxGraph, node: int) -> int:
        """Return the extent of an axis or an index."""
        kind = graph.nodes[node]["type"]
        if ":" in kind:
            return int(kind.split(":")[1])
        return self.extent(graph, next(other for other in graph.predecessors(node) if self.is_axis(graph, other)))
