"""Operations from a user's file, and any module as an operation: the same rights, and one line for each mistake."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
from collections.abc import Iterator

import pytest
import torch

from gflownet.graphs import ComputationGraph, to_dot, to_svg
from gflownet.graphs.operation import operation, read_operation
from gflownet.graphs.operation_costs import graph_cost
from gflownet.operations.operation import Operation
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.plugins import load_class
from gflownet.translation import to_pytorch_model

SOURCE = """
from torch import nn

from gflownet.operations.operation import Category, Example, Operation, Setting, single_input
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.vocabulary import POSITIVE_INT
from gflownet.graphs import Composite, GraphData

VECTOR = Shape.of(4)


class TwoLayers(Operation):
    settings = {"features": Setting(POSITIVE_INT, choices=(2,)), "hidden": Setting(POSITIVE_INT, 3)}
    examples = (Example((VECTOR,), {"features": 2}),)

    @classmethod
    def infer_shape(cls, inputs, settings):
        return single_input(inputs, "vector").with_channels(settings["features"])

    @classmethod
    def build(cls, inputs, settings):
        size, hidden = single_input(inputs).channels, settings["hidden"]
        return nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, settings["features"], bias=False))


class Block(Composite):
    examples = (Example((VECTOR,)),)

    @classmethod
    def graph(cls, inputs, settings):
        data = GraphData(inputs)
        data.add("identity", 0, data.add(f"{__name__}:TwoLayers", 0, features=inputs["input"].channels))
        return data.finish()


class NoShape(Operation):
    @classmethod
    def build(cls, inputs, settings):
        return nn.Identity()


class NoModule(Operation):
    @classmethod
    def infer_shape(cls, inputs, settings):
        return inputs["input"]


class NoGraph(Composite):
    pass


class BadSetting(TwoLayers):
    settings = {"features": 3}


class BadChoice(TwoLayers):
    settings = {"features": Setting(POSITIVE_INT, choices=(0,))}


class BadDefault(TwoLayers):
    settings = {"features": Setting(POSITIVE_INT, -1)}


class BadPorts(TwoLayers):
    ports = ()


class BadCategory(TwoLayers):
    category = "convolutions"


class WrongShape(TwoLayers):
    @classmethod
    def infer_shape(cls, inputs, settings):
        return single_input(inputs)


class Failing(TwoLayers):
    @classmethod
    def build(cls, inputs, settings):
        return nn.Linear(settings["width"], 1)


class Declared(nn.Module):
    @staticmethod
    def infer_shape(sizes, *, times):
        return (sizes[0] * times,)

    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, x):
        return x.repeat(1, self.times)


class Nested(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, x):
        first, more = self.options["sizes"]
        return x * (first + more["a"])


class NeedsData(nn.Module):
    @staticmethod
    def infer_shape(sizes):
        return sizes

    def forward(self, x):
        return x * x.sum().item()


class HalfSize(NeedsData):
    @staticmethod
    def infer_shape(sizes):
        return (2.5,)


class NoKey(NoModule):
    @classmethod
    def infer_shape(cls, inputs, settings):
        return inputs["query"]

    @classmethod
    def call(cls, inputs, settings):
        return "{input}"


class NotAShape(NoKey):
    @classmethod
    def infer_shape(cls, inputs, settings):
        return (3,)


class ListOfSettings(NoKey):
    settings = [1]


class ReservedPort(NoKey):
    ports = ("module",)


class Circle(Composite):
    @classmethod
    def graph(cls, inputs, settings):
        data = GraphData(inputs)
        data.add(f"{__name__}:Circle", 0)
        return data.finish()


class TwoOutputs(Composite):
    @classmethod
    def graph(cls, inputs, settings):
        data = GraphData(inputs)
        data.add("identity", 0)
        data.add("identity", 0)
        data = data.finish()
        data["nodes"][1]["node_type"] = "output"
        return data


