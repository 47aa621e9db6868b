"""Reference rules of OperationGraphEnv on networkx graphs: shapes and costs of real ComputationGraphs, no tables."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import networkx as nx

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.typed import infer_shapes
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
        ports: names of the inputs, by operation.
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
        ports: Mapping[str, Sequence[str]],
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
        self.limits, self.align, self.ports = limits, align, ports
        most = max(map(len, ports.values()))
        sets = [c for size in range(1, most + 1) for c in combinations(range(most), size)]
        self.edge_attributes = {"ports": ["+".join(map(str, each)) for each in sets]} if most > 1 else {}
        self._finishes: dict[tuple, bool] = {}
        self._within: dict[tuple, bool] = {}

    def initial(self) -> nx.DiGraph:
        """Return the inputs and the output, without edges."""
        graph = super().initial()
        graph.nodes[len(self.inputs)]["type"] = "output"
        return graph

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        (source, target), kind, value = ends(action), action.action_type, action.value
        pending = self._pending(graph)
        if kind == Kind.SetEdgeAttr:
            legal = pending == [(source, target)] and self._keeps_port_shapes(graph, source, target, str(value))
            return legal and self._finishes_somehow(self.apply(graph, action))
        if pending:
            return False
        open_nodes = [node for node in graph if self._free(graph, node)]
        if kind == Kind.SetNodeAttr:
            legal = self._is_hidden(source) and self._missing(graph, source)[:1] == [action.attribute]
            legal = legal and value in self.offered[graph.nodes[source]["type"]][str(action.attribute)]
            return legal and not open_nodes and self._has_valid_completion(self.apply(graph, action))
        if open_nodes:
            if kind != Kind.AddEdge or target not in open_nodes:
                return False
        elif any(self._missing(graph, node) for node in graph if self._is_hidden(node)):
            return False
        if kind == Kind.Stop:
            return self.is_finished(graph)
        if kind == Kind.AddNode:
            if source is None or source in self.outputs or len(graph) >= self.max_nodes or value not in self.node_types:
                return False
            after = self.apply(graph, action)
            return self.is_completable(after) and self._finishes_somehow(after)
        if graph.has_edge(source, target) or not self._may_join(source, target, value):
            return False
        after = self.apply(graph, action)
        if not (nx.is_directed_acyclic_graph(after) and self.is_completable(after)):
            return False
        if target in self.outputs:
            return source not in self.inputs or self.shapes[source].layout is not Layout.TOKENS
        if self._pending(after):
            return self._finishes_somehow(after)
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
            elif self._is_hidden(node) and not self._free(graph, node):
                chosen = {name: values[0] for name, values in self.offered[data["type"]].items()} | data["attributes"]
                merge, function = chosen.pop("merge"), chosen.pop("activation")
                share = {"share": chosen.pop("share")} if "share" in chosen else {}
                chosen.pop("module", None)
                operation = {"name": data["type"], **chosen}
                attributes = {"operation": operation, "aggregation": merge, "align": self.align, **share}
                network.add_node(
                    node, NodeType.HIDDEN, output_size=None, activation_function=function, attributes=attributes
                )
        for source, target in graph.edges:
            if target in network.nodes:
                for port in self._fed(graph, source, target):
                    name = self._port_names(graph, target)[port]
                    network.add_edge(source, target, attributes={} if name == "input" else {"port": name})
        return network

    def counted_cost(self, graph: NxGraph) -> Cost:
        """Return the cost of all hidden nodes and of the output layer at the widest node, at each of its positions.

        Raises:
            ShapeError: an operation that does not fit, or a layout without the positions of the output.
        """
        network = self.network(graph)
        known = infer_shapes(network)
        costs = [node.cost for node in known.values()]
        shapes = [node.output for node in known.values() if node.output.layout is not Layout.TOKENS]
        if self.output.positions and any(shape.layout is not self.output.layout for shape in shapes):
            raise ShapeError(f"expected shapes with the positions of {self.output}")
        widest = max(shape.channels for shape in shapes)
        return (
            sum(cost.num_parameters for cost in costs) + self.output.channels * (widest + 1),
            sum(cost.multiply_adds for cost in costs) + self.output.num_elements * widest,
        )

    def _port_names(self, graph: NxGraph, node: int) -> Sequence[str]:
        return self.ports[graph.nodes[node]["type"]] if self._is_hidden(node) else ("input",)

    def _fed(self, graph: NxGraph, source: int, target: int) -> list[int]:
        """Return the ports that an edge feeds."""
        if len(self._port_names(graph, target)) == 1:
            return [0]
        ports = graph.edges[source, target]["attributes"].get("ports")
        return [int(port) for port in ports.split("+")] if ports else []

    def _pending(self, graph: NxGraph) -> list[tuple[int, int]]:
        """Return the edges that feed no port yet."""
        return [(source, target) for source, target in graph.edges if not self._fed(graph, source, target)]

    def _free(self, graph: NxGraph, node: int) -> set[int]:
        """Return the ports that no edge feeds, of a node with several."""
        num_ports = len(self._port_names(graph, node))
        fed = {port for source in graph.predecessors(node) for port in self._fed(graph, source, node)}
        return set(range(num_ports)) - fed if num_ports > 1 else set()

    def _keeps_port_shapes(self, graph: NxGraph, source: int, target: int, ports: str) -> bool:
        """Return whether an edge into some ports leaves the shapes of those that are fed as they are."""
        joined, num_ports = {int(port) for port in ports.split("+")}, len(self._port_names(graph, target))
        if max(joined) >= num_ports:
            return False
        try:
            known = infer_shapes(self.network(graph))
            for port in joined - self._free(graph, target):
                sources = [v for v in graph.predecessors(target) if port in self._fed(graph, v, target)]
                before = join([known[v].output for v in sources])
                if join([before, known[source].output]) != before:
                    return False
        except (ShapeError, KeyError):
            return False
        return True

    def _finishes_somehow(self, graph: NxGraph) -> bool:
        """Return whether further edges, ports and values complete the node that is not, by exhaustive search."""
        key = _identity(graph)
        if key not in self._finishes:
            pending = self._pending(graph)
            open_nodes = [node for node in graph if self._free(graph, node)]
            if pending:
                actions = [
                    GraphAction(Kind.SetEdgeAttr, *pending[0], attribute="ports", value=value)
                    for value in self.edge_attributes["ports"]
                ]
            else:
                actions = [
                    GraphAction(Kind.AddEdge, v, node, value="forward")
                    for node in open_nodes
                    for v in graph
                    if v != node
                ]
            is_open = pending or open_nodes
            self._finishes[key] = (
                any(self.allows(graph, action) for action in actions) if is_open else self._has_valid_completion(graph)
            )
        return self._finishes[key]

    def _missing(self, graph: NxGraph, node: int) -> list[str]:
        """Return the attributes that are still to be set, in order."""
        data = graph.nodes[node]
        own = [name for name in self.node_attributes if len(self.offered[data["type"]].get(name, ())) > 1]
        return [name for name in own if name not in data["attributes"]]

    def _completions(self, graph: NxGraph) -> Iterator[NxGraph]:
        """Yield the graph with every choice of the missing attributes of the node that lacks some."""
        node = next((v for v in graph if self._is_hidden(v) and self._missing(graph, v)), len(graph) - 1)
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
    return nodes, frozenset((s, t, d["type"], d["attributes"].get("ports")) for s, t, d in graph.edges(data=True))


class SharingOracle(OperationGraphOracle):
    """The same graphs with nodes that share modules: these are joined by edges `shares` in both directions.

    An edge of the network takes the place of one direction.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.edge_types = ("forward", "shares")
        self._without_module: dict[tuple, list[int]] = {}

    def apply(self, graph: NxGraph, action: GraphAction) -> NxGraph:
        source, target = ends(action)
        was_shared = action.action_type == Kind.RemoveEdge and graph.edges[source, target]["type"] == "shares"
        after = super().apply(graph, action)
        groups = {node: self._partners(graph, node) for node in graph}
        if action.action_type == Kind.AddEdge and action.value == "shares":
            after.nodes[source]["attributes"]["module"] = "own"
            for other in groups[target] | {target}:
                self._join(after, source, other)
        elif was_shared:
            after.nodes[source]["attributes"].pop("module", None)
            shared = [(s, t) for s, t, d in after.edges(data=True) if source in (s, t) and d["type"] == "shares"]
            after.remove_edges_from(shared)
        elif action.action_type == Kind.RemoveEdge and target in groups[source]:
            self._join(after, source, target)
        return after

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
        (source, target), plain = ends(action), self._plain(graph)
        is_share = action.action_type == Kind.AddEdge and action.value == "shares"
        is_own = action.action_type == Kind.SetNodeAttr and action.attribute == "module"
        undecided = self._undecided(plain)
        if undecided:
            is_on_node = undecided == [source] and not self._partners(graph, source)
            if is_own:
                return is_on_node and super()._is_within_limits(plain)
            return is_share and is_on_node and self._shared(plain, source, target) is not None
        return not (is_share or is_own) and super().allows(plain, action)

    def is_state(self, graph: NxGraph) -> bool:
        return all(self._plain(graph).in_degree(v) for v in graph if self._is_hidden(v)) and super().is_state(graph)

    def _is_within_limits(self, graph: NxGraph) -> bool:
        """Return whether a module of its own, or of another node, is within the limits."""
        undecided = self._undecided(graph)
        if super()._is_within_limits(graph):
            return True
        return any(self._shared(graph, node, other) is not None for node in undecided for other in graph)

    def _plain(self, graph: NxGraph) -> NxGraph:
        """Return the graph with the names of shared modules as attributes in place of edges."""
        if not any(kind == "shares" for *_, kind in graph.edges(data="type")):
            return graph
        plain = nx.DiGraph()
        for node, data in graph.nodes(data=True):
            group = self._partners(graph, node)
            share = {"share": f"{min(group | {node})}"} if group else {}
            plain.add_node(node, **{**data, "attributes": {**data["attributes"], **share}})
        plain.add_edges_from((s, t, d) for s, t, d in graph.edges(data=True) if d["type"] == "forward")
        return plain

    def _undecided(self, graph: NxGraph) -> list[int]:
        """Return the complete nodes with weights whose module is not decided."""
        key = _identity(graph)
        if key not in self._without_module:
            try:
                shapes = infer_shapes(self.network(graph)).items()
            except ShapeError:
                shapes = ()
            pending = {target for _, target in self._pending(graph)}
            self._without_module[key] = [
                node
                for node, each in shapes
                if each.operation
                and each.operation.at(each.input_shapes).cost[0]
                and "module" not in graph.nodes[node]["attributes"]
                and not self._missing(graph, node)
                and node not in pending
            ]
        return self._without_module[key]

    def _shared(self, graph: NxGraph, node: int, other: int) -> NxGraph | None:
        """Return the graph in which two nodes share a module, None if they cannot, or above the limits."""
        if other == node or "module" not in graph.nodes[other]["attributes"]:
            return None
        after = graph.copy()
        for each in (node, other):
            data = after.nodes[each]
            name = graph.nodes[other]["attributes"].get("share", str(other))
            after.nodes[each]["attributes"] = {**data["attributes"], "module": "own", "share": name}
        return after if OperationGraphOracle._is_within_limits(self, after) else None

    @staticmethod
    def _partners(graph: NxGraph, node: int) -> set[int]:
        edges = [(s, t) for s, t, kind in graph.edges(data="type") if kind == "shares" and node in (s, t)]
        return {end for edge in edges for end in edge} - {node}

    @staticmethod
    def _join(graph: NxGraph, first: int, second: int) -> None:
        for pair in ((first, second), (second, first)):
            if not graph.has_edge(*pair):
                graph.add_edge(*pair, type="shares", attributes={}, order=0)
