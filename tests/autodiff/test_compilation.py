"""Compiled programs against the evaluation by node; calls, memory, generated code, torch.autograd and torch.func."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gflownet.autodiff import derivatives
from gflownet.autodiff import factories as build
from gflownet.autodiff.compilation import Program, clear_cache, compile, compile_gradient, compile_hessian
from gflownet.autodiff.evaluation import evaluate, topological_order
from gflownet.autodiff.functions import PRIMITIVES, Function
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import ElementwiseNode, LeafNode, LinearNode, Node
from tests.autodiff.random_graphs import random_graph

DOUBLE = torch.float64
Values = Mapping[LeafNode, Tensor]


class Living(TorchDispatchMode):
    """Record the maximum number of entries held at a time by new tensors, without the arguments."""

    def __init__(self, *arguments: Tensor) -> None:
        super().__init__()
        self.most = 0
        self._arguments = {tensor.untyped_storage().data_ptr() for tensor in arguments}
        self._tensors: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._tensors.append(weakref.ref(result))
        tensors = [tensor for reference in self._tensors if (tensor := reference()) is not None]
        by_storage = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // 8 for t in tensors}
        self.most = max(self.most, sum(n for place, n in by_storage.items() if place not in self._arguments))
        return result


def leaf(*shape: int, name: str | None = None) -> LeafNode:
    return build.Input(shape, name=name, dtype=DOUBLE)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def check(program: Program, node: Node, leaves: Values) -> None:
    """Compare with the node, as it runs and in the form that torch.autograd may go through."""
    [expected] = evaluate([node], leaves)
    tracked = {leaf: value.clone().requires_grad_() for leaf, value in leaves.items()}
    for result in (program(dict(leaves)), program(tracked)):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-11)


def random_case(seed: int) -> tuple[Node, list[Node], Values]:
    """Return an output, two of its inputs, and values of the leaves."""
    random = random_graph(seed, ["signed", "positive"][seed % 2])
    graph = Graph.from_dict(random.graph)
    leaves = {graph.node(id): torch.tensor(value) for id, value in random.leaves.items()}
    output = graph.node(random.output)
    inner = topological_order([output])
    return output, [inner[seed % len(inner)], inner[seed // 3 % len(inner)]], leaves  # pyright: ignore


@pytest.mark.parametrize("first_seed", range(0, 100, 50))
def test_values_and_jacobians_of_random_graphs(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        output, (by, _), leaves = random_case(seed)
        check(compile(output, leaves=list(leaves)), output, leaves)
        for mode in ("reverse", "forward"):
            jacobian = derivatives.jacobian(output, by, mode)
            check(compile(jacobian, leaves=list(leaves)), jacobian, leaves)


@pytest.mark.parametrize("first_seed", range(0, 50, 50))
def test_gradients_and_hessians_of_random_graphs(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        output, (first, second), leaves = random_case(seed)
        leaf_values, scalar = list(leaves), build.Sum(output)
        check(compile_gradient(scalar, first, leaves=leaf_values), derivatives.gradient(scalar, first), leaves)
        check(compile_hessian(scalar, first, leaves=leaf_values), derivatives.hessian(scalar, first), leaves)
        for target in (scalar, output):
            program = compile_hessian(target, first, second, leaves=leaf_values)
            check(program, derivatives.hessian(target, first, second), leaves)


def _residual(x: Node, w: Node) -> Node:
    return build.Sum(build.Square(x + w @ build.Tanh(w @ x)))


def _squared_exponential(x: Node, w: Node) -> Node:
    # the slope of the square is equal to a part of its input
    u = build.Exp(x)
    return build.Sum(u * u)


def _read_twice(x: Node, w: Node) -> Node:
    # everything passes through the sum, which has x as it is too
    return build.Sum(x + build.Erf(x * x))


def _bilinear(x: Node, w: Node) -> Node:
    return build.MatMul(x, w @ x)


def _deep(x: Node, w: Node) -> Node:
    for _ in range(5):
        x = build.Relu(w @ x)
    return build.Log(build.Sum(build.Exp(x)))


@pytest.mark.parametrize("formula", [_residual, _squared_exponential, _read_twice, _bilinear, _deep])
@pytest.mark.parametrize("by", [0, 1])
def test_hessian_through_bottlenecks(formula: Callable[[Node, Node], Node], by: int) -> None:
    leaves = {leaf(3, name="x"): normal(3), leaf(3, 3, name="w"): normal(3, 3, seed=1)}
    wrt = list(leaves)[by]
    output = formula(*leaves)
    check(compile_hessian(output, wrt, leaves=list(leaves)), derivatives.hessian(output, wrt), leaves)


def test_compiled_products_with_the_joint_hessian() -> None:
    leaves = {leaf(3, name="x"): normal(3), leaf(3, 3, name="w"): normal(3, 3, seed=1)}
    directions = {leaf(3): normal(3, seed=2), leaf(3, 3): normal(3, 3, seed=3)}
    output = _residual(*leaves)
    products = derivatives.hvp(output, list(leaves), list(directions))
    program = compile(products, leaves=[*leaves, *directions])
    expected = evaluate(products, {**leaves, **directions})
    for result, value in zip(program({**leaves, **directions}), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-12, atol=1e-12)


def test_equal_nodes_stay_distinct_for_differentiation() -> None:
    x = leaf(3)
    one, other = build.Exp(x), build.Exp(x)
    output = build.Sum(one * other)
    value = normal(3)
    torch.testing.assert_close(compile_gradient(output, one)(value), value.exp())
    torch.testing.assert_close(compile_gradient(output, x)(value), 2 * (2 * value).exp())


def test_equal_structure_reuses_code() -> None:
    clear_cache()
    first_x, first_w = leaf(3, name="x"), leaf(3, 3, name="w")
    first = compile_hessian(_residual(first_x, first_w), first_x, leaves=[first_x, first_w])
    x, w = leaf(3), leaf(3, 3)
    second = compile_hessian(_residual(x, w), x, leaves=[w, x])
    assert second.source is first.source
    assert second.leaves == (w, x)
    a, b = normal(3), normal(3, 3, seed=1)
    assert torch.equal(first(a, b), second(b, a))
    torch.testing.assert_close(second(b, a), evaluate([derivatives.hessian(_residual(x, w), x)], {x: a, w: b})[0])


def _transformed_variants(x: Node) -> list[Node]:
    return [
        build.Transform(x, [1], [1, -1]),
        build.Transform(x, [2], [-1, 2]),
        build.Transform(x, [1], [1, -1], alpha=2.0),
        build.Transform(x, [1, -1], [1, -2], new_dims=[3]),
        build.Sum(build.Tanh(x)),
        build.Sum(build.Sin(x)),
        x + x,
        x - x,
        x * x,
        LinearNode(x, x, [1, 2], [1, -1], [2, -1]),
        LinearNode(x, x, [2, 1], [1, -1], [2, -1]),
        LinearNode(x, x, [1, 2], [-1, 1], [2, -1]),
        build.Cast(x, torch.float32),
        x + build.Constant(1.0, dtype=DOUBLE),
        x + build.Constant(2.0, dtype=DOUBLE),
    ]


def test_different_structures_have_different_programs() -> None:
    clear_cache()
    x, value = leaf(3, 3), normal(3, 3)
    for node in _transformed_variants(x):
        assert torch.equal(compile(node)(value), compile(node)(value))
        torch.testing.assert_close(compile(node)(value), evaluate([node], {x: value})[0])
    big = leaf(4, 4)
    assert compile(build.Tanh(big))(normal(4, 4)).shape == (4, 4)
    assert compile(build.Tanh(x))(value).shape == (3, 3)


def test_index_names_do_not_matter() -> None:
    clear_cache()
    x = leaf(3, 3)
    one, other = LinearNode(x, x, [1, 2], [1, -1], [2, -1]), LinearNode(x, x, [7, 4], [7, -2], [4, -2])
    assert compile(one).source is compile(other).source


def test_compile_errors() -> None:
    x = leaf(3, name="x")
    with pytest.raises(ValueError, match=r"NonlinearNode: compile_gradient: expected a scalar .* got shape \[3\]"):
        compile_gradient(build.Tanh(x), x)
    with pytest.raises(ValueError, match="leaves: expected LeafNode 'x' among them"):
        compile(build.Tanh(x), leaves=[])


def test_integers_have_no_derivative() -> None:
    counts, x = LeafNode([3], dtype=torch.int64), leaf(3)
    program = compile_gradient(build.Sum(build.Cast(counts, DOUBLE) * x), [counts, x])
    by_counts, by_x = program(torch.arange(3), normal(3))
    assert torch.equal(by_counts, torch.zeros(3, dtype=torch.int64))
    assert torch.equal(by_x, torch.arange(3).double())


def test_compile_deep_chain() -> None:
    x = leaf(2)
    node: Node = x
    for _ in range(1500):
        node = build.Sin(node)
    value = normal(2)
    expected = value.clone().requires_grad_()
    sines = expected
    for _ in range(1500):
        sines = torch.sin(sines)
    [slope] = torch.autograd.grad(sines.sum(), expected)
    torch.testing.assert_close(compile_gradient(build.Sum(node), x)(value), slope)


@pytest.mark.parametrize(("num_inputs", "is_small"), [(2, True), (40, False)])
def test_hessian_by_few_inputs_of_wide_layers(num_inputs: int, is_small: bool) -> None:
    x, first, second = leaf(num_inputs), leaf(60, num_inputs), leaf(60, 60)
    loss = build.Sum(build.Tanh(second @ build.Tanh(first @ x)))
    values = {x: normal(num_inputs), first: normal(60, num_inputs, seed=1) / 3, second: normal(60, 60, seed=2) / 5}
    program = compile_hessian(loss, x)
    check(program, derivatives.hessian(loss, x), values)
    living = Living(*values.values())
    with living:
        program(values)
    assert (living.most < 60 * 60) is is_small


def test_argument_order() -> None:
    a, b = leaf(2, 3, name="a"), leaf(3, name="b")
    first, second = normal(2, 3), normal(3)
    expected = first @ second
    torch.testing.assert_close(compile(a @ b)(first, second), expected)
    torch.testing.assert_close(compile(a @ b, leaves=[b, a])(second, first), expected)
    torch.testing.assert_close(compile(a @ b)({b: second, a: first}), expected)


def test_leaves_with_value_are_optional() -> None:
    x = leaf(3, name="x")
    w = build.Parameter(normal(3), name="w")
    program = compile(build.Sum(w * x))
    assert program.leaves == (x,)
    torch.testing.assert_close(program(torch.ones(3, dtype=DOUBLE)), normal(3).sum())
    other = normal(3, seed=1)
    torch.testing.assert_close(program({x: torch.ones(3, dtype=DOUBLE), w: other}), other.sum())
    torch.testing.assert_close(compile(build.Sum(w * x), leaves=[w, x])(other, other), other.square().sum())
    torch.testing.assert_close(compile(build.Sum(w))(), normal(3).sum())


def test_program_returns_tensor_or_tuple() -> None:
    x = leaf(3)
    assert isinstance(compile(build.Tanh(x))(normal(3)), Tensor)
    [alone] = compile([build.Tanh(x)])(normal(3))
    first, second_result, second = compile([build.Tanh(x), build.Tanh(x), build.Sum(x)])(normal(3))
    assert torch.equal(alone, first)
    assert torch.equal(first, second_result)
    assert second.shape == ()


def test_results_share_no_memory() -> None:
    x = leaf(3, 3)
    turned = build.Transpose(x)
    rows = build.Broadcast(build.Sum(x, [0]), (3, 3))
    tanh = build.Tanh(x)
    value = normal(3, 3)
    remaining = value.clone()
    outputs = compile([x, turned, rows, tanh, tanh, build.Transpose(tanh), build.Sum(turned, [0])])(value)
    expected = [output.clone() for output in outputs]
    for k, output in enumerate(outputs):
        output.fill_(float(k))
        for other, before in zip(outputs[k + 1 :], expected[k + 1 :], strict=True):
            assert torch.equal(other, before)
    assert torch.equal(value, remaining)


def test_constants_without_arguments() -> None:
    three = build.Constant(3.0, dtype=DOUBLE)
    assert compile(build.Exp(three))().item() == pytest.approx(20.085536923187668)
    assert torch.equal(compile(build.Identity((2,), dtype=DOUBLE))(), torch.eye(2, dtype=DOUBLE))


def test_source_is_straight_line_torch() -> None:
    w, x, b = leaf(4, 3), leaf(3), leaf(4)
    program = compile(build.Tanh(w @ x + b))
    assert program.source == "\n".join(
        ["def program(x0, x1, x2):", "    v3 = torch.addmv(x2, x0, x1)", "    v3.tanh_()", "    return v3", ""]
    )
    assert program.num_operations == 2


def test_common_function_parts_are_computed_once() -> None:
    x = leaf(5)
    loss = build.Sum(build.Tanh(x))
    program = compile([loss, derivatives.gradient(loss, x)])
    assert program.source.count("tanh") == 1


def test_diagonal_hessian_has_no_delta_product() -> None:
    x, a = leaf(500), leaf(500)
    loss = build.Sum(build.Exp(a * x))
    value, slope = normal(500), normal(500, seed=1)
    program = compile_hessian(loss, x, leaves=[x, a])
    living = Living()
    with living:
        actual = program(value, slope)
    torch.testing.assert_close(actual, torch.diag(slope.square() * (slope * value).exp()))
    assert living.most < 500 * 500 + 10 * 500  # the result, and vectors
    assert all(word not in program.source for word in ("mm", "eye", "einsum"))


def test_low_rank_hessian_stays_factored() -> None:
    points, x = leaf(400, 5), leaf(5)
    loss = build.Log(build.Sum(build.Exp(points @ x)))  # by points @ x: diag(p) - p p^T
    values = (normal(400, 5), normal(5, seed=1))
    program = compile_hessian(loss, x, leaves=[points, x])
    living = Living(*values)
    with living:
        actual = program(*values)
    p = torch.softmax(values[0] @ values[1], 0)
    mean = p @ values[0]
    torch.testing.assert_close(actual, values[0].T @ (p[:, None] * values[0]) - mean[:, None] * mean)
    assert living.most < 10 * 400 * 5


def test_intermediates_are_freed_after_their_last_use() -> None:
    x, w = leaf(50, 50), leaf(50, 50)
    node: Node = x
    for _ in range(30):
        node = build.Tanh(node @ w)
    program, first, second = compile(build.Sum(node)), normal(50, 50), normal(50, 50, seed=1)
    living = Living()
    with living:
        program(first, second)
    assert living.most <= 2 * 50 * 50 + 1


@pytest.mark.parametrize("seed", range(5))
def test_live_memory_is_not_overwritten(seed: int) -> None:
    x = leaf(4, 4)
    a = build.Tanh(x)
    turned = build.Transpose(a)
    outer = ElementwiseNode(a, turned, [1, 2], [1, 2], [1, 2], operation="+")
    node = build.Sum(build.Exp(a) * turned + outer * a - build.Square(a))
    value = normal(4, 4, seed=seed)
    t = value.tanh()
    expected = (t.exp() * t.T + (t + t.T) * t - t.square()).sum()
    torch.testing.assert_close(compile(node)(value), expected)


def test_product_order() -> None:
    w, m, v = leaf(200, 200), leaf(200), leaf(200)
    scaled = ElementwiseNode(w, m, [1, 2], [1, 2], [2], operation="*")
    outer = LinearNode(m, v, [1, 2], [1], [2])
    values = (normal(200, 200), normal(200, seed=1), normal(200, seed=2))
    for node in (scaled @ v, build.MatMul(outer, v), build.MatMul(v, build.MatMul(w, outer))):
        program = compile(node, leaves=[w, m, v])
        living = Living(*values)
        with living:
            actual = program(*values)
        assert living.most < 5 * 200  # no matrix but w
        assert actual.shape == (200,)


def test_autograd_and_torch_func() -> None:
    x, w = leaf(3), leaf(3, 3)
    program = compile(build.Sum(build.Tanh(w @ build.Tanh(w @ x))), leaves=[x, w])
    a, b = normal(3), normal(3, 3, seed=1)

    def reference(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(w @ torch.tanh(w @ x)).sum()

    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(transform(program)(a, b), transform(reference)(a, b))
    tangents = torch.func.jvp(program, (a, b), (a, b))[1]
    torch.testing.assert_close(tangents, torch.func.jvp(reference, (a, b), (a, b))[1])
    with torch.autograd.forward_ad.dual_level():
        dual = program(torch.autograd.forward_ad.make_dual(a, a), b)
        assert torch.autograd.forward_ad.unpack_dual(dual).tangent is not None


def test_results_in_autograd_graph() -> None:
    x = leaf(3)
    gradient = compile_gradient(build.Sum(build.Exp(x)), x)(normal(3))
    weight = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    [actual] = torch.autograd.grad((gradient * weight).sum(), weight)
    assert torch.equal(actual, gradient)


def test_mixed_dtypes() -> None:
    x = leaf(3)
    narrow = build.Tanh(build.Cast(x, torch.float32))
    program = compile([narrow, build.Cast(narrow, DOUBLE) * x])
    value = normal(3)
    first, second = program(value)
    assert (first.dtype, second.dtype) == (torch.float32, DOUBLE)
    torch.testing.assert_close(first, value.float().tanh())
    gradient = compile_gradient(build.Sum(build.Cast(narrow, DOUBLE)), x)(value)
    assert gradient.dtype == DOUBLE
    torch.testing.assert_close(gradient, (1 - value.float().tanh() ** 2).double())


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_code_of_every_primitive(name: str) -> None:
    x = leaf(5)
    function = Function.parse(name)
    value = torch.tensor([-1.5, -0.3, 0.2, 0.9, 30.0], dtype=DOUBLE)
    value = value.abs() if name == "log" else value
    for _ in range(3):
        actual = compile(build.Nonlinear(x, function))(value)
        torch.testing.assert_close(actual, function(value), rtol=1e-12, atol=1e-13)
        function = function.derivative()


def test_complex_values_and_integer_casts() -> None:
    a, v, whole = leaf(3, 3), build.Input((3,), dtype=torch.complex128), build.Input((3,), dtype=torch.int64)
    mixed = build.Cast(a, torch.complex128) @ (build.Exp(v) * build.Cast(whole, torch.complex128))
    values = {a: normal(3, 3), v: torch.complex(normal(3), normal(3, seed=1)), whole: torch.tensor([1, 2, 3])}
    [expected] = evaluate([mixed], values)
    actual = compile(mixed)(values)
    assert actual.dtype == torch.complex128
    torch.testing.assert_close(actual, expected)


def test_errors_name_the_leaf() -> None:
    x = leaf(3, name="x")
    program = compile(build.Tanh(x))
    with pytest.raises(ValueError, match=r"LeafNode 'x': expected shape \[3\] and torch.float64, got \[4\]"):
        program(normal(4))
    with pytest.raises(ValueError, match=r"LeafNode 'x': expected .* got \[3\] and torch.float32"):
        program(normal(3).float())
    with pytest.raises(ValueError, match=r"program: expected 1 tensors, for \[\"LeafNode 'x'\"\], got 2"):
        program(normal(3), normal(3))
    with pytest.raises(ValueError, match="program: expected a tensor for LeafNode 'x', got none"):
        program({})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_program_runs_on_gpu() -> None:
    x, w = leaf(3), leaf(3, 3)
    loss = build.Log(build.Sum(build.Exp(build.Tanh(w @ build.Softplus(w @ x)))))
    a, b = normal(3), normal(3, 3, seed=1)
    for program in (compile(loss, leaves=[x, w]), compile_hessian(loss, x, leaves=[x, w])):
        actual = program(a.cuda(), b.cuda())
        assert actual.is_cuda
        torch.testing.assert_close(actual.cpu(), program(a, b))
