"""Networks of cells: parameters and multiply-adds of the benchmarks' tables, and networks of a user's own cells."""

import random
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gflownet.envs.cell_networks import GraphNetworks, SlotNetworks, in_topological_order, vertex_channels
from gflownet.envs.cells import CIFAR_CLASSES, CIFAR_SHAPE, CellsContext, read_design
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.errors import UserError
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import OperationCost, graph_cost
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.translation import to_pytorch_model
from tasks.cells import graph_of_row
from tests.benchmark_tables import real_rows

DIGITS = Shape.of((1, 8, 8))
OWN_EDGES = {
    "name": "edges",
    "edges": ["1<-0", "2<-0", "2<-1"],
    "operations": {
        "none": "zero",
        "conv": {"name": "conv_bn_relu", "kernel_size": 3},
        "pool": {"name": "max_pool2d", "kernel_size": 3, "stride": 1, "padding": "same"},
        "two": [{"name": "separable_conv_bn_relu"}, {"name": "identity", "activation": "gelu"}],
    },
    "skeleton": {
        "stem": "conv_bn_relu",
        "stages": [{"features": 4, "repeat": 2}, {"features": 6}],
        "reduction": {"name": "conv_bn_relu", "stride": 2},
        "head": "dropout",
    },
}
OWN_LAYERS = {
    "name": "layers",
    "operations": {
        "skip": "identity",
        "conv": {"name": "conv_bn_relu", "kernel_size": 3},
        "pool": {"name": "avg_pool2d", "kernel_size": 3, "stride": 1, "padding": "same"},
    },
    "skeleton": {"stages": [{"features": 4, "repeat": 2, "stride": 2}, {"features": 6, "repeat": 2}]},
}


def networks(options: Any, shape: Shape = CIFAR_SHAPE) -> Any:
    options = {"name": options} if isinstance(options, str) else options
    return read_design(CellsEnvConfig(**options)).networks(shape, CIFAR_CLASSES)


def cell_of(slots: SlotNetworks, code: str) -> Assignment:
    return Assignment(slots.cell.places, tuple(slots.cell.operations[int(digit)] for digit in code))


def check_module(graph: ComputationGraph, expected: OperationCost, shape: Shape) -> None:
    """Count the parameters of the module, and the multiply-adds of its forward pass, without memory."""
    model = to_pytorch_model(graph).to("meta").eval()
    with FlopCounterMode(display=False) as counter:
        output = model(torch.zeros(1, *shape.sizes, device="meta"))
    assert output.shape == (1, CIFAR_CLASSES)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == expected.num_parameters
    assert counter.get_total_flops() == 2 * expected.multiply_adds


def test_nas_bench_201_costs_match_table():
    """The table's multiply-adds count 430,080 for batch norm and ReLU of a convolution and 1,290,240 for a pooling."""
    rows, costs = real_rows("nb201.csv.gz"), networks("nb201").costs
    assert len(rows) == 15_625
    for row in rows:
        code, cost = row["code"], OperationCost(*costs.of(list(map(int, row["code"]))))
        num_convolutions = code.count("2") + code.count("3")
        assert cost.num_parameters == int(row["params_c10"])
        assert cost.num_parameters == 73_306 + 28_000 * code.count("2") + 243_040 * code.count("3")
        rest = int(row["flops_c10"]) - cost.multiply_adds
        assert rest == 160_832 + 430_080 * num_convolutions + 1_290_240 * code.count("4")


def test_nas_bench_macro_costs_match_table():
    costs = networks("nb_macro").costs
    rows = real_rows("nb_macro.csv.gz")
    assert len(rows) == 6_561
    for row in rows:
        assert costs.of([int(digit) for digit in row["code"]]) == (int(row["params"]), int(row["flops"]))


@pytest.mark.parametrize("step", [50, pytest.param(1, marks=pytest.mark.slow)])
def test_nas_bench_101_parameters_match_table(step):
    rows = real_rows("nb101_ec_4epochs.csv.gz")
    assert len(rows) == 2_805
    graphs = networks("nb101")
    for row in rows[::step]:
        cost = graph_cost(graphs.graph_in_order(graph_of_row(row)))
        assert cost.num_parameters == int(row["params"]), row


