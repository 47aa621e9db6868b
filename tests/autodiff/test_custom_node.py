"""Custom nodes inside graphs: passes of single nodes, compiled programs, modules, torch.func, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.autodiff import Graph, compile, compile_gradient, compile_hessian, format, hvp, parse, to_module
from gflownet.autodiff import factories as build
from gflownet.autodiff.custom_node import CustomNode
from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.nodes import LeafNode, Node
from tests.contracts.test_nodes import Bilinear, Clip, Exponential, MultiplyByTwoNode, Rolled, Same

DOUBLE = torch.float64


def parameter(*shape: int, name: str | None = None) -> LeafNode:
    values = torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(sum(shape)))
    return build.Parameter(values, name=name)


def test_single_nodes_forward_and_backward_as_a_graph() -> None:
    x = parameter(3)
    first, second = MultiplyByTwoNode(x), MultiplyByTwoNode(x)
    y = build.Tanh(first + second)
    with pytest.raises(ValueError, match="MultiplyByTwoNode: value: expected a forward pass first"):
        y.inputs[0].forward()
    for node in Graph(y).nodes():
        node.forward()
    torch.testing.assert_close(y.value(), torch.tanh(4 * x.value()))
    y.backward()  # without a gradient: nothing
    y.grad().fill_(1.0)
    for node in reversed(Graph(y).nodes()):
        node.backward()
    torch.testing.assert_close(x.grad(), 4 * (1 - torch.tanh(4 * x.value()) ** 2))
    x.forward()
    assert x.value() is x.forwarded
    one = build.Constant(2.0)
    one.forward()
    assert one.value() == 2.0


def test_backward_of_a_fixed_operand_is_skipped() -> None:
    fixed = build.FixedInput(torch.ones(2, dtype=DOUBLE))
    weight, right = parameter(2, 2, 3), parameter(3)
    node = Bilinear(fixed, weight, right)
    graph = Graph(build.Sum(node))
    graph.forward()
    graph.backward()
    assert fixed.gradient is None
    torch.testing.assert_close(weight.grad(), torch.ones(2, 2, 3).double() * right.value())
    alone = MultiplyByTwoNode(fixed)
    assert not alone.has_grad()
    alone.forward()
    alone.backward()


def losses(x: Node) -> Node:
    """Return a loss of custom nodes among others, one of them used twice."""
    doubled = MultiplyByTwoNode(Same(x))
    return build.Sum(Exponential(build.Sin(doubled)) * Clip(doubled, high=0.7)) + build.Sum(build.Square(doubled))


def in_torch(x: Tensor) -> Tensor:
    return (torch.exp(torch.sin(2 * x)) * (2 * x).clamp(-1, 0.7)).sum() + (4 * x**2).sum()


def test_compiled_programs_equal_torch() -> None:
    x, v = parameter(4), LeafNode([4], dtype=DOUBLE)
    value, loss = x.value(), losses(x)
    expected = torch.func.hessian(in_torch)(value)
    program = compile_hessian(loss, x, leaves=[x])
    torch.testing.assert_close(program(value), expected)
    assert "call0(x0)" in program.source
    torch.testing.assert_close(compile_gradient(loss, x, leaves=[x])(value), torch.func.grad(in_torch)(value))
    vector = torch.linspace(-1, 1, 4, dtype=DOUBLE)
    torch.testing.assert_close(compile(hvp(loss, x, v), leaves=[x, v])(value, vector), expected @ vector)
    again = parameter(4)
    assert compile_hessian(losses(again), again, leaves=[again]).source is program.source


@pytest.mark.parametrize("differentiation", ["program", "autograd"])
def test_modules_differentiate_twice(differentiation: Any) -> None:
    x = parameter(4, name="x")
    module = to_module(losses(x), inputs=[], differentiation=differentiation)
    (weight,) = module.parameters()
    (slope,) = torch.autograd.grad(module(), weight, create_graph=True)
    torch.testing.assert_close(slope, torch.func.grad(in_torch)(x.value()))
    (twice,) = torch.autograd.grad(slope.sum(), weight)
    torch.testing.assert_close(twice, torch.func.hessian(in_torch)(x.value()).sum(0))
    exported = torch.export.export(module, ()).module()
    torch.testing.assert_close(exported(), module())


@pytest.mark.parametrize(
    "transformed",
    [
        torch.func.grad,
        torch.func.hessian,
        lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, 2 * x])),
        lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    ],
    ids=["grad", "hessian", "vmap", "jvp"],
)
def test_torch_transforms_custom_nodes(transformed: Callable[..., Callable[[Tensor], Tensor]]) -> None:
    x = parameter(4)
    loss = losses(x)
    result = transformed(lambda value: evaluate([loss], {x: value})[0])(x.value())
    torch.testing.assert_close(result, transformed(in_torch)(x.value()))


def test_programs_do_not_overwrite_aliases() -> None:
    x = parameter(3)
    doubled = x * 2.0
    loss = build.Sum(Same(doubled) * build.Exp(doubled))
    value = x.value().clone()
    result = compile_gradient(loss, x, leaves=[x])(value)
    torch.testing.assert_close(result, 2 * torch.exp(2 * value) * (1 + 2 * value))
    torch.testing.assert_close(value, x.value(), rtol=0, atol=0)


class Slope(CustomNode):
    """3 x^2 as the derivative of x^3 by torch.autograd."""

    def forward_(self, source: Tensor) -> Tensor:
        with torch.enable_grad():
            point = source.detach().requires_grad_()
            return torch.autograd.grad((point**3).sum(), point)[0]


def test_program_runs_torch_autograd_in_a_node() -> None:
    x = parameter(3)
    torch.testing.assert_close(compile(Slope(x), leaves=[x])(x.value()), 3 * x.value() ** 2)


def test_text_shows_custom_nodes_and_takes_them_as_operands() -> None:
    x = build.Input([3], dtype=DOUBLE, name="x")
    clipped = Clip(x, low=-0.5, name="y")
    graph = parse("total = sum_i y[i]").graph({"y": clipped})
    assert graph.value("total", {x: [-1.0, 0.5, 2.0]}) == 1.0
    text = format(graph.sink)
    assert text == "input x[3]\ny = clip(x; low=-0.5, high=1.0)\ntotal = sum_i y[i]"
    with pytest.raises(ValueError, match="line 2, column "):
        parse(text)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "klip"}, "node 2: type: expected one of leaf, .*, pushforward, .*, clip, got 'klip'"),
        ({"src": 1}, "node 2: src: expected a list of ids, got 1"),
        ({"src": [5]}, "node 2: src: expected the id of a node listed before, got 5"),
        ({"low": "a"}, "node 2: low: expected a number, got 'a'"),
        ({"lo": 1}, "node 2: lo: expected a field of a clip, perhaps low"),
        ({"shape": [4]}, r"node 2: shape: expected \[3\] by the other fields"),
        ({"type": "pullback", "src": [1, 1], "of": {"type": "clap"}, "operand": 0}, "expected the type of a custom"),
    ],
)
def test_json_custom_node_errors(entry: dict[str, Any], message: str) -> None:
    nodes = [{"id": 1, "type": "leaf", "shape": [3]}, {"id": 2, "type": "clip", "src": [1], **entry}]
    with pytest.raises(ValueError, match=message):
        Graph.from_dict({"nodes": nodes}, classes=[Clip])


def test_json_rejects_two_classes_of_one_name() -> None:
    other = type("Clip", (MultiplyByTwoNode,), {"__doc__": "Another."})
    with pytest.raises(ValueError, match="classes: expected one class named clip, got two"):
        Graph.from_dict({"nodes": []}, classes=[Clip, other])


def forward_of_source(self: Any, source: Tensor) -> Tensor:
    return source


@pytest.mark.parametrize(
    ("name", "members", "message"),
    [
        ("Nothing", {}, "Nothing: expected a method forward_ and no __init__"),
        ("Tanh", {"forward_": forward_of_source}, "Tanh: expected a name that no node, function or dtype has"),
        ("Linear", {"forward_": forward_of_source}, "Linear: expected a name that no node"),
        ("Float32", {"forward_": forward_of_source}, "Float32: expected a name that no node"),
        ("Own", {"forward_": forward_of_source, "__init__": lambda self: None}, "Own: .* no __init__"),
    ],
)
def test_class_errors(name: str, members: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        type(name, (CustomNode,), members)


def test_settings_errors() -> None:
    x = parameter(3)
    with pytest.raises(ValueError, match="Rolled: steps: expected a value, got none"):
        Rolled(x)
    with pytest.raises(ValueError, match=r"Rolled: steps: expected a list of integers, got \[1.5\]"):
        Rolled(x, steps=[1.5])
    with pytest.raises(ValueError, match="Rolled: is_flipped: expected true or false, got 1"):
        Rolled(x, steps=[1], is_flipped=1)
    with pytest.raises(ValueError, match="Rolled: axis: expected an integer, got True"):
        Rolled(x, steps=[1], axis=True)
    with pytest.raises(ValueError, match=r"Bilinear 'b': expected a weight of shape \[k, 3, 3\], got \[3\]"):
        Bilinear(x, x, x, name="b")

    class Wrong(MultiplyByTwoNode):
        """A setting of no JSON type."""

        table: dict[str, int]

    with pytest.raises(ValueError, match="Wrong: table: expected a setting of type bool, int, float, str, tuple"):
        Wrong(x, table={})


class Mixed(CustomNode):
    """float32 times float64 in float32."""

    def forward_(self, low: Tensor, high: Tensor) -> Tensor:
        return low * high.float()

    def backward_(self, gradient: Tensor, value: Tensor, low: Tensor, high: Tensor) -> Sequence[Tensor | None]:
        return gradient * high.float(), gradient.double() * low.double()


def test_gradients_have_the_dtype_of_their_operand() -> None:
    low, high = build.Parameter(torch.ones(2)), parameter(2)
    graph = Graph(build.Sum(Mixed(low, high)))
    graph.forward()
    graph.backward()
    assert (low.grad().dtype, high.grad().dtype) == (torch.float32, DOUBLE)
    slopes = compile_gradient(graph.sink, [low, high], leaves=[low, high])(low.value(), high.value())
    for slope, leaf in zip(slopes, (low, high), strict=True):
        torch.testing.assert_close(slope, leaf.grad())
