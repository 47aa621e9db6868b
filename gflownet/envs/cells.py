"""Cells in networks: places for operations (NAS-Bench-201, NAS-Bench-Macro, your own), or small graphs of them (101).

Cells are identified by their places: two cells of NAS-Bench-201 with the same function are two cells, as in its table.
In the graph of the operations of a cell with places, nodes 0 .. S - 1 are the operations, S is the input, S + 1 the
output.

Letters: B states or cells, S places, V operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.cell_networks import Cell, EdgeNetworks, GraphNetworks, LayerNetworks, ends_of
from gflownet.envs.choice_limits import SummedCosts
from gflownet.envs.choice_places import Place, Places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.envs.skeleton import Skeleton, Step, read_skeleton, read_steps
from gflownet.errors import UserError
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import NO_EDGE, UNSET, GraphStates, LabelledGraphs
from gflownet.operations.tensor_shape import Shape

KEY = "env.cells"
# Images and classes of CIFAR-10, for a task that names none.
CIFAR_SHAPE, CIFAR_CLASSES = Shape.of((3, 32, 32)), 10

# Dong and Yang 2020: the edges of a graph of four nodes.
NAS_BENCH_201 = Cell(
    ("1<-0", "2<-0", "2<-1", "3<-0", "3<-1", "3<-2"),
    ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"),
    zeros=("none",),
)
# Su et al. 2021: eight layers, identity or an inverted bottleneck.
NAS_BENCH_MACRO = Cell(tuple(f"layer{i}" for i in range(8)), ("identity", "mb3_k3", "mb6_k5"))
CELLS = {"nb201": NAS_BENCH_201, "nb_macro": NAS_BENCH_MACRO}
# Ying et al. 2019.
NB101_OPERATIONS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")

OPERATIONS: dict[str, dict[str, Any]] = {
    "nb201": {
        "none": "zero",
        "skip_connect": "identity",
        "nor_conv_1x1": {"name": "relu_conv_bn", "kernel_size": 1},
        "nor_conv_3x3": {"name": "relu_conv_bn", "kernel_size": 3},
        "avg_pool_3x3": {"name": "avg_pool2d", "kernel_size": 3, "stride": 1, "padding": "same"},
    },
    "nb_macro": {
        "identity": "identity",
        "mb3_k3": {"name": "inverted_bottleneck", "expansion": 3, "kernel_size": 3},
        "mb6_k5": {"name": "inverted_bottleneck", "expansion": 6, "kernel_size": 5},
    },
    "nb101": {
        "conv3x3-bn-relu": {"name": "conv_bn_relu", "kernel_size": 3},
        "conv1x1-bn-relu": {"name": "conv_bn_relu", "kernel_size": 1},
        "maxpool3x3": {"name": "max_pool2d", "kernel_size": 3, "stride": 1, "padding": "same"},
    },
}
_STEM = {"name": "conv2d", "kernel_size": 3, "bias": False}
_RELU6 = {"name": "batch_norm", "activation": "relu6"}
SKELETONS: dict[str, dict[str, Any]] = {
    "nb201": {
        "stem": [_STEM, "batch_norm"],
        "stages": [{"features": features, "repeat": 5} for features in (16, 32, 64)],
        "reduction": "residual_reduction",
        "head": {"name": "batch_norm", "activation": "relu"},
    },
    "nb_macro": {
        "stem": [{**_STEM, "features": 32}, _RELU6],
        "stages": [
            {"features": 64, "repeat": 2, "stride": 2},
            {"features": 128, "repeat": 3, "stride": 2},
            {"features": 256, "repeat": 3, "stride": 2},
        ],
        "head": [{"name": "conv2d", "features": 1280, "kernel_size": 1, "bias": False}, _RELU6],
    },
    "nb101": {
        "stem": {"name": "conv_bn_relu", "kernel_size": 3},
        "stages": [{"features": features, "repeat": 3} for features in (128, 256, 512)],
        "reduction": "max_pool2d",
    },
}


@dataclass(frozen=True)
class CellDesign:
    """The operations of cells and the skeleton around them."""

    cell: Cell | None  # None: cells are graphs
    has_layers: bool  # the places are layers, not edges of a repeated cell
    operations: Mapping[str, Sequence[Step]]
    skeleton: Skeleton

    def networks(self, input_shape: Shape, num_outputs: int) -> EdgeNetworks | LayerNetworks | GraphNetworks:
        """Return the networks for the inputs and outputs of a task."""
        sizes: dict[str, Any] = {"input_shape": input_shape, "num_outputs": num_outputs}
        if self.cell is None:
            return GraphNetworks(self.operations, self.skeleton, **sizes)
        kind = LayerNetworks if self.has_layers else EdgeNetworks
        return kind(self.cell, self.operations, self.skeleton, **sizes)


def read_design(config: CellsEnvConfig) -> CellDesign:
    """Return the design of `env.cells`; options of the skeleton replace those of the benchmark, one by one.

    Raises:
        UserError: an invalid operation, edge or skeleton.
    """
    name = config.name
    is_benchmark = name in SKELETONS
    if is_benchmark and (config.operations or config.edges):
        option = "operations" if config.operations else "edges"
        raise UserError(f"{KEY}.{option}: expected none with {KEY}.name={name}, whose cells are fixed")
    declared = OPERATIONS[name] if is_benchmark else config.operations
    operations = {str(key): read_steps(value, f"{KEY}.operations.{key}") for key, value in declared.items()}
    if not operations or not all(operations.values()):
        raise UserError(f"{KEY}.operations: expected operations by name with {KEY}.name={name}, got {dict(declared)}")
    skeleton = read_skeleton({**SKELETONS.get(name, {}), **config.skeleton})
    cell = None if name == "nb101" else CELLS.get(name) or _own_cell(config, skeleton, operations)
    has_layers = name in ("nb_macro", "layers")
    if has_layers and cell is not None and len(cell.places) != skeleton.num_layers:
        expected, got = len(cell.places), skeleton.num_layers
        raise UserError(f"{KEY}.skeleton.stages: expected {expected} layers in all, got {got}")
    return CellDesign(cell, has_layers, operations, skeleton)


def _own_cell(config: CellsEnvConfig, skeleton: Skeleton, operations: Mapping[str, Sequence[Step]]) -> Cell:
    zeros = tuple(name for name, steps in operations.items() if any(step.name == "zero" for step in steps))
    if config.name == "layers":
        return Cell(tuple(f"layer{i}" for i in range(skeleton.num_layers)), tuple(operations), zeros)
    edges = tuple(config.edges)
    _check_edges(edges)
    return Cell(edges, tuple(operations), zeros)


def _check_edges(edges: Sequence[str]) -> None:
    """Raise UserError unless edges `target<-source` join node 0 to the last node, every node between on a path."""
    try:
        ends = [ends_of(edge) for edge in edges]
    except ValueError:
        ends = []
    last = max((target for target, _ in ends), default=0)
    targets, sources = {target for target, _ in ends}, {source for _, source in ends}
    is_ordered = all(0 <= source < target for target, source in ends) and len(set(ends)) == len(ends)
    if not ends or not is_ordered or targets != set(range(1, last + 1)) or sources != set(range(last)):
        raise UserError(
            f"{KEY}.edges: expected different edges such as [1<-0, 2<-0, 2<-1] from nodes to later nodes, every node "
            f"on a path from node 0 to the last one, got {list(edges)}"
        )


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
        if not is_table(config.env.cells):
            read_design(config.env.cells)

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[Any], output_sizes: Sequence[Any]) -> Environment:
        """Return the environment; the sizes of the task (CIFAR-10's by default) count for caps only."""
        cells = config.cells
        if cells.name == "nb101":
            if has_caps(cells):
                raise UserError("env.cells: expected no max_parameters and max_multiply_adds with name=nb101, got some")
            _ = is_table(cells) or read_design(cells)  # options that do not fit
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
