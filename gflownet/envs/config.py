"""Options of the environment: the space of architectures that is searched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class ColouredGraphConfig:
    """Connected graphs with coloured nodes (env.name=coloured_graph)."""

    colours: list[str] = field(
        default_factory=lambda: ["red", "blue"], metadata={"help": "colours a node may have, by name"}
    )
    max_nodes: int = field(default=6, metadata={"help": "most nodes of a graph"})
    min_nodes: int = field(default=1, metadata={"help": "fewest nodes of a finished graph"})
    directed: bool = field(default=False, metadata={"help": "directed acyclic graphs with a single source"})


@dataclass
class LabelledDAGConfig:
    """Directed acyclic graphs over named variables (env.name=labelled_dag)."""

    num_nodes: int = field(default=5, metadata={"help": "number of variables"})


@dataclass
class HypergridConfig:
    """Grids whose coordinates are raised one at a time (env.name=hypergrid)."""

    num_dims: int = field(default=2, metadata={"help": "number of coordinates"})
    side: int = field(default=8, metadata={"help": "values of a coordinate"})


@dataclass
class BitSequenceConfig:
    """Bits in words, written from left to right (env.name=bit_sequence)."""

    num_bits: int = field(default=12, metadata={"help": "length of a sequence"})
    word_bits: int = field(default=3, metadata={"help": "bits written at once, 1 to 6; divides num_bits"})


@dataclass
class CellSpaceConfig:
    """Cells of a tabular benchmark (env.name=cell_space)."""

    name: Literal["nb201", "nb_macro", "nb101"] = field(
        default="nb201", metadata={"help": "the benchmark: nb201, nb_macro or nb101"}
    )
    max_vertices: int = field(default=5, metadata={"help": "nb101: most vertices of a cell, input and output too"})
    max_edges: int = field(default=9, metadata={"help": "nb101: most edges of a cell"})


@dataclass
class TensorGraphConfig:
    """Tensor programs in index notation (env.name=tensor_graph)."""

    inputs: list[str] = field(
        default_factory=lambda: ["A[4,4]", "B[4,4]"], metadata={"help": "what programs start from, name and shape"}
    )
    operations: list[str] = field(
        default_factory=lambda: ["transform", "+", "-", "*"], metadata={"help": "operations: transform, +, - and *"}
    )
    functions: list[str] = field(
        default_factory=lambda: ["tanh"], metadata={"help": "functions that an operation may end with"}
    )
    new_extents: list[int] = field(
        default_factory=list, metadata={"help": "extents that a transform's new index may have"}
    )
    max_operations: int = field(default=2, metadata={"help": "most operations of a program"})
    max_rank: int = field(default=3, metadata={"help": "most axes of an operation's result"})


@dataclass
class RecurrentStackConfig:
    """Stacks of recurrent layers (env.name=recurrent_stack)."""

    cells: list[str] = field(
        default_factory=lambda: ["rhn", "gru", "lstm"], metadata={"help": "cells a layer may have: rhn, gru and lstm"}
    )
    min_depth: int = field(default=1, metadata={"help": "fewest layers"})
    max_depth: int = field(default=4, metadata={"help": "most layers"})
    sharing: bool = field(default=True, metadata={"help": "let a layer repeat the one before, with the same weights"})
    ranks: list[int] = field(default_factory=lambda: [2, 4, 8], metadata={"help": "ranks of adapters of RHN layers"})
    ratios: list[float] = field(
        default_factory=lambda: [1.0, 2.0, 4.0], metadata={"help": "feed-forward width of RHN layers over their width"}
    )
    projections: list[str] = field(
        default_factory=lambda: ["gate", "up", "down", "gate+up", "gate+down", "up+down", "gate+up+down"],
        metadata={"help": "projections that an RHN layer may adapt, + between several"},
    )
    betas: list[str] = field(
        default_factory=lambda: ["on", "off"], metadata={"help": "whether the gate's pre-activation is adapted"}
    )
    widths: list[int] = field(
        default_factory=list, metadata={"help": "widths to choose from; empty: the task sets it by a parameter budget"}
    )


@dataclass
class EnvConfig:
    """Vocabulary, sizes and limits of the graphs that are built."""

    name: str = field(
        default="computation_graph",
        metadata={
            "help": "the environment: computation_graph, coloured_graph, labelled_dag, hypergrid, bit_sequence, "
            "cell_space, tensor_graph, recurrent_stack, or module:Class of your own"
        },
    )
    activations: list[str] = field(
        default_factory=lambda: ["relu", "tanh", "sigmoid", "gelu", "linear"],
        metadata={"help": "activation functions a hidden node may have"},
    )
    aggregations: list[str] = field(
        default_factory=lambda: ["sum", "mean", "max", "concat"],
        metadata={"help": "ways a hidden node may combine its inputs"},
    )
    output_sizes: list[int] = field(
        default_factory=lambda: [2, 4, 8, 16, 32], metadata={"help": "widths a hidden node may have, in features"}
    )
    max_hidden_nodes: int = field(default=6, metadata={"help": "most hidden nodes of a graph"})
    max_edges: int = field(default=10, metadata={"help": "most edges of a graph"})
    allow_recurrent: bool = field(
        default=False, metadata={"help": "let edges carry the previous time step's output (recurrent edges)"}
    )
    output_activation: str = field(default="linear", metadata={"help": "activation function of the output nodes"})
    output_aggregation: str = field(default="sum", metadata={"help": "how the output nodes combine their inputs"})
    coloured_graph: ColouredGraphConfig = field(default_factory=ColouredGraphConfig)
    labelled_dag: LabelledDAGConfig = field(default_factory=LabelledDAGConfig)
    hypergrid: HypergridConfig = field(default_factory=HypergridConfig)
    bit_sequence: BitSequenceConfig = field(default_factory=BitSequenceConfig)
    cell_space: CellSpaceConfig = field(default_factory=CellSpaceConfig)
    tensor_graph: TensorGraphConfig = field(default_factory=TensorGraphConfig)
    recurrent_stack: RecurrentStackConfig = field(default_factory=RecurrentStackConfig)


ENVIRONMENTS = {
    "computation_graph": "gflownet.envs.computation_graph:ComputationGraphEnvContext",
    "coloured_graph": "gflownet.envs.coloured_graph:ColouredGraphContext",
    "labelled_dag": "gflownet.envs.labelled_dag:LabelledDAGContext",
    "hypergrid": "gflownet.envs.hypergrid:HypergridContext",
    "bit_sequence": "gflownet.envs.bit_sequence:BitSequenceContext",
    "cell_space": "gflownet.envs.cell_space:CellSpaceContext",
    "tensor_graph": "gflownet.envs.tensor_graph:TensorGraphContext",
    "recurrent_stack": "gflownet.envs.recurrent_stack:RecurrentStackContext",
}
