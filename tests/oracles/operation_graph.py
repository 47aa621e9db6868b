"""Reference rules of OperationGraphEnv on networkx graphs: shapes and costs of real ComputationGraphs, no tables."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import networkx as nx

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.operation_costs import node_cost
from gflownet.graphs.operation_shapes import infer_shapes
from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError, join
from tests.oracles.computation_graph_env import ComputationGraphOracle
from tests.oracles.graph_building import NxGraph, ends

Cost = tuple[int, int]  # parameters and multiply-adds


class OperationGraphOracle(ComputationGraphOracle):
    """Graphs of operations in which no edge changes a shape, within limits of edges and costs.

    Args:
        inputs: shapes of the inputs.
        output: shape of the output.
        offered: values of each setting, activation and merge, by operation.
        attributes: the values of node attributes by name, in the order in which they are set.
        limits: parameters and multiply-adds.
        align: of hidden nodes.
        max_hidden_nodes: limit.
        max_edges: limit.
    """

    def __init__(
        self,
        inputs: Sequence[Shape],
        output: Shape,
        *,
        offered: Mapping[str, Mapping[str, Sequence]],
        attributes: Mapping[str, Sequence],
        limits: Cost,
        align: str,
        max_hidden_nodes: int,
        max_edges: int,
    ) -> None:
        super().__init__(
            len(inputs),
            1,
            activations=tuple(offered),
            node_attributes=attributes,
            aggregation="sum",
            output_aggregation="sum",
            max_hidden_nodes=max_hidden_nodes,
            max_edges=max_edges,
            recurrent=False,
        )
        self.shapes, self.output, self.offered = inputs, output, offered
        self.limits, self.align = limits, align
        self._within: dict[tuple, bool] = {}

    def initial(self) -> nx.DiGraph:
        """Return the inputs and the output, without edges."""
        graph = super().initial()
        graph.nodes[len(self.inputs)]["type"] = "output"
        return graph

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        (source, target), kind, value = ends(action), action.action_type, action.value
        if kind == Kind.SetNodeAttr:
            legal = self._is_hidden(source) and self._missing(graph, source)[:1] == [action.attribute]
            legal = legal and value in self.offered[graph.nodes[source]["type"]][str(action.attribute)]
            return legal and self._has_valid_completion(self.apply(graph, action))
        if any(self._missing(graph, node) for node in graph if self._is_hidden(node)):
            return False
        if kind == Kind.Stop:
            return self.is_finished(graph)
        if kind == Kind.AddNode:
            if source is None or source in self.outputs or len(graph) >= self.max_nodes or value not in self.node_types:
                return False
            after = self.apply(graph, action)
            return self.is_completable(after) and self._has_valid_completion(after)
        if graph.has_edge(source, target) or not self._may_join(source, target, value):
            return False
        after = self.apply(graph, action)
        if not (nx.is_directed_acyclic_graph(after) and self.is_completable(after)):
            return False
        if target in self.outputs:
            return source not in self.inputs or self.shapes[source].layout is not Layout.TOKENS
        return self._keeps_shape(graph, source, target) and self._is_within_limits(after)

    def is_state(self, graph: NxGraph) -> bool:
        """Return whether the graph is reachable, by undoing actions until the initial state."""
        key = _identity(graph)
        if key not in self._states:
            start = len(graph) == len(self.inputs) + 1 and graph.number_of_edges() == 0
            fed = all(graph.in_degree(v) for v in graph if self._is_hidden(v))
            is_reverse = (self._reverses_legal_action(graph, a) for a in self._candidate_backward_actions(graph))
            self._states[key] = start or (fed and any(is_reverse))
        return self._states[key]

    def is_ordered(self, graph: NxGraph, node: int) -> bool:
        """Return False: no merge depends on the order of its inputs."""
        return False

    def network(self, graph: NxGraph) -> ComputationGraph:
        """Return the inputs and the hidden nodes as a graph of operations."""
        network = ComputationGraph()
        for node, data in graph.nodes(data=True):
            if node in self.inputs:
                shape = self.shapes[node]
                declared: dict[str, Any] = {"shape": list(shape.sizes), "layout": str(shape.layout)}
                network.add_node(node, NodeType.INPUT, output_size=None, attributes=declared)
            elif self._is_hidden(node):
                chosen = {name: values[0] for name, values in self.offered[data["type"]].items()} | data["attributes"]
                merge, function = chosen.pop("merge"), chosen.pop("activation")
                operation = {"name": data["type"], **chosen}
                attributes = {"operation": operation, "aggregation": merge, "align": self.align}
                network.add_node(
                    node, NodeType.HIDDEN, output_size=None, activation_function=function, attributes=attributes
                )
        for source, target in graph.edges:
            if self._is_hidden(target):
                network.add_edge(source, target)
        return network

    def counted_cost(self, graph: NxGraph) -> Cost:
        """Return the cost of all hidden nodes and of the output layer at the widest node, at each of its positions.

        Raises:
            ShapeError: an operation that does not fit, or a layout without the positions of the output.
        """
        network = self.network(graph)
        known = infer_shapes(network)
        costs = [node_cost(network, node) for node in known.values()]
        shapes = [node.output for node in known.values() if node.output.layout is not Layout.TOKENS]
        if self.output.positions and any(shape.layout is not self.output.layout for shape in shapes):
            raise ShapeError(f"expected shapes with the positions of {self.output}")
        widest = max(shape.channels for shape in shapes)
        return (
            sum(cost.num_parameters for cost in costs) + self.output.channels * (widest + 1),
            sum(cost.multiply_adds for cost in costs) + self.output.num_elements * widest,
        )

    def _missing(self, graph: NxGraph, node: int) -> list[str]:
        """Return the attributes that are still to be set, in order."""
        data = graph.nodes[node]
        own = [name for name in self.node_attributes if len(self.offered[data["type"]].get(name, ())) > 1]
        return [name for name in own if name not in data["attributes"]]

    def _completions(self, graph: NxGraph) -> Iterator[NxGraph]:
        """Yield the graph with every choice of the missing attributes of its last node."""
        node = len(graph) - 1
        missing = self._missing(graph, node)
        for values in product(*(self.offered[graph.nodes[node]["type"]][name] for name in missing)):
            complete = graph.copy()
            attributes = graph.nodes[node]["attributes"] | dict(zip(missing, values, strict=True))
            complete.nodes[node]["attributes"] = attributes
            yield complete

    def _has_valid_completion(self, graph: NxGraph) -> bool:
        return any(self._is_within_limits(complete) for complete in self._completions(graph))

    def _is_within_limits(self, graph: NxGraph) -> bool:
        """Return whether all operations fit their inputs within the limits."""
        key = _identity(graph)
        if key not in self._within:
            try:
                costs = self.counted_cost(graph)
            except ShapeError:
                costs = ()
            within = all(cost <= limit for cost, limit in zip(costs, self.limits, strict=False))
            self._within[key] = bool(costs) and within
        return self._within[key]

    def _keeps_shape(self, graph: NxGraph, source: int, target: int) -> bool:
        """Return whether an edge leaves the shape of the target's merged inputs as it is."""
        try:
            known = infer_shapes(self.network(graph))
            before = join([known[v].output for v in graph.predecessors(target)])
            return join([before, known[source].output]) == before
        except ShapeError:
            return False


def _identity(graph: NxGraph) -> tuple:
    """Return all contents of a graph, hashable."""
    nodes = tuple((d["type"], *sorted(d["attributes"].items())) for _, d in sorted(graph.nodes(data=True)))
    return nodes, frozenset(graph.edges)
