"""Cells in networks: places for operations (NAS-Bench-201, NAS-Bench-Macro, your own), or small graphs of them (101).

Cells are identified by their places: two cells of NAS-Bench-201 with the same function are two cells, as in its table.
In the graph of the operations of a cell with places, nodes 0 .. S - 1 are the operations, S is the input, S + 1 the
output.

Letters: B states or cells, S places, V operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.cell_design import CELLS, CIFAR_CLASSES, CIFAR_SHAPE, NB101_OPERATIONS, SKELETONS, read_design
from gflownet.envs.cell_networks import Cell, GraphNetworks, ends_of
from gflownet.envs.choice_limits import SummedCosts
from gflownet.envs.choice_places import Place, Places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.errors import UserError
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, LabelledGraphs
from gflownet.operations.tensor_shape import Shape

_EDGE = 1


class CellGraphs:
    """The operations of cells as nodes, joined where one reads the result of the other.

    Operations without effect are left out: zeros, and those on no path of operations from the input to the output.
    """

    def __init__(self, cell: Cell) -> None:
        """Precompute which places follow one another in a cell with `has_graph`."""
        if "<-" in cell.places[0]:
            ends = [ends_of(place) for place in cell.places]
        else:
            ends = [(index + 1, index) for index in range(len(cell.places))]
        self._targets, self._sources = ([end[side] for end in ends] for side in (0, 1))
        self._last = max(self._targets)
        self._values = len(cell.operations)
        self._is_zero = torch.tensor([name in cell.zeros for name in cell.operations])
        starts, stops = torch.tensor([*self._sources, -1, self._last]), torch.tensor([*self._targets, 0, -1])
        self._follows = (stops[:, None] == starts[None]) & (stops[:, None] >= 0)  # [S + 2, S + 2]
        self._follows[-2, -1] = False  # not from input to output without an operation

    def __call__(self, operations: Tensor) -> LabelledGraphs:
        """Return the graphs of cells with the positions of their operations, [B, S] int64; UNSET: empty."""
        active = (operations != UNSET) & ~self._is_zero[operations.clamp(min=0)]
        active = active & self._reached(active, self._sources, self._targets, start=0)
        active = active & self._reached(active, self._targets, self._sources, start=self._last)
        ends = torch.tensor([self._values, self._values + 1]).expand(len(operations), 2)
        labels = torch.cat([operations.masked_fill(~active, UNSET), ends], 1)
        exists = labels != UNSET
        joined = self._follows & exists[:, :, None] & exists[:, None, :]
        return LabelledGraphs(labels[:, :, None], torch.where(joined, _EDGE, NO_EDGE), operations)

    def _reached(self, active: Tensor, tails: list[int], heads: list[int], *, start: int) -> Tensor:
        """Return which places have their tail on a path of active places from `start`, [B, S] bool."""
        reached = torch.zeros(len(active), self._last + 1, dtype=torch.bool)
        reached[:, start] = True
        # Every node is complete before it is read: places sorted by their tail, in the direction of the paths.
        for place in sorted(range(len(tails)), key=tails.__getitem__, reverse=start > 0):
            reached[:, heads[place]] |= reached[:, tails[place]] & active[:, place]
        return reached[:, tails]


def has_graph(cell: Cell) -> bool:
    """Return whether the places of a cell are edges or layers, so that its operations form a graph."""
    return all("<-" in place for place in cell.places) or cell.places == tuple(
        f"layer{index}" for index in range(len(cell.places))
    )


_INPUT, _OUTPUT = "input", "output"


def cell_env(cell: Cell, costs: SummedCosts | None = None) -> ChoicesEnv:
    """Return the environment of cells with places for operations, filled in any order; `costs` has their caps."""
    places = Places(tuple(Place(name, cell.operations) for name in cell.places))
    graphs = CellGraphs(cell) if has_graph(cell) else None
    return ChoicesEnv(places, costs, attribute="operation", absent="", graphs=graphs)


class CellGraphEnv(ComputationGraphEnv):
    """Cells of NAS-Bench-101: graphs of operations from one input to one output, every node on a path between."""

    terminal_type = ColouredGraph

    def __init__(self, operations: Sequence[str], *, max_vertices: int, max_edges: int = 9) -> None:
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
        num_nodes = int(states.num_nodes[index])
        colours = [self._colours[kind] for kind in states.node_type[index, :num_nodes].tolist()]
        edges = map(tuple, states.has_edge[index].nonzero().tolist())
        return ColouredGraph(tuple(colours), dict.fromkeys(edges, "edge"))

    def describe(self, candidate: ColouredGraph) -> GraphDescription:
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
            return CellGraphEnv(NB101_OPERATIONS, max_vertices=cells.max_vertices)
        if is_table(cells):
            return cell_env(CELLS[cells.name])
        networks = read_design(cells).networks(*sizes_of(input_sizes, output_sizes))
        assert not isinstance(networks, GraphNetworks)
        costs = networks.costs  # computed without caps, too: it checks that every operation fits its places
        caps = cells.max_parameters, cells.max_multiply_adds
        return cell_env(networks.cell, replace(costs, caps=caps) if has_caps(cells) else None)


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
