"""Options of the environment: the space of architectures that is searched."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from gflownet.errors import UserError
from gflownet.operations.vocabulary import ACTIVATIONS, AGGREGATIONS
from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Interval, option
from gflownet.plugins import HIGHER_ROWS, BuiltIn, ExtensionPoint, check_name

ENVIRONMENTS = ExtensionPoint(
    "env.name",
    contract="gflownet.mdp.context:GraphBuildingEnvContext",
    options_key="env.options",
    group="gflownet.environments",
    built_in={
        "computation_graph": BuiltIn(
            "gflownet.envs.computation_graph:ComputationGraphEnvContext", "networks of activations and aggregations"
        ),
        "coloured_graph": BuiltIn("gflownet.envs.graph_building:ColouredGraphContext", "connected coloured graphs"),
        "labelled_dag": BuiltIn("gflownet.envs.graph_building:LabelledDAGContext", "DAGs over named variables"),
        "hypergrid": BuiltIn("gflownet.envs.slots:HypergridContext", "points of a grid"),
        "bit_sequence": BuiltIn("gflownet.envs.slots:BitSequenceContext", "bit strings of fixed length"),
        "cells": BuiltIn("gflownet.envs.cells:CellsContext", "cells of NAS benchmarks, or your own"),
        "tensor_graph": BuiltIn("gflownet.envs.tensor_graph:TensorGraphContext", "programs in index notation"),
        "choices": BuiltIn("gflownet.envs.choices:ChoicesContext", "choices in your own code"),
        "operation_graph": BuiltIn("gflownet.envs.operation_graph:OperationGraphContext", "networks of operations"),
        **HIGHER_ROWS["environment"],
    },
)


@dataclass
class ColouredGraphConfig:
    """Connected graphs with coloured nodes (env.name=coloured_graph)."""

    max_nodes: int = option(6, "maximum number of nodes", Interval(1, 127))
    directed: bool = option(False, "directed acyclic graphs with a single source")


@dataclass
class LabelledDAGConfig:
    """Directed acyclic graphs over named variables (env.name=labelled_dag)."""

    num_nodes: int = option(5, "number of variables", Interval(1, 127))


@dataclass
class HypergridConfig:
    """Grids whose coordinates are raised one at a time (env.name=hypergrid)."""

    num_dims: int = option(2, "number of coordinates", Interval(1, 127))
    side: int = option(8, "values of a coordinate", Interval(2, 128))


@dataclass
class BitSequenceConfig:
    """Bits in words, written from left to right (env.name=bit_sequence)."""

    num_bits: int = option(12, "length of a sequence", AT_LEAST_ONE)
    word_bits: int = option(3, "bits written at once, 1 to 6; divides num_bits", Interval(1, 6))


@dataclass
class CellsEnvConfig:
    """Cells in a network (env.name=cells)."""

    name: Literal["nb201", "nb_macro", "nb101", "edges", "layers"] = option(
        "nb201",
        "nb201, nb_macro, nb101, or your own operations: on edges of a repeated cell (edges), of layers (layers)",
    )
    max_vertices: int = option(5, "nb101: maximum number of vertices, input and output included", Interval(2, 127))
    operations: Any = option({}, "edges, layers: operations by name, {name: operation of the vocabulary}")
    edges: list[str] = option([], "edges: edges of the cell such as 2<-1, from node 0, its input, to the last node")
    skeleton: Any = option({}, "network around the cells: stem, stages, reduction, head; defaults of the benchmark")
    max_parameters: int | None = option(None, "maximum number of parameters of a network; null: no cap", NOT_NEGATIVE)
    max_multiply_adds: int | None = option(None, "maximum number of multiply-adds; null: no cap", NOT_NEGATIVE)


@dataclass
class TensorGraphConfig:
    """Tensor programs in index notation (env.name=tensor_graph)."""

    inputs: list[str] = option(["A[4,4]", "B[4,4]"], "inputs of the programs, name and shape")
    functions: list[str] = option(["tanh"], "functions that an operation may end with")
    max_operations: int = option(2, "maximum number of operations", AT_LEAST_ONE)


@dataclass
class RecurrentStackConfig:
    """Stacks of recurrent layers (env.name=recurrent_stack)."""

    cells: list[str] = option(["rhn", "gru", "lstm"], "cells a layer may have: rhn, gru and lstm")
    max_depth: int = option(4, "maximum number of layers", Interval(1, 41))
    ranks: list[int] = option([2, 4, 8], "ranks of adapters of RHN layers", AT_LEAST_ONE)
    ratios: list[float] = option([1.0, 2.0, 4.0], "feed-forward width of RHN layers over their width", POSITIVE)
    projections: list[str] = option(
        ["gate", "up", "down", "gate+up", "gate+down", "up+down", "gate+up+down"],
        "projections that an RHN layer may adapt, + between several",
    )
    betas: list[str] = option(["on", "off"], "whether the gate's pre-activation is adapted")
    widths: list[int] = option([], "widths to choose from; empty: the task sets it by a parameter budget", AT_LEAST_ONE)


@dataclass
class ChoicesConfig:
    """Places with values, for your own code (env.name=choices)."""

    places: Any = option({}, "places and their values, such as {kernel: [3, 5, 7], depth: 1..6}")
    cost: str = option("", "module:function of a complete setting: its parameters and multiply-adds, for the caps")
    max_parameters: int | None = option(None, "maximum number of parameters; null: no cap", NOT_NEGATIVE)
    max_multiply_adds: int | None = option(None, "maximum number of multiply-adds; null: no cap", NOT_NEGATIVE)


@dataclass
class CatalogueConfig:
    """Graphs listed in a file (env.name=catalogue)."""

    graphs: str = option("", "path of the list: JSON lines with a graph or recipe each, gzipped or not")


@dataclass
class OperationGraphConfig:
    """Networks of tensor operations (env.name=operation_graph)."""

    operations: list[str] = option(["conv2d", "batch_norm", "max_pool2d"], "operations a node may have, by name")
    choices: Any = option(
        {}, "values of an operation's settings, its activation and merge: choices.conv2d.features=[8,16]"
    )
    activations: list[str] = option(["relu"], "activation functions after convolutions, linear and normalising layers")
    align: Literal["pad", "auto"] = option(
        "pad", "inputs with fewer channels: pad with zeros, or auto: a learned projection"
    )
    share: bool = option(False, "let nodes with equal operations, settings and input shapes share one module")
    max_hidden_nodes: int = option(6, "maximum number of nodes between inputs and output", Interval(0, 127))
    max_edges: int = option(10, "maximum number of edges", AT_LEAST_ONE)
    max_parameters: int | None = option(None, "maximum number of trainable parameters; null: no limit", NOT_NEGATIVE)
    max_multiply_adds: int | None = option(None, "maximum multiply-adds of one example; null: no limit", NOT_NEGATIVE)


@dataclass
class EnvConfig:
    """Vocabulary, sizes and limits of the graphs that are built."""

    name: str = option("computation_graph", ENVIRONMENTS.help("search space"))
    options: Any = option({}, "options of your own environment, env.options.NAME=VALUE")
    activations: list[str] = option(
        ["relu", "tanh", "sigmoid", "gelu", "linear"], "activation functions a hidden node may have"
    )
    aggregations: list[str] = option(["sum", "mean", "max", "concat"], "ways a hidden node may combine its inputs")
    output_sizes: list[int] = option([2, 4, 8, 16, 32], "widths a hidden node may have, in features", AT_LEAST_ONE)
    max_hidden_nodes: int = option(6, "maximum number of hidden nodes", AT_LEAST_ONE)
    max_edges: int = option(10, "maximum number of edges", AT_LEAST_ONE)
    allow_recurrent: bool = option(False, "let edges carry the previous time step's output (recurrent edges)")
    output_aggregation: str = option("sum", "how the output nodes combine their inputs")
    start: str = option(
        "", "network from which a surrogate search starts: a run folder or file with architectures (:RANK), or a graph"
    )
    coloured_graph: ColouredGraphConfig = field(default_factory=ColouredGraphConfig)
    labelled_dag: LabelledDAGConfig = field(default_factory=LabelledDAGConfig)
    hypergrid: HypergridConfig = field(default_factory=HypergridConfig)
    bit_sequence: BitSequenceConfig = field(default_factory=BitSequenceConfig)
    cells: CellsEnvConfig = field(default_factory=CellsEnvConfig)
    choices: ChoicesConfig = field(default_factory=ChoicesConfig)
    tensor_graph: TensorGraphConfig = field(default_factory=TensorGraphConfig)
    recurrent_stack: RecurrentStackConfig = field(default_factory=RecurrentStackConfig)
    catalogue: CatalogueConfig = field(default_factory=CatalogueConfig)
    operation_graph: OperationGraphConfig = field(default_factory=OperationGraphConfig)


def check_env(config: EnvConfig) -> None:
    """Raise UserError for a name that is no activation or aggregation."""
    if config.name not in ENVIRONMENTS:  # a class of a user
        return
    _check_names("env.activations", config.activations, ACTIVATIONS)
    _check_names("env.aggregations", config.aggregations, AGGREGATIONS)
    _check_names("env.output_aggregation", [config.output_aggregation], AGGREGATIONS)


def _check_names(key: str, names: Collection[str], point: ExtensionPoint) -> None:
    if not names:
        raise UserError(f"{key}: expected at least one of {', '.join(point)}, got []")
    for name in names:
        check_name(key, name, point.homes)