@pytest.mark.parametrize(("name", "code"), [("nb201", "234310"), ("nb_macro", "01212012")])
def test_slot_networks_of_benchmarks_as_modules(name, code):
    slots = networks(name)
    graph = slots.graph(cell_of(slots, code))
    expected = OperationCost(*slots.costs.of([int(digit) for digit in code]))
    assert graph_cost(graph) == expected
    check_module(graph, expected, CIFAR_SHAPE)


def test_graph_networks_as_modules():
    cell = ColouredGraph(
        ("input", "conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3", "output"),
        dict.fromkeys([(0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (2, 4), (3, 4), (0, 4)], "edge"),
    )
    options = {"name": "nb101", "skeleton": {"stages": [{"features": 4, "repeat": 2}, {"features": 8, "repeat": 2}]}}
    graph = networks(options).graph(cell)
    assert sorted(graph.config["subgraphs"]) == ["cell1", "cell2", "cell2_first"]
    check_module(graph, graph_cost(graph), CIFAR_SHAPE)


@pytest.mark.parametrize("options", [OWN_EDGES, OWN_LAYERS], ids=["edges", "layers"])
def test_slot_costs_of_own_cells_add_up(options):
    slots, rng = networks(options, DIGITS), random.Random(1)
    for _ in range(12):
        choice = [rng.randrange(len(slots.cell.operations)) for _ in slots.cell.places]
        graph = slots.graph(cell_of(slots, "".join(map(str, choice))))
        assert graph.validate() == []
        assert graph_cost(graph) == OperationCost(*slots.costs.of(choice))
    check_module(graph, OperationCost(*slots.costs.of(choice)), DIGITS)


def test_edge_networks_value_of_a_cell():
    """conv(x) + pool(conv(x)) between the stem and the head, with the weights of the module."""
    options = {**OWN_EDGES, "skeleton": {"stages": [{"features": 1}]}}
    slots = networks(options, DIGITS)
    model = to_pytorch_model(slots.graph(cell_of(slots, "112"))).eval()
    first, second = (m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scale = (1 + 1e-5) ** -0.5  # batch norm before any training
    node = torch.relu(first(x) * scale)
    pooled = torch.nn.functional.max_pool2d(node, 3, 1, padding=1)
    cell = torch.relu(second(x) * scale) + pooled
    head = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
    torch.testing.assert_close(model(x), head(cell.mean((2, 3))))


def test_edge_networks_of_signals():
    options = {
        **OWN_EDGES,
        "operations": {"conv": "relu_conv_bn", "skip": "identity"},
        "skeleton": {"stages": [{"features": 4}, {"features": 8}], "stem": "conv_bn_relu", "reduction": "max_pool1d"},
    }
    options["skeleton"]["reduction"] = ["max_pool1d", {"name": "conv_bn_relu", "kernel_size": 1}]
    shape = Shape((1, 40), Layout.SIGNAL)
    slots = networks(options, shape)
    check_module(slots.graph(cell_of(slots, "010")), OperationCost(*slots.costs.of([0, 1, 0])), shape)


def test_graph_networks_are_equal_for_isomorphic_cells():
    colours = ("input", "conv3x3-bn-relu", "maxpool3x3", "conv1x1-bn-relu", "output")
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]
    cell, rng = ColouredGraph(colours, dict.fromkeys(edges, "edge")), random.Random(0)
    graphs: GraphNetworks = networks("nb101")
    expected = graphs.graph(cell).to_dict()
    for _ in range(5):
        order = rng.sample(range(5), 5)
        place = {vertex: position for position, vertex in enumerate(order)}
        renamed = ColouredGraph(tuple(colours[v] for v in order), {(place[s], place[t]): "edge" for s, t in edges})
        assert graphs.graph(renamed).to_dict() == expected
        ordered = in_topological_order(renamed)
        assert all(source < target for source, target in ordered.edge_colours)


def test_vertex_channels_share_the_output():
    edges = {(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)}
    assert vertex_channels(edges, 5, 128) == [128, 43, 43, 42, 128]
    chain = {(0, 1), (1, 2), (1, 3), (2, 3), (3, 4), (2, 4)}
    assert vertex_channels(chain, 5, 7) == [7, 4, 4, 3, 7]
    assert vertex_channels({(0, 1)}, 2, 7) == [7, 7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "nb201", "operations": {}}, "env.cells.edges: expected none with env.cells.name=nb201"),
        ({"name": "nb101", "edges": []}, "env.cells.operations: expected none with env.cells.name=nb101"),
        ({"operations": {}}, "env.cells.operations: expected operations by name with env.cells.name=edges, got {}"),
        ({"operations": {"a": "convolution"}}, "env.cells.operations.a: operation: expected one of linear, .*did you"),
        (
            {"operations": {"a": {"name": "conv2d", "size": 3}}},
            "operations.a: conv2d: expected settings out of .*'size'",
        ),
        (
            {"operations": {"a": {"kernel_size": 3}}},
            "operations.a: expected the name of an operation, or .*got {'kernel",
        ),
        ({"edges": []}, r"env.cells.edges: expected different edges such as \[1<-0, 2<-0, 2<-1\] .*, got \[\]"),
        ({"edges": ["1<-0", "3<-1"]}, "env.cells.edges: expected different edges"),
        ({"edges": ["1<-0", "2<-0"]}, "env.cells.edges: expected different edges"),
        ({"edges": ["1<-0", "1<-0"]}, "env.cells.edges: expected different edges"),
        ({"edges": ["0<-1", "1<-0"]}, "env.cells.edges: expected different edges"),
        ({"edges": ["a<-b"]}, "env.cells.edges: expected different edges"),
        ({"skeleton": {}}, "env.cells.skeleton.stages: expected a list such as .*, got None"),
        (
            {"skeleton": {"stages": [], "tail": 1}},
            "env.cells.skeleton: expected stem, stages, reduction and head, got tail",
        ),
        (
            {"skeleton": {"stages": [{"repeat": 2}]}},
            r"stages\[0\]: expected features, repeat and stride, got {'repeat'",
        ),
        ({"skeleton": {"stages": [{"features": 0}]}}, r"stages\[0\].features: expected an integer >= 1, got 0"),
        (
            {"skeleton": {"stem": "conv_bn_relu", "stages": [{"features": 4}], "head": "linear"}},
            "skeleton.head: linear: expected a vector or",
        ),
        (
            {"skeleton": {"stages": [{"features": 4}]}},
            r"env.cells.skeleton.stages\[0\]: expected a stem to 4 features, got image \[1, 8, 8\]",
        ),
        (
            {"operations": {"a": {"name": "conv2d", "stride": 2}}},
            r"operations.a: expected an output image \[4, 8, 8\] for image \[4, 8, 8\], got image \[4, 4, 4\]",
        ),
        (
            {"operations": {"a": "identity", "b": "linear"}},
            "env.cells.operations.b: linear: expected a vector or sequence, got image",
        ),
        (
            {"name": "nb_macro", "edges": [], "operations": {}, "skeleton": {"stages": [{"features": 4, "repeat": 7}]}},
            "env.cells.skeleton.stages: expected 8 layers in all, got 7",
        ),
        ({"name": "nb101", "edges": [], "operations": {}, "max_parameters": 3}, "expected no max_parameters and"),
        (
            {"max_parameters": 10},
            "expected a cell within max_parameters=10 and .*none; the smallest have 342 and 5,820",
        ),
    ],
)
def test_cells_context_invalid_options_raise(changes, message):
    config = EnvConfig(cells=CellsEnvConfig(**{**OWN_EDGES, **changes}))
    with pytest.raises(UserError, match=message):
        CellsContext.build_env(config, input_sizes=(DIGITS,), output_sizes=(CIFAR_CLASSES,))
