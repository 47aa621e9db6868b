"""Cells of tabular benchmarks: places for operations (NAS-Bench-201, NAS-Bench-Macro), or small graphs of them (101).

Cells are identified by their places: two cells of NAS-Bench-201 with the same function are two cells, as in its table.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import EnvConfig
from gflownet.envs.slots import SlotEnv
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import UNSET, Attribute, GraphStates

_INPUT, _OUTPUT = "input", "output"


class CellEnv(SlotEnv):
    """Cells with places for operations, filled in any order; finished when all are."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell.places, Attribute("operation", cell.operations))
        self.cell = cell

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of setting an operation: at an empty place."""
        is_empty = states.node_attr == UNSET
        return {
            Kind.Stop: [Rule("a place is empty", ~is_empty.flatten(1).any(1)[:, None, None])],
            Kind.SetNodeAttr: [Rule("the place is taken", is_empty)],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        """Return the rule of removing an operation: at a filled place."""
        return {Kind.RemoveNodeAttr: [Rule("the place is empty", states.node_attr != UNSET)]}


class CellGraphEnv(ComputationGraphEnv):
    """Cells of NAS-Bench-101: graphs of operations from one input to one output, every node on a path between."""

    terminal_type = ColouredGraph

    def __init__(self, operations: Sequence[str], *, max_vertices: int, max_edges: int) -> None:
        if max_vertices < 2:
            raise ValueError(f"env.cells: expected max_vertices >= 2, got {max_vertices}")
        super().__init__(
            (1,),
            (1,),
            activations=operations,
            aggregations=("sum",),
            hidden_sizes=(1,),
            max_hidden_nodes=max_vertices - 2,
            max_edges=max_edges,
        )
        self._colours = (_INPUT, _OUTPUT, *operations)

    def terminal(self, states: GraphStates, index: int) -> ColouredGraph:
        """Return the graph with operations as colours."""
        num_nodes = int(states.num_nodes[index])
        colours = [self._colours[kind] for kind in states.node_type[index, :num_nodes].tolist()]
        edges = map(tuple, states.has_edge[index].nonzero().tolist())
        return ColouredGraph(tuple(colours), dict.fromkeys(edges, "edge"))

    def describe(self, candidate: ColouredGraph) -> GraphDescription:
        """Return a graph of operations in terms of the vocabulary, input and output first."""
        kinds = [position_of(self._colours, colour, "operation") for colour in candidate.node_colours]
        order = sorted(range(len(kinds)), key=kinds.__getitem__)
        place = {node: position for position, node in enumerate(order)}
        edges = {(place[source], place[target]): DescribedEdge() for source, target in candidate.edge_colours}
        return GraphDescription([kinds[node] for node in order], [], edges)


class CellsContext(GraphBuildingEnvContext):
    """Context of cells, from the options under `env.cells`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> Environment:
        """Return the environment; the sizes of the task are not used."""
        space = config.cells
        if space.name in CELLS:
            return CellEnv(CELLS[space.name])
        return CellGraphEnv(NB101_OPERATIONS, max_vertices=space.max_vertices, max_edges=space.max_edges)