class UnusedBias(Composite):
    @classmethod
    def graph(cls, inputs, settings):
        data = GraphData(inputs)
        data.add("identity", 0)
        data = data.finish()
        data["nodes"][1]["bias"] = 5.0
        return data
"""
MISTAKES = {
    "NoShape": "operation: expected {name} to define infer_shape",
    "NoModule": "operation: expected {name} to define build, constructor or call",
    "NoGraph": "operation: expected {name} to define graph",
    "BadSetting": "{name}.settings: expected Settings by name, got features: 3",
    "BadChoice": "{name}.settings: expected an int in [1, 1,048,576] for features, got 0",
    "BadDefault": "{name}.settings: expected an int in [1, 1,048,576] for features, got -1",
    "BadPorts": "{name}.ports: expected at least one name of an input, got ()",
    "BadCategory": "{name}.category: expected one of convolution, linear, ",
    "WrongShape": "{name}.examples[0]: expected [2, 4] as from infer_shape, got [2, 2]",
    "Failing": "{name}.examples[0]: expected an output, got KeyError: 'width'",
    "Missing": "operation: expected a subclass of Operation, got '{name}', which outside_operations.py does not define",
    "Declared": "operation: expected a subclass of Operation, got '{name}'; did you mean ",
}
# The end of the problem of a graph that uses a class.
FAILURES = {
    "NoKey": "expected a result of infer_shape, got KeyError: 'query'",
    "NotAShape": "expected infer_shape to return a Shape of integers, got (3,)",
    "ListOfSettings": "expected Settings by name, got [1]",
    "ReservedPort": "expected at least one name of an input, got ('module',)",
    "Circle": "expected a graph of other operations, got one that applies itself",
    "TwoOutputs": "expected one output node in a subgraph, got 2",
    "UnusedBias": "expected bias 0.0 without edge_weight, got 5.0",
}
GOOD = {"in_features": 4, "out_features": 2}
MODULE = "outside_operations"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch) -> Iterator[None]:
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    operation.cache_clear()
    yield
    sys.modules.pop(MODULE, None)
    operation.cache_clear()


def chain(*operations: dict, shape: tuple[int, ...] = (5,)) -> ComputationGraph:
    nodes: list[dict] = [{"id": 0, "node_type": "input", "shape": list(shape)}]
    nodes += [{"id": i, "node_type": "hidden", "operation": each} for i, each in enumerate(operations, 1)]
    nodes[-1]["node_type"] = "output"
    edges = [{"source": i, "target": i + 1} for i in range(len(operations))]
    return ComputationGraph.from_dict({"nodes": nodes, "edges": edges})


def test_outside_operation_is_counted_and_translated() -> None:
    graph = chain({"name": f"{MODULE}:TwoLayers", "features": 6, "hidden": 7}, {"name": f"{MODULE}:Block"})
    assert graph.validate() == []
    cost = graph_cost(graph)
    assert cost.num_parameters == (5 * 7 + 7 + 7 * 6) + (6 * 3 + 3 + 3 * 6)
    assert cost.multiply_adds == (5 * 7 + 7 * 6) + 2 * 6 * 3
    model = to_pytorch_model(graph)
    assert sum(each.numel() for each in model.parameters()) == cost.num_parameters
    assert model(torch.randn(2, 5)).shape == (2, 6)


@pytest.mark.parametrize("name", MISTAKES)
def test_outside_operation_mistake_is_one_line(name: str) -> None:
    message = MISTAKES[name].format(name=f"{MODULE}:{name}")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as info:
        operation(f"{MODULE}:{name}")
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("name", [":x", "a b:c", "1:2", "a:b:c"])
def test_opaque_refuses_malformed_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"opaque: expected module:Class of an nn.Module for module, got"):
        read_operation({"name": "opaque", "module": name})
    with pytest.raises(ValueError, match=r"operation.module: expected module:Class, got"):
        load_class("operation.module", name, {}, contract=Operation)


def test_failing_classes_are_problems_of_the_graph() -> None:
    """Each mistake is one line that names the class, not a traceback out of validate."""
    for name, message in FAILURES.items():
        (problem,) = chain({"name": f"{MODULE}:{name}"}, shape=(4,)).validate()
        assert problem.message.startswith(f"node 1: {MODULE}:{name}"), name
        assert message in problem.message, name
        assert "\n" not in problem.message, name


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("torch.nn:Flatten", {"start_dim": 0}, "expected torch.nn:Flatten to keep the batch axis of 2, got 8"),
        ("torch.nn:Linear", {"in_features": 4, "out_features": 2.0}, "TypeError"),
        (f"{MODULE}:NeedsData", {}, "RuntimeError"),
        (f"{MODULE}:HalfSize", {}, "expected infer_shape to return a Shape of integers, got"),
        ("torch.nn:Linear", {"in_features": 4, "out_features": 2, "device": "cpu"}, "without device and dtype"),
    ],
)
def test_opaque_refusals_are_problems(name: str, arguments: dict, message: str) -> None:
    # Numbers that are equal in Python, but not for the module.
    assert chain({"name": "opaque", "module": "torch.nn:Linear", "arguments": GOOD}, shape=(4,)).validate() == []
    (problem,) = chain({"name": "opaque", "module": name, "arguments": arguments}, shape=(4,)).validate()
    assert message in problem.message


def test_opaque_arguments_nest() -> None:
    graph = chain(
        {"name": "opaque", "module": f"{MODULE}:Nested", "arguments": {"options": {"sizes": [2, {"a": 3}]}}}, shape=(4,)
    )
    assert graph.validate() == []
    x = torch.randn(2, 4)
    assert torch.equal(to_pytorch_model(graph)(x), 5 * x)
    assert torch.equal(pickle.loads(pickle.dumps(to_pytorch_model(graph)))(x), 5 * x)


def test_identity_and_drawing_import_no_outside_class(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "never_imported_21.py").write_text("raise SystemExit\n")
    for settings in ({"name": "never_imported_21:A"}, {"name": "opaque", "module": "never_imported_21:A"}):
        graph = chain(settings)
        assert graph == chain(dict(reversed(settings.items())))
        assert "not imported" in to_svg(graph)
        assert "digraph" in to_dot(graph)
    assert "never_imported_21" not in sys.modules


def test_opaque_runs_a_module_of_torch() -> None:
    settings = {"module": "torch.nn:Conv1d", "arguments": {"in_channels": 2, "out_channels": 3, "kernel_size": 3}}
    applied = read_operation({"name": "opaque", **settings})
    shape = applied.row.infer_shape({"input": Shape((2, 9), Layout.SIGNAL)}, applied.settings)
    assert shape == Shape((3, 7), Layout.SIGNAL)
    assert applied.cost({"input": Shape((2, 9), Layout.SIGNAL)})[1] == 3 * 2 * 3 * 7
    assert hash(applied) == hash(read_operation({"name": "opaque", **settings}))


def test_opaque_uses_infer_shape_of_the_module() -> None:
    graph = chain({"name": "opaque", "module": f"{MODULE}:Declared", "arguments": {"times": 3}}, shape=(4,))
    x = torch.randn(2, 4)
    assert torch.equal(to_pytorch_model(graph)(x), x.repeat(1, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"module": "torch.nn:Linear"}, "expected torch.nn:Linear to accept vector [4], got TypeError"),
        ({"module": "torch:Tensor"}, "operation.module: expected a subclass of Module, got 'torch:Tensor'"),
        ({"module": "no_such:Layer"}, "operation.module: expected an importable module, got 'no_such'"),
    ],
)
def test_opaque_mistake_is_one_line(settings: dict, message: str) -> None:
    applied = read_operation({"name": "opaque", **settings})
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as info:
        applied.row.infer_shape({"input": Shape.of(4)}, applied.settings)
    assert isinstance(info.value, ShapeError) == message.startswith("expected")
    assert "\n" not in str(info.value)
