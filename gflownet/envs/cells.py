"""Cells in networks: places for operations (NAS-Bench-201, NAS-Bench-Macro, your own), or small graphs of them (101).

Cells are identified by their places: two cells of NAS-Bench-201 with the same function are two cells, as in its table.
In the graph of the operations of a cell with places, nodes 0 .. S - 1 are the operations, S is the input, S + 1 the
output.

Letters: B states or cells, N or S places, V operations, K numbers of empty places by class, F points of a Pareto front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.cell_design import CELLS, CIFAR_CLASSES, CIFAR_SHAPE, NB101_OPERATIONS, SKELETONS, read_design
from gflownet.envs.cell_networks import Cell, GraphNetworks, SlotCosts, ends_of
from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.envs.slots import Caps, SlotEnv
from gflownet.errors import UserError
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.typed import OperationCost
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import NO_EDGE, NO_LIMIT, UNSET, Attribute, GraphStates, LabelledGraphs
from gflownet.operations.tensor_shape import Shape

Point = tuple[int, int]  # parameters, multiply-adds

MAX_FRONTS = 100_000


@dataclass(frozen=True)
class CostCaps:
    """Costs of a space and its caps; masks are exact: an action is legal iff a cell within the caps completes it."""

    costs: SlotCosts
    max_parameters: int | None
    max_multiply_adds: int | None

    @property
    def caps(self) -> Caps:
        """Both caps."""
        return self.max_parameters, self.max_multiply_adds

    def __post_init__(self) -> None:
        """Raise UserError where no cell fits, or where there are too many sums of costs to compare."""
        if prod(num + 1 for num in self._class_sizes) > MAX_FRONTS:
            raise UserError(
                f"env.cells: caps need at most {MAX_FRONTS:,} combinations of places with different costs, got "
                f"{prod(num + 1 for num in self._class_sizes):,}"
            )
        if not any(self._fits(point, self._budget.tolist()) for point in self._front_of[tuple(self._class_sizes)]):
            smallest = self._front_of[tuple(self._class_sizes)]
            least = [
                min(point[axis] for point in smallest) + base for axis, base in enumerate(_point(self.costs.skeleton))
            ]
            raise UserError(
                f"env.cells: expected a cell within max_parameters={self.max_parameters} and "
                f"max_multiply_adds={self.max_multiply_adds}, got none; the smallest have {least[0]:,} and {least[1]:,}"
            )

    def least(self) -> Point:
        """Return the smallest parameters and multiply-adds of networks within the caps."""
        budget = self._budget.tolist()
        within = [point for point in self._front_of[tuple(self._class_sizes)] if self._fits(point, budget)]
        parameters, multiply_adds = (min(axis) for axis in zip(*within, strict=True))
        base = _point(self.costs.skeleton)
        return parameters + base[0], multiply_adds + base[1]

    def sizes(self, positions: Tensor) -> Tensor:
        """Return parameters and multiply-adds of the skeleton and the operations that are set, [B, 2]."""
        index = positions.long().clamp(min=0)[:, :, None, None].expand(-1, -1, 1, 2)
        cost = self._cost.expand(len(positions), -1, -1, -1).gather(2, index).squeeze(2)
        return self._skeleton + (cost * (positions >= 0)[:, :, None]).sum(1)

    def allowed(self, positions: Tensor, caps: Tensor) -> Tensor:
        """Return which operation may be set at which empty place within caps [B, 2], [B, N, V].

        `positions` are the operations, [B, N], -1 where empty.
        """
        is_empty = positions < 0
        remaining = (caps - self.sizes(positions))[:, None, None, :] - self._cost[None]  # [B, N, V, 2]
        key = (is_empty * self._weights).sum(1, keepdim=True) - self._weights  # [B, N], empty places after the action
        points = self._fronts[key.clamp(min=0)]  # [B, N, F, 2]
        return (points[:, :, None] <= remaining[:, :, :, None]).all(-1).any(-1)

    def is_within(self, positions: Tensor, caps: Tensor) -> Tensor:
        """Return whether the operations that are set can be completed within the caps [B, 2], [B] bool."""
        key = ((positions < 0) * self._weights).sum(1)
        return (self._fronts[key] <= (caps - self.sizes(positions))[:, None]).all(-1).any(-1)

    @cached_property
    def _budget(self) -> Tensor:
        """Return what the caps leave to the cells, [2] int64."""
        used = _point(self.costs.skeleton)
        return torch.tensor(
            [NO_LIMIT if cap is None else cap - base for cap, base in zip(self.caps, used, strict=True)]
        )

    @cached_property
    def _skeleton(self) -> Tensor:
        return torch.tensor(_point(self.costs.skeleton))

    @cached_property
    def _cost(self) -> Tensor:
        """Return the costs of operations, [N, V, 2] int64."""
        return torch.tensor([[_point(cost) for cost in costs] for costs in self.costs.places])

    @cached_property
    def _classes(self) -> dict[tuple[Point, ...], list[int]]:
        """Return the places with equal costs, by their costs."""
        classes: dict[tuple[Point, ...], list[int]] = {}
        for place, costs in enumerate(self.costs.places):
            classes.setdefault(tuple(map(_point, costs)), []).append(place)
        return classes

    @cached_property
    def _class_sizes(self) -> list[int]:
        return [len(places) for places in self._classes.values()]

    @cached_property
    def _weights(self) -> Tensor:
        """Return the number that an empty place adds to the key of a front, [N] int64."""
        weights, weight = [0] * len(self.costs.places), 1
        for places in self._classes.values():
            for place in places:
                weights[place] = weight
            weight *= len(places) + 1
        return torch.tensor(weights)

    @cached_property
    def _front_of(self) -> dict[tuple[int, ...], list[Point]]:
        """Return the smallest costs of numbers of empty places per class: no point is larger in both than another."""
        fronts: dict[tuple[int, ...], list[Point]] = {}
        choices = list(self._classes)
        for counts in product(*(range(num + 1) for num in self._class_sizes)):
            used = next((axis for axis, count in enumerate(counts) if count), None)
            if used is None:
                fronts[counts] = [(0, 0)]
                continue
            before = fronts[(*counts[:used], counts[used] - 1, *counts[used + 1 :])]
            sums = {(a + c, b + d) for a, b in before for c, d in choices[used]}
            fronts[counts] = _pareto(sorted(sums))
        return fronts

    @cached_property
    def _fronts(self) -> Tensor:
        """Return all fronts by key, [K, F, 2] int64; unused points cost more than every cap."""
        ordered = [
            self._front_of[tuple(reversed(counts))]
            for counts in product(*(range(num + 1) for num in reversed(self._class_sizes)))
        ]
        size = max(map(len, ordered))
        return torch.tensor([front + [(2 * NO_LIMIT,) * 2] * (size - len(front)) for front in ordered])

    @staticmethod
    def _fits(point: Point, budget: Sequence[int]) -> bool:
        return all(cost <= left for cost, left in zip(point, budget, strict=True))


def _pareto(points: Sequence[Point]) -> list[Point]:
    """Return the points, sorted, that no other point undercuts."""
    front: list[Point] = []
    for point in points:
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _point(cost: OperationCost) -> Point:
    return cost.num_parameters, cost.multiply_adds


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


class CellEnv(SlotEnv):
    """Cells with places for operations, filled in any order; finished when all are."""

    def __init__(self, cell: Cell, caps: CostCaps | None = None) -> None:
        super().__init__(
            cell.places, Attribute("operation", cell.operations), (None, None) if caps is None else caps.caps
        )
        self.cell, self.caps = cell, caps
        self._graphs = CellGraphs(cell) if has_graph(cell) else None

    def sizes(self, states: GraphStates) -> Tensor:
        """Return the costs with a cap, [B, K]."""
        if self.caps is None:
            return super().sizes(states)
        return self.caps.sizes(states.node_attr[:, :, 0])[:, self.limited]

    @property
    def smallest_sizes(self) -> tuple[int, ...]:
        """Return the smallest costs within the caps."""
        return () if self.caps is None else tuple(self.caps.least()[axis] for axis in self.limited)

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        """Return the graphs of the operations, with the operations of all places."""
        return (
            super().labelled_graphs(states) if self._graphs is None else self._graphs(states.node_attr[:, :, 0].long())
        )

    def forward_rules(self, states: GraphStates) -> Rules:
        is_empty = states.node_attr == UNSET
        stop = [Rule("a place is empty", ~is_empty.flatten(1).any(1)[:, None, None])]
        set_operation = [Rule("the place is taken", is_empty)]
        if self.caps is not None:
            positions, caps = states.node_attr[:, :, 0], self.caps_of(states)
            stop.append(Rule("the network exceeds a cap", self.caps.is_within(positions, caps)[:, None, None]))
            set_operation.append(Rule("no network within the caps has it", self.caps.allowed(positions, caps)))
        return {Kind.Stop: stop, Kind.SetNodeAttr: set_operation}

    def backward_rules(self, states: GraphStates) -> Rules:
        return {Kind.RemoveNodeAttr: [Rule("the place is empty", states.node_attr != UNSET)]}


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
