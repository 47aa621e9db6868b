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
from gflownet.graphs.typed import graph_cost
from gflownet.operations.operation import Operation
from gflownet.plugins import load_class
from gflownet.translation import to_pytorch_model, to_source

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


class NoForward(nn.Module):
    pass


class LazyLayer(nn.LazyLinear):
    pass


class ReservedArgument(nn.Module):
    def forward(self, x, weight):
        return x


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
        x.sum().item()
        return x


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
    "Missing": "operation: expected a subclass of Operation or Module, got '{name}', which outside_operations.py",
    "NoForward": "operation: expected {name} to define forward",
    "LazyLayer": "operation: expected a class whose sizes are filled from the input, got the lazy {name}",
    "ReservedArgument": "operation: expected {name}.forward without an argument weight",
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


def chain(*operations: dict, shape: tuple[int, ...] = (5,), layout: str | None = None) -> ComputationGraph:
    start = {"id": 0, "node_type": "input", "shape": list(shape)}
    nodes: list[dict] = [start | ({"layout": layout} if layout else {})]
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
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"operation: expected one of .* or module:Class, got"):
        read_operation({"name": name})
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
        ("torch.nn:Flatten", {"start_dim": 0}, "expected an output with the batch first, got [52]"),
        ("torch.nn:Linear", {"out_features": 2.0}, "Linear(in_features=4, out_features=2.0) to accept vector [4], got"),
        (f"{MODULE}:NeedsData", {}, "expected a cost, got RuntimeError: Tensor.item()"),
        (f"{MODULE}:HalfSize", {}, "expected infer_shape to return a Shape of integers, got"),
        (
            "torch.nn:Linear",
            {"out_features": 2, "device": "cpu"},
            "(in_features, out_features, bias=True), got 'device'",
        ),
        ("torch.nn:LSTM", {"hidden_size": 2, "output": 0}, "expected a sequence, got vector [4]"),
        ("torch.nn:GRU", {"hidden_size": 2, "batch_first": False}, "expected true: the batch is the first axis for"),
        ("torch.nn:LayerNorm", {"epsilon": 1e-3}, "got 'epsilon'; did you mean eps?"),
        ("torch.nn:Linear", {}, "expected a setting out_features, a value as in Linear(in_features, "),
        ("torch.nn:Conv1d", {"out_channels": 2, "kernel_size": 1}, "to accept vector [4], got"),
        ("torch:Tensor", {}, "operation: expected a subclass of Operation or Module, got 'torch:Tensor'"),
        ("no_such:Layer", {}, "operation: expected an importable module, got 'no_such'"),
    ],
)
def test_refused_modules_are_problems(name: str, arguments: dict, message: str) -> None:
    # Numbers that are equal in Python, but not for the module.
    assert chain({"name": "torch.nn:Linear", "out_features": 2}, shape=(4,)).validate() == []
    (problem,) = chain({"name": name, **arguments}, shape=(4,)).validate()
    assert message in problem.message
    assert "\n" not in problem.message


def test_arguments_nest() -> None:
    graph = chain({"name": f"{MODULE}:Nested", "options": {"sizes": [2, {"a": 3}]}}, shape=(4,))
    assert graph.validate() == []
    x = torch.randn(2, 4)
    assert torch.equal(to_pytorch_model(graph)(x), 5 * x)
    assert torch.equal(pickle.loads(pickle.dumps(to_pytorch_model(graph)))(x), 5 * x)
    namespace: dict = {}
    exec(to_source(graph), namespace)
    assert torch.equal(namespace["Model"]()(x), 5 * x)


def test_identity_and_drawing_import_no_outside_class(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "never_imported_21.py").write_text("raise SystemExit\n")
    settings = {"name": "never_imported_21:A", "size": 3}
    graph = chain(settings)
    assert graph == chain(dict(reversed(settings.items())))
    assert "not imported" in to_svg(graph)
    assert "digraph" in to_dot(graph)
    assert "never_imported_21" not in sys.modules


def test_declared_shape_of_a_module() -> None:
    graph = chain({"name": f"{MODULE}:Declared", "times": 3}, shape=(4,))
    x = torch.randn(2, 4)
    assert torch.equal(to_pytorch_model(graph)(x), x.repeat(1, 3))
