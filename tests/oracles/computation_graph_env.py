"""The rules of ComputationGraphEnv on networkx graphs, each by its definition: slow, and blind to the arrays.

What is legal under the budget of edges, and what undoes a legal action, is found by search.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import networkx as nx

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from tests.oracles.graph_building import GraphBuildingOracle, Twin, ends

IN_ORDER = {"concat", "matrix_product", "topk_weighted_sum", "moe"}


class ComputationGraphOracle(GraphBuildingOracle):
    """From inputs and outputs to graphs whose every node lies on a path between, within a number of edges."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        activations: Sequence[str],
        node_attributes: Mapping[str, Sequence],
        aggregation: str | None,
        output_aggregation: str,
        max_hidden_nodes: int,
        max_edges: int,
        recurrent: bool,
    ) -> None:
        self.inputs, self.outputs = range(num_inputs), range(num_inputs, num_inputs + num_outputs)
        super().__init__(
            activations,
            max_nodes=num_inputs + num_outputs + max_hidden_nodes,
            directed=True,
            node_attributes=node_attributes,
            edge_types=("forward", "recurrent") if recurrent else ("forward",),
        )
        self.aggregation, self.output_aggregation, self.max_edges = aggregation, output_aggregation, max_edges
        self._completable: dict[tuple, bool] = {}
        self._states: dict[tuple, bool] = {}

    def initial(self) -> nx.DiGraph:
        """Return the inputs and outputs, without edges."""
        graph = nx.DiGraph()
        graph.add_nodes_from((v, {"type": f"input_{v}", "attributes": {}}) for v in self.inputs)
        graph.add_nodes_from((v, {"type": f"output_{v - len(self.inputs)}", "attributes": {}}) for v in self.outputs)
        return graph

    def allows(self, graph: Twin, action: GraphAction) -> bool:
        """Return whether a forward action is legal."""
        (source, target), kind, value = ends(action), action.action_type, action.value
        if kind == Kind.SetNodeAttr:
            missing = [name for name in self.node_attributes if name not in graph.nodes[source]["attributes"]]
            return self._is_hidden(source) and missing[:1] == [action.attribute]
        if any(self._is_hidden(v) and len(d["attributes"]) < len(self.node_attributes) for v, d in graph.nodes.items()):
            return False
        if kind == Kind.Stop:
            return self.is_finished(graph)
        if kind == Kind.AddNode:
            if source is None or source in self.outputs or len(graph) >= self.max_nodes or value not in self.node_types:
                return False
            return self.is_completable(self.apply(graph, action))
        if graph.has_edge(source, target) or not self._may_join(source, target, value):
            return False
        after = self.apply(graph, action)
        return nx.is_directed_acyclic_graph(forward_part(after)) and self.is_completable(after)

    def is_finished(self, graph: Twin) -> bool:
        """Return whether every node lies on a path from an input to an output over edges that are not recurrent."""
        paths = forward_part(graph)
        for node in paths:
            from_input = node in self.inputs or any(v in self.inputs for v in nx.ancestors(paths, node))
            to_output = node in self.outputs or any(v in self.outputs for v in nx.descendants(paths, node))
            if not (from_input and to_output):
                return False
        return True

    def is_completable(self, graph: Twin) -> bool:
        """Return whether forward edges within the budget finish the graph, by trying them all.

        Recurrent edges are on no path, and a new node needs a way to an output of its own: neither ever helps.
        """
        key = (len(graph), frozenset((s, t, d["type"]) for s, t, d in graph.edges(data=True)))
        if key not in self._completable:
            found = self._search(graph.copy(), list(self._additions(graph)), self.max_edges - graph.number_of_edges())
            self._completable[key] = found
        return self._completable[key]

    def is_state(self, graph: Twin) -> bool:
        """Return whether some trajectory leads through the graph, by undoing actions until the initial state."""
        # No rule asks for the value of an attribute, but for whether it is set and whether inputs are ordered.
        nodes = tuple((*graph.nodes[v]["attributes"], self.is_ordered(graph, v)) for v in sorted(graph))
        key = (nodes, frozenset((s, t, d["type"], d["order"]) for s, t, d in graph.edges(data=True)))
        if key not in self._states:
            start = len(graph) == len(self.inputs) + len(self.outputs) and graph.number_of_edges() == 0
            # Undoing only takes edges away, and a hidden node goes with the edge it came with: unfed, it stays.
            paths = forward_part(graph)
            fed = all(paths.in_degree(v) for v in graph if self._is_hidden(v))
            undone = (self._undoes(graph, a) for a in self._thinkable_backward(graph))
            self._states[key] = start or (fed and any(undone))
        return self._states[key]

    def is_ordered(self, graph: Twin, node: int) -> bool:
        """Return whether a node combines its inputs in order."""
        if node in self.outputs:
            return self.output_aggregation in IN_ORDER
        return graph.nodes[node]["attributes"].get("aggregation", self.aggregation) in IN_ORDER

    def _may_join(self, source: int, target: int, edge_type: object) -> bool:
        """Nothing runs into an input or, but back through time, out of an output; recurrent edges touch no input."""
        if edge_type == "forward":
            return source not in self.outputs and target not in self.inputs
        if source in self.inputs or target in self.inputs:
            return False
        return self._is_hidden(target) or source in self.outputs

    def _is_hidden(self, node: int) -> bool:
        return node not in self.inputs and node not in self.outputs

    def _additions(self, graph: Twin) -> Iterator[tuple[int, int]]:
        """Yield the pairs that a forward edge may join, those from nodes without a way out into unfed outputs first."""
        paths = forward_part(graph)
        pairs = [p for p in product(graph, graph) if self._may_join(*p, "forward") and not graph.has_edge(*p)]
        need = {v: paths.out_degree(v) == 0 for v in graph}
        yield from sorted(
            (p for p in pairs if p[0] != p[1]),
            key=lambda p: (p[1] not in self.outputs, not need[p[0]], paths.in_degree(p[1]) > 0),
        )

    def _search(self, graph: Twin, pairs: list[tuple[int, int]], budget: int) -> bool:
        if budget < 0:
            return False
        if self.is_finished(graph):
            return True
        for i, (source, target) in enumerate(pairs if budget else ()):
            if nx.has_path(forward_part(graph), target, source):
                continue
            graph.add_edge(source, target, type="forward")
            found = self._search(graph, pairs[i + 1 :], budget - 1)
            graph.remove_edge(source, target)
            if found:
                return True
        return False


def forward_part(graph: Twin) -> nx.DiGraph:
    """Return the graph without its recurrent edges."""
    part = nx.DiGraph()
    part.add_nodes_from(graph)
    part.add_edges_from((s, t) for s, t, kind in graph.edges(data="type") if kind == "forward")
    return part
