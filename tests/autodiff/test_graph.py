"""The running graph: order, cached values, accumulated gradients, dtypes, lifetimes, depth."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.autodiff import factories as build
from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.factories import PickNegLogSoftmax
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import LeafKind, LeafNode, Node

DOUBLE = torch.float64


def parameter(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE, name: str | None = None) -> LeafNode:
    generator = torch.Generator().manual_seed(seed)
    return build.Parameter(torch.randn(shape, generator=generator, dtype=DOUBLE).to(dtype), name=name)


def run(sink: Node, val: float = 1.0) -> Tensor:
    graph = Graph(sink)
    graph.forward()
    graph.reset_grad()
    graph.backward(val)
    return sink.value()


def test_graph_without_sink_raises() -> None:
    with pytest.raises(ValueError, match="Graph: expected at least one sink, got none"):
        Graph([])


def test_forward_computes_once_until_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    original = Node.computed
    monkeypatch.setattr(Node, "computed", lambda node, values: computed.append(node) or original(node, values))
    x = parameter(3)
    shared = build.Tanh(x)
    graph = Graph(shared * shared)
    graph.forward()
    graph.forward()
    assert len(computed) == 2
    other = Graph(build.Sum(shared))
    other.forward()
    assert len(computed) == 3
    x.value().mul_(2.0)
    graph.reset_forwarded()
    graph.forward()
    assert len(computed) == 5
    torch.testing.assert_close(graph.sink.value(), torch.tanh(x.value()) ** 2)


def test_binding_leaves_recomputes() -> None:
    x = build.Input([2], dtype=DOUBLE, name="x")
    y = build.Square(x)
    graph = Graph(y)
    with pytest.raises(ValueError, match=r"LeafNode 'x': value: expected one of shape \[2\], got none"):
        graph.forward()
    graph.forward({x: [1.0, 2.0]})
    assert y.value().tolist() == [1.0, 4.0]
    graph.forward({x: torch.tensor([3.0, 4.0])})
    assert y.value().tolist() == [9.0, 16.0]
    graph.reset_forwarded()
    with pytest.raises(ValueError, match="expected a forward pass first"):
        y.value()
    graph.forward()
    assert y.value().tolist() == [9.0, 16.0]
    assert y.value().dtype == DOUBLE


def test_invalid_leaf_values_raise() -> None:
    x = build.Input([2], dtype=torch.float32, name="x")
    graph = Graph(build.Square(x))
    with pytest.raises(ValueError, match=r"LeafNode 'x': value: expected shape \[2\], got \[3\]"):
        graph.forward({x: torch.zeros(3)})
    with pytest.raises(ValueError, match=r"LeafNode 'x': value: expected dtype torch.float32 .*, got torch.float64"):
        graph.forward({x: torch.zeros(2, dtype=DOUBLE)})
    with pytest.raises(ValueError, match=r"expected dtype torch.float32 or one it can hold, got torch.complex128"):
        graph.forward({x: [1j, 0.0]})
    graph.forward({x: [1, 2]})
    assert x.value().dtype == torch.float32


def test_backward_accumulates_until_reset() -> None:
    x = parameter(3)
    loss = build.Sum(x * 2.0)
    graph = Graph(loss)
    graph.forward()
    graph.backward(0.5)
    assert loss.grad().item() == 0.5
    assert x.grad().tolist() == [1.0] * 3
    graph.reset_grad()
    loss.grad().fill_(3.0)
    graph.backward(0.0)
    assert x.grad().tolist() == [6.0] * 3
    graph.backward(1.0)
    assert loss.grad().item() == 4.0
    graph.reset_grad()
    graph.backward(torch.tensor(0.25, dtype=DOUBLE, requires_grad=True))
    assert x.grad().tolist() == [0.5] * 3
    assert not x.grad().requires_grad


def test_evaluate_does_not_change_nodes() -> None:
    x = parameter(3)
    inner = build.Tanh(x)
    outer = build.Sum(inner)
    result = evaluate([inner, outer, inner, x], {x: torch.zeros(3)})
    assert [value.tolist() for value in result] == [[0.0] * 3, 0.0, [0.0] * 3, [0.0] * 3]
    assert (inner.forwarded, outer.forwarded) == (None, None)
    assert x.value().abs().min() > 0


def test_constants_move_to_device_of_leaves() -> None:
    x = build.Input([2, 3], dtype=DOUBLE)
    loss = build.Sum(PickNegLogSoftmax(x + 1.0, torch.tensor([0, 2])))
    graph = Graph(loss)
    for device in ("cpu", "meta"):
        at = torch.ones(2, 3, dtype=DOUBLE, device=device)
        graph.forward({x: at})
        graph.reset_grad()
        graph.backward()
        result = evaluate([loss], {x: at})[0]
        assert {loss.value().device.type, x.grad().device.type, result.device.type} == {device}
        assert device == "meta" or loss.value().item() == pytest.approx(2 * math.log(3))


def test_leaves_without_gradient_have_none() -> None:
    x, w = build.FixedInput(torch.ones(3, dtype=DOUBLE), name="data"), parameter(3)
    fixed = build.FixedParameter(torch.ones(3, dtype=DOUBLE))
    run(build.Sum(x * w * fixed))
    assert [node.has_grad() for node in (x, w, fixed, x * fixed, x * w)] == [False, True, False, False, True]
    assert w.grad().tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="LeafNode 'data': grad: expected a node that depends on a leaf with requires"):
        x.grad()
    graph = Graph(build.Sum(x * fixed))
    graph.forward()
    with pytest.raises(ValueError, match="grad: expected a node that depends"):
        graph.backward()


def test_value_and_grad_before_forward_raise() -> None:
    y = build.Exp(parameter(3))
    for ask in (y.value, y.grad, Graph(y).backward):
        with pytest.raises(ValueError, match="NonlinearNode: value: expected a forward pass first"):
            ask()


def test_graph_with_several_dtypes() -> None:
    half, single = parameter(3, dtype=torch.float16), parameter(3, seed=1, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"expected operands of one dtype \(see Cast\), got torch.float16 and"):
        build.Multiply(half, single)
    product = build.Cast(half, torch.float32) * single
    loss = build.Sum(build.Cast(product, DOUBLE))
    run(loss)
    assert [node.dtype for node in (half, product, loss)] == [torch.float16, torch.float32, DOUBLE]
    assert [node.value().dtype for node in (half, product, loss)] == [torch.float16, torch.float32, DOUBLE]
    assert [node.grad().dtype for node in (half, single, product)] == [torch.float16, torch.float32, torch.float32]
    torch.testing.assert_close(half.grad(), single.value().half())
    torch.testing.assert_close(single.grad(), half.value().float())


@pytest.mark.parametrize(("index_dst", "new_dims"), [([1, 2], []), ([2, 1], []), ([1, 2, -1], [2]), ([-1, 1, 2], [1])])
@pytest.mark.parametrize("kind", [build.Input, build.Constant])
def test_graph_value_is_a_copy(kind: Callable[[Tensor], LeafNode], index_dst: list[int], new_dims: list[int]) -> None:
    given = torch.arange(6.0).reshape(2, 3)
    x = kind(given)
    y = build.Transform(x, index_dst, [1, 2], new_dims=new_dims)
    graph = Graph(y)
    before = given.clone()
    for leaves in ({}, {x: given}):
        for node in (x, y):
            graph.value(node, leaves).add_(1.0)
        graph.jacobian(y, x, leaves).add_(1.0)
        assert torch.equal(given, before)
    graph.forward()
    for node in (x, y):
        expected = node.value().clone()
        graph.value(node)[0] += 1.0
        assert torch.equal(node.value(), expected)
    described = LeafNode([2], kind=LeafKind.CONSTANT, fill=1.0)
    ones = Graph(described).value(described, {})
    ones[0] = 5.0
    assert ones.tolist() == [5.0, 1.0]


def test_forward_copies_leaf_values() -> None:
    x = build.Input([2], dtype=DOUBLE)
    y = build.Square(x)
    graph = Graph(y)
    batch = torch.tensor([1.0, 2.0], dtype=DOUBLE)
    graph.forward({x: batch})
    batch.fill_(9.0)
    graph.reset_forwarded()
    graph.forward()
    assert y.value().tolist() == [1.0, 4.0]
    x.value().zero_()
    assert batch.tolist() == [9.0, 9.0]


@pytest.mark.parametrize("rank", [18, 27, 40])
def test_tensor_with_many_axes(rank: int) -> None:
    x = build.Input([1] * (rank - 1) + [2], dtype=DOUBLE)
    axes, other_nodes = range(1, rank + 1), range(rank + 1, 2 * rank + 1)
    at = torch.tensor([2.0, 3.0], dtype=DOUBLE).reshape(x.shape)
    product = build.Linear(x, x, axes, axes, axes)
    graph = Graph(product)
    assert graph.value(product, {x: at}).flatten().tolist() == [4.0, 9.0]
    result = graph.hessian(product, x, x, {x: at})
    assert result.shape == (*x.shape, *x.shape, *x.shape)
    expected = torch.zeros(2, 2, 2, dtype=DOUBLE)
    expected[0, 0, 0] = expected[1, 1, 1] = 2.0
    assert torch.equal(result.reshape(2, 2, 2), expected)
    crossed = build.Linear(x, x, [*other_nodes, *axes], axes, other_nodes)
    assert graph.value(crossed, {x: at}).flatten().tolist() == [4.0, 6.0, 6.0, 9.0]


@pytest.mark.parametrize("val", [torch.ones(3, dtype=DOUBLE), torch.ones(1), 1j, "1", [1.0, 2.0], None])
def test_invalid_cotangent_raises(val: object) -> None:
    graph = Graph(build.Sum(parameter(3)))
    graph.forward()
    with pytest.raises(ValueError, match=r"TransformNode: backward: val: expected a number or a tensor of shape \[\]"):
        graph.backward(val)  # pyright: ignore[reportArgumentType]
    assert graph.sink.grad().item() == 0.0


@pytest.mark.parametrize("value", [None, "abc", {"a": 1}, [[1.0], 2.0], [10**400, 1]])
def test_non_numeric_value_raises(value: object) -> None:
    x = build.Input([2], dtype=DOUBLE, name="x")
    with pytest.raises(ValueError, match=r"LeafNode 'x': value: expected numbers of shape \[2\], got "):
        Graph(x).value(x, {x: value})


@pytest.mark.parametrize("leaves", [[1], "ab", {1}, 3])
def test_leaves_must_be_a_mapping(leaves: Any) -> None:
    x = build.Input([2], dtype=DOUBLE)
    for ask in (Graph(x).forward, lambda leaves: Graph(x).value(x, leaves)):
        with pytest.raises(ValueError, match="leaves: expected values by leaf or id, got "):
            ask(leaves)


def test_unused_nodes_are_freed() -> None:
    x = parameter(3)
    inner = build.Tanh(x)
    watched = weakref.ref(inner)
    outer = build.Sum(inner)
    del inner
    assert watched() is not None
    graph = Graph(outer)
    del outer
    graph.forward()
    assert watched() is not None
    del graph
    assert watched() is None
    assert x.has_grad()


def test_deep_graph_runs_and_is_freed() -> None:
    x = parameter()
    node: Node = x
    for _ in range(3_000):
        node = node + x
    graph = Graph(node)
    graph.forward()
    graph.backward()
    assert len(graph.nodes()) == 3_001
    assert x.grad().item() == 3_001
    watched = weakref.ref(node)
    del graph, node
    assert watched() is None


def test_parameter_value_is_the_tensor_itself() -> None:
    given = torch.nn.Parameter(torch.ones(3))
    w = build.Parameter(given)
    run(build.Sum(w * w))
    w.value().sub_(0.25 * w.grad())
    assert given.tolist() == [0.5] * 3
    assert given.grad is None
