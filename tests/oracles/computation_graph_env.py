"""Reference rules of ComputationGraphEnv on networkx graphs, each by its definition, without the state arrays.

Legality under the edge budget and of backward actions is decided by search.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import networkx as nx

from gflownet.mdp.action import GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from tests.oracles.graph_building import GraphBuildingOracle, NxGraph, ends

IN_ORDER = {"concat", "matrix_product", "topk_weighted_sum", "moe"}


class ComputationGraphOracle(GraphBuildingOracle):
    """Graphs with every node on a path from an input to an output, within a number of edges."""

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

    def allows(self, graph: NxGraph, action: GraphAction) -> bool:
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

    def is_finished(self, graph: NxGraph) -> bool:
        """Return whether every node is on a path from an input to an output without recurrent edges."""
        paths = forward_part(graph)
        for node in paths:
            from_input = node in self.inputs or any(v in self.inputs for v in nx.ancestors(paths, node))
            to_output = node in self.outputs or any(v in self.outputs for v in nx.descendants(paths, node))
            if not (from_input and to_output):
                return False
        return True

    def is_completable(self, graph: NxGraph) -> bool:
        """Return whether forward edges within the budget finish the graph, by exhaustive search.

        Recurrent edges and new nodes never help to finish a graph.
        """
        key = (len(graph), frozenset((s, t, d["type"]) for s, t, d in graph.edges(data=True)))
        if key not in self._completable:
            budget = self.max_edges - graph.number_of_edges()
            self._completable[key] = self._search(graph.copy(), list(self._additions(graph)), budget)
        return self._completable[key]

    def is_state(self, graph: NxGraph) -> bool:
        """Return whether the graph is reachable, by undoing actions until the initial state."""
        # The rules depend on whether attributes are set and inputs are ordered, not on the values.
        nodes = tuple((*graph.nodes[v]["attributes"], self.is_ordered(graph, v)) for v in sorted(graph))
        key = (nodes, frozenset((s, t, d["type"], d["order"]) for s, t, d in graph.edges(data=True)))
        if key not in self._states:
            start = len(graph) == len(self.inputs) + len(self.outputs) and graph.number_of_edges() == 0
            # A hidden node is removed with its first in-edge, so one without in-edges cannot be removed.
            paths = forward_part(graph)
            fed = all(paths.in_degree(v) for v in graph if self._is_hidden(v))
            is_reverse = (self._reverses_legal_action(graph, a) for a in self._candidate_backward_actions(graph))
            self._states[key] = start or (fed and any(is_reverse))
        return self._states[key]

    def is_ordered(self, graph: NxGraph, node: int) -> bool:
        """Return whether the order of the inputs of a node matters."""
        if node in self.outputs:
            return self.output_aggregation in IN_ORDER
        return graph.nodes[node]["attributes"].get("aggregation", self.aggregation) in IN_ORDER

    def _may_join(self, source: int, target: int, edge_type: object) -> bool:
        """Return whether an edge of this type is allowed between two nodes.

        Inputs have no in-edges and no recurrent edges; outputs have only recurrent out-edges.
        """
        if edge_type == "forward":
            return source not in self.outputs and target not in self.inputs
        if source in self.inputs or target in self.inputs:
            return False
        return self._is_hidden(target) or source in self.outputs

    def _is_hidden(self, node: int) -> bool:
        return node not in self.inputs and node not in self.outputs

    def _additions(self, graph: NxGraph) -> Iterator[tuple[int, int]]:
        """Yield the allowed forward edges, first those from nodes without out-edges to outputs without in-edges."""
        paths = forward_part(graph)
        pairs = [p for p in product(graph, graph) if self._may_join(*p, "forward") and not graph.has_edge(*p)]
        need = {v: paths.out_degree(v) == 0 for v in graph}
        yield from sorted(
            (p for p in pairs if p[0] != p[1]),
            key=lambda p: (p[1] not in self.outputs, not need[p[0]], paths.in_degree(p[1]) > 0),
        )

    def _search(self, graph: NxGraph, pairs: list[tuple[int, int]], budget: int) -> bool:
        if budget < 0:
            return False
        if self.is_finished(graph):
            return True
        for i, (source, target) in enumerate(pairs if budget else ()):
            if nx.has_path(forward_part(graph), target, source):
                continue
            graph.add_edge(source, target, type="forward")
            is_completable = self._search(graph, pairs[i + 1 :], budget - 1)
            graph.remove_edge(source, target)
            if is_completable:
                return True
        return False


def forward_part(graph: NxGraph) -> nx.DiGraph:
    part = nx.DiGraph()
    part.add_nodes_from(graph)
    part.add_edges_from((s, t) for s, t, kind in graph.edges(data="type") if kind == "forward")
    return part
