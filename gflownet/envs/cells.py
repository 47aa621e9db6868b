"""Cells in networks: places for operations (NAS-Bench-201, NAS-Bench-Macro, your own), or small graphs of them (101).

Cells are identified by their places: two cells of NAS-Bench-201 with the same function are two cells, as in its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gflownet.envs.cell_caps import CostCaps
from gflownet.envs.cell_design import CELLS, CIFAR_CLASSES, CIFAR_SHAPE, NB101_OPERATIONS, SKELETONS, read_design
from gflownet.envs.cell_graphs import CellGraphs, has_graph
from gflownet.envs.cell_networks import Cell, GraphNetworks
from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.envs.slots import SlotEnv
from gflownet.errors import UserError
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.labelled_graphs import LabelledGraphs
from gflownet.mdp.states import UNSET, Attribute, GraphStates
from gflownet.operations.tensor_shape import Shape

_INPUT, _OUTPUT = "input", "output"


class CellEnv(SlotEnv):
    """Cells with places for operations, filled in any order; finished when all are."""

    def __init__(self, cell: Cell, caps: CostCaps | None = None) -> None:
        super().__init__(cell.places, Attribute("operation", cell.operations))
        self.cell, self.caps = cell, caps
        self._graphs = CellGraphs(cell) if has_graph(cell) else None

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        """Return the graphs of the operations, with the operations of all places."""
        return (
            super().labelled_graphs(states) if self._graphs is None else self._graphs(states.node_attr[:, :, 0].long())
        )

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of setting an operation: at an empty place, within the caps."""
        is_empty = states.node_attr == UNSET
        stop = [Rule("a place is empty", ~is_empty.flatten(1).any(1)[:, None, None])]
        set_operation = [Rule("the place is taken", is_empty)]
        if self.caps is not None:
            positions = states.node_attr[:, :, 0]
            stop.append(Rule("the network exceeds a cap", self.caps.is_within(positions)[:, None, None]))
            set_operation.append(Rule("no network within the caps has it", self.caps.allowed(positions)))
        return {Kind.Stop: stop, Kind.SetNodeAttr: set_operation}

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
    def check_config(cls, config: Any) -> None:
        """Raise UserError for an invalid cell or skeleton."""
        cls._check(config.env.cells)

    @staticmethod
    def _check(cells: CellsEnvConfig) -> None:
        if not is_table(cells):
            read_design(cells)

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[Any], output_sizes: Sequence[Any]) -> Environment:
        """Return the environment; the sizes of the task (CIFAR-10's by default) count for caps only."""
        cells = config.cells
        if cells.name == "nb101":
            if has_caps(cells):
                raise UserError("env.cells: expected no max_parameters and max_multiply_adds with name=nb101, got some")
            cls._check(cells)
            return CellGraphEnv(NB101_OPERATIONS, max_vertices=cells.max_vertices, max_edges=cells.max_edges)
        if is_table(cells):
            return CellEnv(CELLS[cells.name])
        networks = read_design(cells).networks(*sizes_of(input_sizes, output_sizes))
        assert not isinstance(networks, GraphNetworks)
        costs = networks.costs  # computed without caps, too: it checks that every operation fits its places
        caps = CostCaps(costs, cells.max_parameters, cells.max_multiply_adds) if has_caps(cells) else None
        return CellEnv(networks.cell, caps)


def has_caps(cells: CellsEnvConfig) -> bool:
    """Return whether networks are limited."""
    return cells.max_parameters is not None or cells.max_multiply_adds is not None


def is_table(cells: CellsEnvConfig) -> bool:
    """Return whether the cells of a benchmark are searched without a network around them."""
    return cells.name in SKELETONS and not (cells.operations or cells.edges or cells.skeleton or has_caps(cells))


def sizes_of(input_sizes: Sequence[Any], output_sizes: Sequence[Any]) -> tuple[Shape, int]:
    """Return the input shape and the number of outputs of a task, CIFAR-10's of one that has none."""
    shape = input_sizes[0] if input_sizes else CIFAR_SHAPE
    return shape if isinstance(shape, Shape) else Shape.of(shape), (output_sizes or (CIFAR_CLASSES,))[0]
