"""Factories of the small environments that the contract suites run over."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from gflownet.envs.cell_networks import Cell
from gflownet.envs.cells import CellsContext, cell_env
from gflownet.envs.choice_limits import ListedSettings, SummedCosts
from gflownet.envs.choice_places import read_places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import CellsEnvConfig, EnvConfig, RecurrentStackConfig
from gflownet.envs.graph_building import GraphBuildingEnv, LabelledDAGEnv
from gflownet.envs.operation_graph import OperationGraphEnv
from gflownet.envs.slots import BitSequenceEnv, HypergridEnv
from gflownet.envs.tensor_graph import TensorGraphEnv
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import Attribute
from gflownet.operations.tensor_shape import Shape
from tasks.catalogue import CatalogueEnv
from tasks.recurrent_stacks import RecurrentStackEnv


def computation_graphs(**changes) -> ComputationGraphEnv:
    options = {
        "activations": ("relu", "tanh"),
        "aggregations": ("sum", "max"),
        "hidden_sizes": (4, 8),
        "max_hidden_nodes": 1,
        "max_edges": 3,
    }
    sizes = {"input_sizes": (3,), "output_sizes": (2,)}
    sizes = {key: changes.pop(key, value) for key, value in sizes.items()}
    return ComputationGraphEnv(**sizes, **{**options, **changes})


def cells(name: Literal["nb201", "nb_macro", "nb101"], **options) -> Environment:
    return CellsContext.build_env(
        EnvConfig(cells=CellsEnvConfig(name=name, **options)), input_sizes=(), output_sizes=()
    )


# Conditions on one place, on several, on values of which one must hold, and nested; values of all types.
PLACES = {
    "kind": ["conv", "pool", "attention"],
    "kernel": {"values": [3, "5"], "only_if": {"kind": ["conv", "pool"]}},
    "bias": {"values": [True, False], "only_if": {"kind": "conv"}},
    "dilation": {"values": "1..2", "only_if": {"kind": "conv", "kernel": 3}},
    "heads": {"values": [1, 2, 4], "only_if": {"kind": "attention"}},
    "drop": [0.0, 0.5],
}


def choices() -> ChoicesEnv:
    return ChoicesEnv(read_places(PLACES))


def capped_choices() -> ChoicesEnv:
    """Settings with an even number of odd positions: no cap on a sum of costs is as hard to reach."""
    places = read_places(PLACES)
    return ChoicesEnv(places, ListedSettings(places, tuple(s for s in places.settings() if parity(s) == 0)))


def parity(setting: Mapping[str, Any]) -> int:
    values = {place.name: place.values for place in read_places(PLACES).places}
    return sum(values[name].index(value) for name, value in setting.items()) % 2


def capped_cells(caps: tuple[int | None, int | None] = (17, 20)) -> ChoicesEnv:
    """Layers with equal and with different costs, and two caps of which neither implies the other."""
    layer = ((0, 0), (3, 1), (1, 4))
    costs = SummedCosts((10, 10), (layer, layer, layer, ((2, 2), (5, 1), (1, 4))), caps)
    return cell_env(Cell(("a", "b", "c", "d"), ("none", "conv", "pool")), costs)


def tensor_graphs(**changes) -> TensorGraphEnv:
    options = {
        "inputs": {"a": (2,), "b": (3,)},
        "operations": ("transform", "+", "-", "*"),
        "functions": ("tanh",),
        "new_extents": (),
        "max_operations": 1,
        "max_rank": 2,
    }
    return TensorGraphEnv(**{**options, **changes})


CONVOLUTIONS = {
    "conv2d": {"features": [4, 8], "kernel_size": [1, 3], "stride": 1, "dilation": 1},
    "max_pool2d": {"kernel_size": 2},
}


def operation_graphs(inputs=((3, 8, 8),), output: int | Shape = 5, **changes) -> OperationGraphEnv:
    """Return networks of one convolution with two settings, batch norm and pooling."""
    options = {
        "operations": ("conv2d", "batch_norm", "max_pool2d"),
        "choices": CONVOLUTIONS,
        "max_hidden_nodes": 2,
        "max_edges": 4,
    }
    shapes = [sizes if isinstance(sizes, Shape) else Shape.of(sizes) for sizes in inputs]
    return OperationGraphEnv(shapes, output, **{**options, **changes})


def listed_graphs() -> list[ColouredGraph]:
    """Return 30 small graphs without and with symmetries, some of them isomorphic."""
    colours = ["a", "b", "c"]
    return [
        ColouredGraph((first, second, "out"), dict.fromkeys(edges, "edge"))
        for first in colours
        for second in colours
        for edges in ([(0, 2), (1, 2)], [(0, 1), (1, 2)], [(0, 1), (0, 2), (1, 2)], [(0, 2)])
    ]


def recurrent_stacks(**changes) -> RecurrentStackEnv:
    options = {"ranks": [2, 4], "ratios": [2.0], "projections": ["up", "gate+down"], "max_depth": 2}
    return RecurrentStackEnv(RecurrentStackConfig(**{**options, **changes}))


ENVIRONMENTS: dict[str, Callable[[], Environment]] = {
    "catalogue": lambda: CatalogueEnv(listed_graphs(), branching=3),
    "catalogue_of_cells": lambda: CatalogueEnv([Assignment(("a", "b"), (x, y)) for x in "xyz" for y in range(4)]),
    "undirected": lambda: GraphBuildingEnv(["a", "b"], max_nodes=4),
    "undirected_fixed_size": lambda: GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5),
    "undirected_attributes": lambda: GraphBuildingEnv(
        ["a"],
        max_nodes=3,
        node_attributes=[Attribute("charge", (-1, 1)), Attribute("mark", ("x",))],
        edge_attributes=[Attribute("bond", (1, 2))],
    ),
    "directed": lambda: GraphBuildingEnv(["a", "b"], max_nodes=4, directed=True),
    "directed_attributes": lambda: GraphBuildingEnv(
        ["a"], max_nodes=3, directed=True, edge_attributes=[Attribute("gain", (1, 2)), Attribute("delay", (0, 1))]
    ),
    "labelled_dag": lambda: LabelledDAGEnv(4),
    "computation_graph": computation_graphs,
    "computation_graph_two_hidden": lambda: computation_graphs(
        activations=("relu",), aggregations=("sum",), hidden_sizes=(4,), max_hidden_nodes=3, max_edges=6
    ),
    "computation_graph_ordered": lambda: computation_graphs(
        activations=("relu",), aggregations=("sum", "concat"), hidden_sizes=(4,), max_hidden_nodes=2, max_edges=5
    ),
    "computation_graph_ordered_output": lambda: computation_graphs(
        activations=("relu",),
        aggregations=("concat",),
        hidden_sizes=(4, 8),
        max_hidden_nodes=2,
        max_edges=4,
        output_aggregation="concat",
    ),
    "computation_graph_many_ends": lambda: computation_graphs(
        input_sizes=(3, 2), output_sizes=(2, 4), activations=("relu",), max_edges=4, hidden_sizes=(4,)
    ),
    "computation_graph_recurrent": lambda: computation_graphs(
        activations=("relu",),
        aggregations=("sum", "concat"),
        hidden_sizes=(4,),
        max_hidden_nodes=1,
        max_edges=4,
        allow_recurrent=True,
    ),
    "operation_graph": operation_graphs,
    "operation_graph_tight": lambda: operation_graphs(
        choices={**CONVOLUTIONS, "conv2d": {**CONVOLUTIONS["conv2d"], "stride": [1, 2]}},
        max_parameters=300,
        max_multiply_adds=8_000,
    ),
    "operation_graph_projections": lambda: operation_graphs(
        inputs=((3, 8, 8), (6, 4, 4)),
        operations=("conv2d", "identity"),
        choices={
            "conv2d": {"features": 4, "kernel_size": 1, "stride": [1, 2], "dilation": 1},
            "identity": {"merge": ["sum", "max"], "activation": ["relu", "linear"]},
        },
        align="auto",
        max_parameters=95,
    ),
    "operation_graph_layouts": lambda: operation_graphs(
        inputs=((3,), (2, 4, 4)),
        operations=("linear", "patchify"),
        choices={"linear": {"features": [2, 4]}, "patchify": {"features": 3, "patch_size": 2, "activation": "linear"}},
        activations=("relu", "gelu"),
        max_parameters=60,
    ),
    "operation_graph_positions": lambda: operation_graphs(
        output=Shape.of((5, 8, 8)),
        operations=("conv2d", "max_pool2d", "upsample", "torch.nn:Flatten"),
        choices={**CONVOLUTIONS, "upsample": {"mode": "nearest"}},
        max_parameters=120,
    ),
    "operation_graph_tokens": lambda: operation_graphs(
        inputs=(Shape.of([7], "tokens"),),
        output=Shape.of((7, 5)),
        operations=("embedding", "linear"),
        choices={"embedding": {"vocabulary_size": 9, "features": [3, 4]}, "linear": {"features": [3, 5]}},
        max_parameters=80,
    ),
    # Nine attributes: more than fit into one number with the type of a node.
    "operation_graph_modules": lambda: operation_graphs(
        operations=("torch.nn:Conv2d", "torch.nn:ELU", "torch.nn:Softplus", "torch.nn:LPPool2d"),
        choices={
            "torch.nn:Conv2d": {
                "out_channels": 4,
                "kernel_size": [[1, 3], [3, 1]],
                "padding": ["same", [1, 0]],
                "bias": [True, False],
                "padding_mode": ["zeros", "reflect"],
                "activation": ["torch.nn:Mish", "torch:exp"],
            },
            "torch.nn:ELU": {"alpha": [1, 2.5], "merge": ["sum", "max"]},
            "torch.nn:Softplus": {"beta": [1, 2]},
            "torch.nn:LPPool2d": {"norm_type": [1, 2], "kernel_size": [[1, 3]]},
        },
        max_hidden_nodes=1,
        max_edges=3,
        max_parameters=70,
    ),
    "operation_graph_ports": lambda: operation_graphs(
        inputs=((3,), (4,)),
        operations=("torch:sub", "torch.nn:Bilinear"),
        choices={"torch.nn:Bilinear": {"out_features": [2, 3]}},
        max_parameters=60,
        align="auto",
    ),
    "operation_graph_three_ports": lambda: operation_graphs(
        inputs=((2, 4),),
        operations=("torch.nn:MultiheadAttention",),
        choices={"torch.nn:MultiheadAttention": {"num_heads": [1, 2], "output": 0}},
        max_hidden_nodes=1,
    ),
    "operation_graph_shared": lambda: operation_graphs(
        inputs=((3,),),
        operations=("linear",),
        choices={"linear": {"features": 3, "bias": [True, False]}},
        share=True,
        max_parameters=41,
        max_multiply_adds=35,
    ),
    "hypergrid": lambda: HypergridEnv(3, 4),
    "bit_sequence": lambda: BitSequenceEnv(6, 2),
    "cells": lambda: cell_env(Cell(("a", "b", "c", "d"), ("none", "skip", "conv"))),
    "cells_capped": capped_cells,
    "cells_nb101": lambda: cells("nb101", max_vertices=4),
    "choices": choices,
    "choices_capped": capped_choices,
    "recurrent_stack": recurrent_stacks,
    "recurrent_stack_of_gru": lambda: recurrent_stacks(cells=["gru"], max_depth=3, widths=[8, 16]),
    "tensor_graph": lambda: tensor_graphs(inputs={"a": (2, 2), "b": (2, 3)}),
    "tensor_graph_equal_inputs": lambda: tensor_graphs(inputs={"a": (2, 2), "b": (2, 2)}, functions=()),
    "tensor_graph_new_indices": lambda: tensor_graphs(
        inputs={"a": (2,)}, operations=("transform", "*", "-"), functions=(), new_extents=(2, 3), max_operations=2
    ),
    "tensor_graph_joined": lambda: tensor_graphs(
        inputs={"a": (2,), "s": ()}, operations=("*", "-"), max_operations=3, max_rank=0
    ),
}
