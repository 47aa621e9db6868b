"""Factories and operators: values and gradients against torch in float64, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gflownet.autodiff import derivatives
from gflownet.autodiff import factories as build
from gflownet.autodiff.compilation import compile, compile_hessian
from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.factories import Einsum, LogSumExp, PickNegLogSoftmax
from gflownet.autodiff.functions import Function
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import LeafNode, Node

DOUBLE = torch.float64
FUNCTIONS: dict[Callable[[Node], Node], Callable[[Tensor], Tensor]] = {
    build.Exp: torch.exp,
    build.Log: torch.log,
    build.Sin: torch.sin,
    build.Cos: torch.cos,
    build.Tanh: torch.tanh,
    build.Sqrt: torch.sqrt,
    build.Negate: torch.neg,
    build.Reciprocal: torch.reciprocal,
    build.Square: torch.square,
    build.Cube: lambda x: x**3,
    build.Sigmoid: torch.sigmoid,
    build.Relu: torch.relu,
    build.Gelu: torch.nn.functional.gelu,
    build.Softplus: torch.nn.functional.softplus,
    build.Silu: torch.nn.functional.silu,
    build.Abs: torch.abs,
    build.Erf: torch.erf,
}


def leaf(*shape: int, seed: int = 0, positive: bool = False) -> LeafNode:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return build.Parameter(values.abs() + 0.1 if positive else values, name=f"leaf{seed}")


def check(node: Node, expected: Callable[..., Tensor], *leaves: LeafNode) -> None:
    """Compare value and gradients of the sum of `node`, weighted by its own entries' numbers, with torch's."""
    arguments = [leaf.value().clone().requires_grad_() for leaf in leaves]
    expected_value = expected(*arguments)
    weights = torch.arange(1.0, expected_value.numel() + 1, dtype=DOUBLE).reshape(expected_value.shape)
    graph = Graph(node)
    graph.forward()
    graph.reset_grad()
    node.grad().copy_(weights)
    graph.backward(0.0)
    torch.testing.assert_close(node.value(), expected_value, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(expected_value, arguments, weights)
    for own_axes, gradient in zip(leaves, gradients, strict=True):
        torch.testing.assert_close(own_axes.grad(), gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("factory", FUNCTIONS, ids=lambda factory: factory.__name__)
def test_functions(factory: Callable[[Node], Node]) -> None:
    x = leaf(3, 2, positive=factory in (build.Log, build.Sqrt))
    check(factory(x), FUNCTIONS[factory], x)
    assert f"{factory.__name__.lower()} of every entry" in (factory.__doc__ or "")


PAIRS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((3, 2), (3, 2)), ((3, 2), ()), ((), (3, 2)), ((4, 3, 2), (2,))]


@pytest.mark.parametrize(("left", "right"), [*PAIRS, ((2,), (4, 3, 2)), ((3, 2), (4, 3, 2)), ((), ())])
def test_arithmetic_on_two_nodes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = leaf(*left), leaf(*right, seed=1, positive=True)
    check(a + b, lambda a, b: a + b, a, b)
    check(a - b, lambda a, b: a - b, a, b)
    check(a * b, lambda a, b: a * b, a, b)
    check(a / b, lambda a, b: a / b, a, b)
    check(build.Add(build.Subtract(a, b), build.Multiply(a, b)), lambda a, b: a - b + a * b, a, b)
    check(build.Divide(a, b), lambda a, b: a / b, a, b)


def test_arithmetic_with_numbers() -> None:
    x = leaf(3, 2, positive=True)
    check(x + 2, lambda x: x + 2, x)
    check(2.5 + x, lambda x: 2.5 + x, x)
    check(x - 2, lambda x: x - 2, x)
    check(2 - x, lambda x: 2 - x, x)
    check(x * 3, lambda x: x * 3, x)
    check(3 * x, lambda x: x * 3, x)
    check(x / 4, lambda x: x / 4, x)
    check(1 / x, lambda x: 1 / x, x)
    check(-x, lambda x: -x, x)
    check(x**2.5, lambda x: x**2.5, x)
    check(build.Power(x, 3), lambda x: x**3, x)
    check(build.Nonlinear(x, "exp(sin)"), lambda x: torch.exp(torch.sin(x)), x)
    check(build.Nonlinear(x, Function.parse("log")), torch.log, x)
    three: Any = np.int64(3)
    check(x * three + np.float64(0.5), lambda x: 3 * x + 0.5, x)


MATRICES = [((3,), (3,)), ((3,), (3, 2)), ((4, 3), (3,)), ((4, 3), (3, 2)), ((5, 4, 3), (5, 3, 2)), ((5, 4, 3), (3, 2))]


@pytest.mark.parametrize(("left", "right"), [*MATRICES, ((4, 3), (5, 3, 2)), ((3,), (5, 3, 2)), ((5, 4, 3), (3,))])
def test_matrix_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = leaf(*left), leaf(*right, seed=1)
    check(a @ b, torch.matmul, a, b)
    check(build.MatMul(a, b), torch.matmul, a, b)


def test_sums_means_transpositions_broadcasts() -> None:
    x = leaf(4, 3, 2)
    check(build.Sum(x), torch.sum, x)
    check(build.Sum(x, [1]), lambda x: x.sum(1), x)
    check(build.Sum(x, [0, -1]), lambda x: x.sum((0, -1)), x)
    check(build.Mean(x), torch.mean, x)
    check(build.Mean(x, [2]), lambda x: x.mean(2), x)
    check(build.Transpose(x), lambda x: x.permute(2, 1, 0), x)
    check(build.Transpose(x, [1, 2, 0]), lambda x: x.permute(1, 2, 0), x)
    check(build.Broadcast(x, [5, 6, 4, 3, 2]), lambda x: x.expand(5, 6, 4, 3, 2), x)
    check(
        build.Transform(x, [-1, 2], [-1, 2, -2], alpha=0.5, new_dims=[7]), lambda x: 0.5 * x.sum((0, 2)).expand(7, 3), x
    )


EQUATIONS = {
    "ii->": [(3, 3)],
    "ii->i": [(3, 3)],
    "iij,jik->k": [(2, 2, 3), (3, 2, 2)],
    "iiij->ji": [(2, 2, 2, 3)],
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij,jk": ((2, 3), (3, 4)),
    "ij->ji": ((2, 3),),
    "ij->": ((2, 3),),
    "i,j,k->kji": ((2,), (3,), (4,)),
    "bij,bjk,k->bi": ((5, 2, 3), (5, 3, 4), (4,)),
    "ij,jk,kl,lm->im": ((2, 3), (3, 4), (4, 2), (2, 3)),
    "ij,kl->ik": ((2, 3), (4, 2)),
    "ij, ij, ij -> i": ((2, 3), (2, 3), (2, 3)),
    ",i->i": ((), (3,)),
    ",->": ((), ()),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einstein_sums(equation: str) -> None:
    leaves = [leaf(*shape, seed=seed) for seed, shape in enumerate(EQUATIONS[equation])]
    check(Einsum(equation, *leaves), lambda *arguments: torch.einsum(equation, *arguments), *leaves)


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij->ii", ((3, 3),), "expected every index once in the result, got 'i' twice in 'ii'"),
        ("ii->i", ((3, 2),), "expected one extent for 'i', got 3 and 2"),
        ("ij,jk->ik", ((3, 3),), "expected 2 operands, got 1"),
        ("ij->ik", ((3, 3),), r"expected the result's indices among the operands', got \['k'\]"),
        ("...i->i", ((3, 3),), "expected letters, commas and one ->; an ellipsis is not taken"),
        ("ij->i", ((3,),), r"expected an operand with axes 'ij', got LeafNode 'leaf0' \(3,\)"),
        ("ij,jk->ik", ((3, 2), (3, 2)), "expected one extent for 'j', got 2 and 3"),
    ],
)
def test_invalid_einsum_raises(equation: str, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Einsum(equation, *(leaf(*shape) for shape in shapes))


ROWS, COLUMNS, LAST, SCALAR = leaf(0, 3, seed=1), leaf(3, 2, seed=2), leaf(3, seed=3), leaf(seed=4)


@pytest.mark.parametrize(
    ("node", "function", "leaves"),
    [
        (build.Sum(build.Tanh(ROWS @ COLUMNS)), lambda a, b: torch.tanh(a @ b).sum(), [ROWS, COLUMNS]),
        (build.Transpose(ROWS) @ ROWS, lambda a: a.T @ a, [ROWS]),
        (build.Sum(ROWS * LAST + 1.0) + SCALAR, lambda a, b, c: (a * b + 1.0).sum() + c, [ROWS, LAST, SCALAR]),
        (build.Elementwise(ROWS, LAST, [1], [-1, 1], [1], operation="+"), lambda a, b: (a + b).sum(0), [ROWS, LAST]),
        (build.Broadcast(LAST, [0, 3]), lambda a: a.expand(0, 3), [LAST]),
        (LogSumExp(ROWS), lambda a: torch.logsumexp(a, -1), [ROWS]),
        (
            Einsum("ni,ij,nk->jk", ROWS, COLUMNS, ROWS),
            lambda a, b: torch.einsum("ni,ij,nk->jk", a, b, a),
            [ROWS, COLUMNS],
        ),
    ],
)
def test_axes_of_extent_zero(node: Node, function: Callable[..., Tensor], leaves: list[LeafNode]) -> None:
    check(node, function, *leaves)
    arguments = [each.value() for each in leaves]
    expected = function(*arguments)
    torch.testing.assert_close(compile(node, leaves=leaves)(*arguments), expected)
    hessian = compile_hessian(node, leaves[0], leaves=leaves)(*arguments)
    assert hessian.shape == (*expected.shape, *leaves[0].shape, *leaves[0].shape)
    assert Graph.from_dict(Graph(ROWS).to_dict()).sink.shape == (0, 3)
    with pytest.raises(ValueError, match="Mean: expected at least one entry"):
        build.Mean(ROWS)


@pytest.mark.parametrize("num_classes", range(1, 12))
def test_log_sum_exp(num_classes: int) -> None:
    x = leaf(4, num_classes)
    check(LogSumExp(x), lambda x: torch.logsumexp(x, -1), x)
    vector = leaf(num_classes)
    check(LogSumExp(vector), lambda x: torch.logsumexp(x, -1), vector)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 10])
def test_cross_entropy(num_classes: int) -> None:
    logits, target = leaf(2, 3, num_classes), torch.arange(6).reshape(2, 3) % num_classes
    one_hot = build.FixedInput(torch.nn.functional.one_hot(target, num_classes).double())

    def expected(logits: Tensor) -> Tensor:
        return -torch.log_softmax(logits, -1).gather(-1, target[..., None])[..., 0]

    check(PickNegLogSoftmax(logits, target), expected, logits)
    check(PickNegLogSoftmax(logits, one_hot), expected, logits)
    vector = leaf(num_classes)
    check(PickNegLogSoftmax(vector, num_classes - 1), lambda x: -torch.log_softmax(x, -1)[-1], vector)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e2, 1e4, 1e300])
def test_cross_entropy_of_large_logits(scale: float) -> None:
    """Values, gradients and Hessians of logits far apart, tied, and with a large offset in common."""
    arguments = scale * torch.tensor([[1.0, -1.0, 0.5, 1.0], [3.0, 3.0, 3.0, 3.0], [0.0, -1.0, 2.0, 1.0]], dtype=DOUBLE)
    logits, target = build.Parameter(arguments), torch.tensor([0, 1, 2])
    loss = build.Sum(PickNegLogSoftmax(logits, target))
    check(loss, lambda x: torch.nn.functional.cross_entropy(x, target, reduction="sum"), logits)
    value, gradient, hessian = evaluate(
        [loss, derivatives.gradient(loss, logits), derivatives.hessian(loss, logits, logits)]
    )

    def expected(x: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x, target, reduction="sum")

    torch.testing.assert_close(value, expected(arguments))
    torch.testing.assert_close(gradient, torch.func.grad(expected)(arguments))
    torch.testing.assert_close(hessian, torch.func.hessian(expected)(arguments))


INF = float("inf")
LOWEST = torch.finfo(DOUBLE).min


@pytest.mark.parametrize(
    ("row", "target"),
    [
        ([1.0, -INF, 3.0], 0),
        ([-INF, 2.0, -INF], 1),
        ([1.0, -INF, 0.0], 1),
        ([1.0, LOWEST, 3.0], 0),
        ([1e308, -1e308, 0.0], 0),
        ([-INF, 0.5, -INF, 1.5, 700.0, -1e30], 3),
    ],
)
def test_masked_logits_match_torch(row: list[float], target: int) -> None:
    """Values, gradients, Hessians and JSON of logits of -inf (tests/reports: optax#896, pytorch#31829)."""
    arguments = torch.tensor([row, [0.25 * k for k in range(len(row))]], dtype=DOUBLE)
    logits, targets = build.Parameter(arguments), torch.tensor([target, 0])
    one_hot = build.FixedInput(torch.nn.functional.one_hot(targets, len(row)).double())

    def cross_entropy(x: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x, targets, reduction="sum")

    def log_sum_exp(x: Tensor) -> Tensor:
        return torch.logsumexp(x, -1).sum()

    cases = [(PickNegLogSoftmax(logits, t), cross_entropy) for t in (targets, one_hot)] + [
        (LogSumExp(logits), log_sum_exp)
    ]
    for node, function in cases:
        loss = build.Sum(node)
        both = [loss, derivatives.gradient(loss, logits)]
        value, gradient = evaluate(both)
        compiled = compile(both, leaves=[logits])(arguments)
        expected = function(arguments), torch.func.grad(function)(arguments)
        torch.testing.assert_close((value, gradient), expected)
        torch.testing.assert_close(compiled, expected)
        hessian = compile_hessian(loss, logits, leaves=[logits])(arguments)
        assert bool(hessian.isfinite().all())
        if bool(arguments.isfinite().all()):
            torch.testing.assert_close(hessian, torch.func.hessian(function)(arguments))
        graph = Graph(loss)
        graph.forward()
        graph.backward()
        torch.testing.assert_close((loss.value(), logits.grad()), expected)
        graph.reset_grad()
        (same,) = Graph.from_dict(graph.to_dict()).outputs
        torch.testing.assert_close(evaluate([same])[0], value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (3, "expected classes from 0 to 2, got 3"),
        (torch.tensor([0, -1]), r"expected classes from 0 to 2, got \[0, -1\]"),
        (torch.tensor([0, 1, 2]), r"expected shape \(2,\), got \(3,\)"),
        (torch.tensor([0.0, 1.0]), "expected classes from 0 to 2"),
        (build.FixedInput([3]), r"expected the logits' shape \(2, 3\), got \(3,\)"),
    ],
)
def test_invalid_targets_raise(target: int | Tensor | Node, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PickNegLogSoftmax(leaf(2, 3), target)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: leaf(2, 3) + leaf(3, 2), r"LeafNode 'leaf0' \+ LeafNode 'leaf0': expected operands of one shape"),
        (lambda: leaf(2, 1) * leaf(2, 3), "expected operands of one shape, a scalar, or the other's last axes"),
        (lambda: leaf(2, 3) @ leaf(2, 3), "expected one extent for index"),
        (lambda: leaf(2, 3) @ leaf(), "expected two operands of at least one axis"),
        (lambda: leaf(5, 2, 3) @ leaf(4, 5, 3, 2), "expected as many batch axes"),
        (lambda: build.Sum(leaf(2, 3), [2]), r"expected an axis of shape \(2, 3\), got 2"),
        (lambda: build.Broadcast(leaf(2), [2, 3]), r"expected a shape that ends in \(2,\), got \[2, 3\]"),
        (lambda: build.Multiply(2.0, 3.0), "expected a node, got 3.0"),
        (lambda: leaf(2) + "x", "expected a number, got 'x'"),  # pyright: ignore[reportOperatorIssue]
        (lambda: build.Nonlinear(leaf(2), "tan"), "tan"),
        (lambda: LogSumExp(leaf()), "LogSumExp: expected at least one axis, got a scalar"),
        (lambda: PickNegLogSoftmax(leaf(), 0), "PickNegLogSoftmax: expected at least one axis, got a scalar"),
    ],
)
def test_mismatched_operands_raise(make: Callable[[], Node], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_leaf_factories() -> None:
    arguments = torch.ones(2, dtype=torch.float32)
    leaves = [
        make(arguments, name="x") for make in (build.Input, build.FixedInput, build.Parameter, build.FixedParameter)
    ]
    assert [leaf.kind for leaf in leaves] == [0, 0, 1, 1]
    assert [leaf.requires_grad for leaf in leaves] == [True, False, True, False]
    assert {leaf.dtype for leaf in leaves} == {torch.float32}
    assert build.Parameter(arguments, dtype=DOUBLE).dtype == DOUBLE
    constant = build.Constant(2.0)
    assert (constant.kind, constant.shape, constant.has_grad()) == (2, (), False)
    assert build.Constant(arguments).value() is not None
    identity = build.Identity([2, 3], dtype=DOUBLE)
    assert torch.equal(evaluate([identity])[0], torch.eye(6, dtype=DOUBLE).reshape(2, 3, 2, 3))
