"""An activation and an aggregation from a folder outside the repository have the same rights as built-in ones."""

import json
import pickle
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gflownet.graphs import ComputationGraph, to_svg
from gflownet.translation import DirectTraining, is_direct, load, summary, to_pytorch_model, to_source
from gflownet.translation.export import export_program
from tests.translation.test_source import run_source

OPERATIONS = """
import torch
from gflownet.translation import Activation, Aggregation, Parameter


class Sine(Activation):
    flops = 2

    @staticmethod
    def forward(z):
        return torch.sin(z)


class Square(Activation):
    @staticmethod
    def forward(z):
        return z * z

    @staticmethod
    def gradient(g, z, y):
        return 2 * g * z


class PowerMean(Aggregation):
    attributes = {"power": Parameter("a float in [1, 8]", lambda value: 1 <= value <= 8)}
    edge_parameter = "slope"

    @staticmethod
    def forward(messages, *, slope, power=2.0):
        return (messages.abs() * (1 + slope).unsqueeze(1)).clamp_min(1e-6).pow(power).mean(1) ** (1 / power)


class Pair(Aggregation):
    is_order_sensitive = True

    @classmethod
    def aggregated_size(cls, attributes, message_size, num_edges):
        return 2 * message_size

    @classmethod
    def query_shape(cls, attributes, message_size):
        return (message_size,)

    @staticmethod
    def forward(messages, *, query):
        return torch.cat([messages[:, 0], messages[:, -1] * query], dim=1)


class NotOne:
    pass


class Flat(Activation):
    @staticmethod
    def forward(z):
        return z.flatten()


class First(Aggregation):
    @staticmethod
    def forward(messages):
        return messages[:, 0]


class BadGradient(Square):
    @staticmethod
    def gradient(g, z, y):
        return g.sum()


class WrongGradient(Square):
    @staticmethod
    def gradient(g, z, y):
        return g * z


class BadAttributes(Aggregation):
    attributes = {"power": 2}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"outside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OPERATIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def graph_of(activation="linear", aggregation="sum", **attributes):
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=3)
    graph.add_node(1, "input", output_size=3)
    hidden = {"aggregation": aggregation, **attributes}
    graph.add_node(2, "hidden", output_size=4, activation_function=activation, attributes=hidden)
    graph.add_node(3, "output", output_size=2)
    for source, target in ((0, 2), (1, 2), (2, 3)):
        graph.add_edge(source, target)
    return graph


def test_activation_runs_in_the_model(module):
    graph = graph_of(f"{module}:Sine")
    x = torch.randn(5, 6)
    torch.manual_seed(0)
    model = to_pytorch_model(graph)
    torch.manual_seed(0)
    linear = to_pytorch_model(graph_of("linear"))
    for name, value in linear.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    sources = x[:, :3] @ model.proj_0_2.weight.t() + x[:, 3:] @ model.proj_1_2.weight.t()
    assert torch.allclose(model(x), torch.sin(sources) @ model.proj_2_3.weight.t(), atol=1e-6)
    assert summary(graph).flops == summary(graph_of("linear")).flops + 2 * 4
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


def test_aggregation_runs_in_the_model(module):
    graph = graph_of("relu", f"{module}:PowerMean", power=3.0)
    model = to_pytorch_model(graph)
    with torch.no_grad():
        model.slope_0_2.fill_(0.5)
    x = torch.randn(5, 6)
    first, second = x[:, :3] @ model.proj_0_2.weight.t(), x[:, 3:] @ model.proj_1_2.weight.t()
    hidden = ((((1.5 * first.abs()) ** 3 + second.abs() ** 3) / 2) ** (1 / 3)).relu()
    assert torch.allclose(model(x), hidden @ model.proj_2_3.weight.t(), atol=1e-5)
    assert summary(graph).num_parameters == sum(p.numel() for p in model.parameters())


def test_aggregation_with_its_own_width_and_query(module):
    graph = graph_of("linear", f"{module}:Pair")
    model = to_pytorch_model(graph)
    assert model.q_2.shape == (4,)
    assert model.post_2.weight.shape == (4, 8)
    assert model(torch.zeros(5, 6)).shape == (5, 2)
    assert summary(graph).num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("activation", "direct"), [("Square", True), ("Sine", False)])
def test_direct_training_uses_the_gradient_or_is_not_offered(module, activation, direct):
    model = to_pytorch_model(graph_of(f"{module}:{activation}"), {"dtype": torch.float64})
    assert is_direct(model.plan) == direct
    x, targets = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    F.cross_entropy(model(x), targets).backward()
    expected: dict[str, Any] = {name: parameter.grad for name, parameter in model.named_parameters()}
    if direct:
        DirectTraining([model]).backward([x], [targets])
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, expected[name]), name
    else:
        with pytest.raises(ValueError, match="expected one that is_direct"):
            DirectTraining([model])


def test_outside_aggregation_has_no_direct_code(module):
    assert not is_direct(to_pytorch_model(graph_of("relu", f"{module}:PowerMean")).plan)


def test_names_survive_json_keys_and_drawings(module, tmp_path):
    graph = graph_of(f"{module}:Sine", f"{module}:PowerMean", power=3.0)
    again = ComputationGraph.from_json(graph.to_json())
    assert again == graph
    assert again.canonical_key() == graph.canonical_key()
    assert graph.canonical_key() != graph_of(f"{module}:Square", f"{module}:PowerMean", power=3.0).canonical_key()
    assert graph.validate() == []
    assert ">Sine<" in to_svg(graph)
    path = tmp_path / "top_architectures.json"
    path.write_text(json.dumps([{"rank": 0, "graph": graph.to_dict()}]))
    assert load(path, weights=False)(torch.zeros(2, 6)).shape == (2, 2)


def test_order_sensitivity_enters_the_identity(module):
    def key(aggregation, orders):
        graph = graph_of("linear", aggregation)
        data = graph.to_dict()
        for edge, order in zip(data["edges"], orders, strict=False):
            edge["attributes"] = {"order": order}
        return ComputationGraph.from_dict(data).canonical_key()

    assert key(f"{module}:PowerMean", (0, 1)) == key(f"{module}:PowerMean", (1, 0))
    assert key(f"{module}:Pair", (0, 1)) != key(f"{module}:Pair", (1, 0))


@pytest.mark.parametrize("operation", [("Sine", "PowerMean"), ("Square", "Pair")])
def test_source_imports_the_class_and_computes_the_same(module, operation):
    graph = graph_of(*(f"{module}:{name}" for name in operation))
    source = to_source(graph)
    assert f"needs only torch, {module}." in source
    assert f"from {module} import {operation[0]} as " in source
    model, alone = to_pytorch_model(graph), run_source(source)
    alone.load_state_dict(model.state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(alone(x), model(x))


def test_export_of_outside_operations(module):
    model = to_pytorch_model(graph_of(f"{module}:Sine", f"{module}:Pair")).eval()
    x = torch.randn(4, 6)
    assert torch.allclose(export_program(model).module()(x), model(x))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{module}:NotOne", "expected a subclass of Activation"),
        ("{module}:Missing", "expected a subclass of Activation"),
        ("no_such_module:Sine", "expected an importable module, got 'no_such_module'"),
        ("{module}:Flat", r"forward\(z \[2, 3\]\): expected a tensor \[2, 3\] of dtype torch.float32, got \[6\]"),
        ("{module}:WrongGradient", r"gradient\(g, z, y \[2, 3\]\): expected .*, as autograd of forward, got"),
        ("{module}:BadGradient", r"gradient\(g, z, y \[2, 3\]\): expected a tensor \[2, 3\]"),
        ("rellu", "expected an activation out of"),
    ],
)
def test_misuse_of_an_activation_is_one_line(module, name, message):
    name = name.format(module=module)
    (problem,) = graph_of(name).validate()
    assert problem.code == "invalid_activation"
    assert problem.message.startswith("node 2: ")
    assert "\n" not in problem.message
    with pytest.raises(ValueError, match=message):
        to_pytorch_model(graph_of(name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{module}:NotOne", "expected a subclass of Aggregation"),
        ("{module}:First", "expected the same result for every order of the inputs, or is_order_sensitive = True"),
        ("{module}:BadAttributes", "expected attributes of Parameters by name, got power: 2"),
        ("summ", "expected an aggregation out of"),
    ],
)
def test_misuse_of_an_aggregation_is_one_line(module, name, message):
    with pytest.raises(ValueError, match=message):
        to_pytorch_model(graph_of("linear", name.format(module=module)))


def test_attributes_of_an_outside_aggregation_are_checked(module):
    (problem,) = graph_of("linear", f"{module}:PowerMean", power=9.0).validate()
    assert problem.message == "node 2: expected a float in [1, 8] for power, got 9.0"
    (problem,) = graph_of("linear", f"{module}:PowerMean", top_k=1).validate()
    assert (
        problem.message == f"node 2: expected {module}:PowerMean parameters out of post_projection, power, got 'top_k'"
    )
