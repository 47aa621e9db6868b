"""Designs of cell spaces: places and operations of a benchmark or of a config, and the skeleton around the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.envs.cell_networks import Cell, EdgeNetworks, GraphNetworks, LayerNetworks, ends_of
from gflownet.envs.config import CellsEnvConfig
from gflownet.envs.skeleton import Skeleton, Step, read_skeleton, read_steps
from gflownet.errors import UserError
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
