"""Derivatives of graphs against torch: layouts, order, inner nodes, depth, dtypes and zeros."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gflownet.autodiff import nodes
from gflownet.autodiff.derivatives import gradient, hessian, hvp, jacobian, jvp, vjp
from gflownet.autodiff.evaluation import evaluate, topological_order
from gflownet.autodiff.functions import Function
from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, NonlinearNode, TransformNode

DOUBLE = torch.float64
EXTENTS = {"a": 2, "b": 3, "c": 4, "i": 2}


def leaf(axes: str = "", **fields) -> LeafNode:
    return LeafNode([EXTENTS[axis] for axis in axes], dtype=DOUBLE, **fields)


def layer() -> tuple[Node, list[LeafNode]]:
    """`out[i] = sum_a tanh(w[i,a] * x[a]) - x[a]`, the difference summed over a."""
    w, x = leaf("ia"), leaf("a")
    hidden = NonlinearNode(ElementwiseNode(w, x, [1, 2], [1, 2], [2], operation="*"), Function.parse("tanh"))
    return ElementwiseNode(hidden, x, [1], [1, -2], [-2], operation="-"), [w, x]


def layer_in_torch(w: Tensor, x: Tensor) -> Tensor:
    return (torch.tanh(w * x) - x).sum(1)


def test_third_derivatives():
    output, (w, x) = layer()
    generator = torch.Generator().manual_seed(1)
    values = {node: torch.randn(node.shape, dtype=DOUBLE, generator=generator) for node in (w, x)}
    expected = torch.func.jacrev(torch.func.hessian(layer_in_torch, 1), 1)(values[w], values[x])
    actual = jacobian(hessian(output, x), x, mode="forward")
    torch.testing.assert_close(evaluate([actual], values)[0], expected)
    thrice = jacobian(jacobian(jacobian(output, x), x), x)  # [third, second, first, output]
    torch.testing.assert_close(evaluate([thrice], values)[0].permute(3, 2, 1, 0), expected)


def test_gradient_by_node_and_its_input():
    x = leaf("a")
    y = NonlinearNode(x, Function.parse("square"))
    output = TransformNode(NonlinearNode(y, Function.parse("sin")), [], [-1])
    by_y, by_x = evaluate(gradient(output, [y, x]), {x: torch.tensor([1.0, 2.0], dtype=DOUBLE)})
    point = torch.tensor([1.0, 2.0], dtype=DOUBLE)
    torch.testing.assert_close(by_y, torch.cos(point**2))
    torch.testing.assert_close(by_x, 2 * point * torch.cos(point**2))


def test_jvp_with_tangent_of_inner_node():
    x = leaf("a")
    y = NonlinearNode(x, Function.parse("square"))
    point = torch.tensor([1.0, 2.0], dtype=DOUBLE)
    ones = LeafNode(y.shape, kind=LeafKind.CONSTANT, fill=1.0, dtype=DOUBLE)
    output = ElementwiseNode(y, x, [1], [1], [1], operation="+")
    torch.testing.assert_close(evaluate([jvp(output, {y: ones})], {x: point})[0], torch.ones(2, dtype=DOUBLE))
    torch.testing.assert_close(
        evaluate([jvp(output, {y: ones, x: ones})], {x: point})[0], torch.full((2,), 2.0, dtype=DOUBLE)
    )
    torch.testing.assert_close(evaluate([jvp(output, {x: ones})], {x: point})[0], 2 * point + 1)


def test_hvp_jvp_vjp():
    output, (w, x) = layer()
    loss = TransformNode(NonlinearNode(output, Function.parse("square")), [], [-1])
    generator = torch.Generator().manual_seed(2)
    values = {node: torch.randn(node.shape, dtype=DOUBLE, generator=generator) for node in (w, x)}
    v, u, t = leaf("ia"), leaf("a"), leaf("i")
    values |= {node: torch.randn(node.shape, dtype=DOUBLE, generator=generator) for node in (v, u, t)}

    def loss_in_torch(w: Tensor, x: Tensor) -> Tensor:
        return layer_in_torch(w, x).square().sum()

    points, directions = (values[w], values[x]), (values[v], values[u])
    expected = torch.autograd.functional.hvp(loss_in_torch, points, directions)[1]
    for actual, right in zip(evaluate(hvp(loss, [w, x], [v, u]), values), expected, strict=True):
        torch.testing.assert_close(actual, right)
    alone = evaluate([hvp(loss, x, u), hessian(loss, x)], values)
    torch.testing.assert_close(alone[0], alone[1] @ values[u])
    right = torch.func.jvp(layer_in_torch, points, directions)[1]
    torch.testing.assert_close(evaluate([jvp(output, {w: v, x: u})], values)[0], right)
    pull = torch.func.vjp(layer_in_torch, *points)[1]
    for actual, right in zip(evaluate(vjp(output, [w, x], t), values), pull(values[t]), strict=True):
        torch.testing.assert_close(actual, right)


def test_zero_derivatives_are_described_leaves():
    output, (_, x) = layer()
    other = leaf("bc")
    for actual, shape in ((jacobian(output, other), (3, 4, 2)), (jacobian(output, other, "forward"), (2, 3, 4))):
        assert isinstance(actual, LeafNode)
        assert (actual.fill, actual.given, actual.shape) == (0.0, None, shape)
    zero = hessian(output, x, other)
    assert isinstance(zero, LeafNode)
    assert (zero.fill, zero.shape) == (0.0, (2, 2, 3, 4))
    flat = NonlinearNode(NonlinearNode(x, Function.parse("sign")), Function.parse("exp"))
    assert getattr(jacobian(flat, x), "fill", None) == 0.0
    linear = NonlinearNode(x, Function.parse("3*x"))
    assert getattr(hessian(linear, x), "fill", None) == 0.0


def test_derivative_by_itself_is_identity_leaf():
    x = leaf("ab")
    for mode in ("reverse", "forward"):
        actual = jacobian(x, x, mode)
        assert isinstance(actual, LeafNode)
        assert (actual.is_identity, actual.shape, actual.given) == (True, (2, 3, 2, 3), None)
    scalar = LeafNode([], dtype=DOUBLE)
    assert getattr(gradient(scalar, scalar), "fill", None) == 1.0


def test_nodes_outside_the_path_are_not_derived():
    x, y = leaf("a"), leaf("a")
    through: Node = x
    aside: Node = y
    for _ in range(50):
        aside = NonlinearNode(aside, Function.parse("tanh"))
    output = ElementwiseNode(NonlinearNode(through, Function.parse("exp")), aside, [1], [1], [1], operation="*")
    for mode in ("reverse", "forward"):
        arguments = {*topological_order([output])}
        assert len([node for node in topological_order([jacobian(output, x, mode)]) if node not in arguments]) <= 5


def chain(num_layers: int) -> tuple[Node, LeafNode]:
    x = leaf("a")
    node: Node = x
    for _ in range(num_layers):
        node = NonlinearNode(ElementwiseNode(node, node, [1], [1], [1], operation="+"), Function.parse("sin"))
    return TransformNode(node, [], [-1]), x


@pytest.mark.parametrize(
    "derive", [gradient, lambda output, x: jvp(output, {x: leaf("a")})], ids=["reverse", "forward"]
)
def test_size_is_linear_and_depth_unlimited(derive):
    sizes = [len(topological_order([derive(*chain(n))])) / n for n in (100, 200, 1500)]
    assert max(sizes) - min(sizes) < 0.1
    assert max(sizes) < 7.5


def test_hessian_size_is_linear_in_depth():
    sizes = []
    for num_layers in (50, 200):
        output, x = chain(num_layers)
        sizes.append(len(topological_order([hessian(output, x)])) / num_layers)
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


def test_dtypes():
    x = LeafNode([2], dtype=torch.float32)
    w = leaf("ia")
    wide = nodes.CastNode(x, DOUBLE)
    output = TransformNode(NonlinearNode(LinearNode(w, wide, [1], [1, -2], [-2]), Function.parse("tanh")), [], [-1])
    by_x, by_w = gradient(output, [x, w])
    assert (by_x.dtype, by_w.dtype) == (torch.float32, DOUBLE)
    assert jacobian(output, x, "forward").dtype == DOUBLE
    values = {x: torch.tensor([0.5, -1.0]), w: torch.rand(2, 2, dtype=DOUBLE)}
    expected = torch.func.grad(lambda x: torch.tanh(values[w] @ x.double()).sum())(values[x])
    torch.testing.assert_close(evaluate([by_x], values)[0], expected)
    assert hessian(output, w, x).shape == (2, 2, 2)


def test_integer_nodes_block_derivatives():
    x = leaf("a")
    rounded = nodes.CastNode(nodes.CastNode(x, torch.int64), DOUBLE)
    output = ElementwiseNode(rounded, x, [1], [1], [1], operation="*")
    values = {x: torch.tensor([1.5, 2.5], dtype=DOUBLE)}
    for mode in ("reverse", "forward"):
        actual = evaluate([jacobian(output, x, mode)], values)[0]
        assert torch.equal(actual, torch.diag(torch.tensor([1.0, 2.0], dtype=DOUBLE)))


def test_infinite_slope():
    x = leaf("a")
    output = NonlinearNode(x, Function.parse("log(0)*x"))
    for mode in ("reverse", "forward"):
        actual = evaluate([jacobian(output, x, mode)], {x: torch.ones(x.shape, dtype=DOUBLE)})[0]
        assert (actual.diagonal() == -math.inf).all()


def test_derivatives_use_the_same_node_classes():
    output, (w, x) = layer()
    classes = {type(node) for node in topological_order([jacobian(hessian(output, w, x), x)])}
    assert classes <= {LeafNode, TransformNode, ElementwiseNode, LinearNode, NonlinearNode}


def test_messages():
    output, (w, x) = layer()
    loss = TransformNode(output, [], [-1], name="loss")
    with pytest.raises(ValueError, match=r"gradient: expected a scalar \(shape \[\]\), got shape \[2\]"):
        gradient(output, x)
    with pytest.raises(ValueError, match="jacobian: mode: expected 'reverse' or 'forward', got 'both'"):
        jacobian(output, x, "both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"tangent: expected a shape that starts with \[2\], got \[3\]"):
        jvp(output, {x: LeafNode([3], dtype=DOUBLE)})
    with pytest.raises(ValueError, match=r"cotangent: expected dtype torch.float64, got torch.float32"):
        vjp(output, [x], LeafNode([2], dtype=torch.float32))
    with pytest.raises(ValueError, match=r"hvp: vector: expected one for each of the 2 nodes, got 1"):
        hvp(loss, [w, x], [x])
    with pytest.raises(ValueError, match=r"hvp: wrt: expected every node once, got LeafNode.* twice"):
        hvp(loss, [x, x], [x, x])
    with pytest.raises(ValueError, match="tangents: expected one of at least one node, got none"):
        jvp(output, {})
    with pytest.raises(ValueError, match=r"tangents: expected one shape after that of their nodes"):
        jvp(output, {x: leaf("a"), w: leaf("iab")})
    with pytest.raises(TypeError, match="expected a node that is computed from others"):
        Nodes().form(x)
