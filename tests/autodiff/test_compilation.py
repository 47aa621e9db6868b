"""Compiled programs against the slow evaluation of the same graphs and of their derivatives by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from gflownet.autodiff import derivatives
from gflownet.autodiff import factories as build
from gflownet.autodiff.compilation import (
    Program,
    clear_cache,
    compile,
    compile_gradient,
    compile_hessian,
    compile_hvp,
    compile_jacobian,
    compile_value_and_gradient,
)
from gflownet.autodiff.evaluation import evaluate, topological_order
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import LeafNode, LinearNode, Node
from tests.autodiff.living import Living
from tests.autodiff.random_graphs import random_graph

DOUBLE = torch.float64
Values = Mapping[LeafNode, Tensor]


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
            program = compile_jacobian(output, by, mode, leaves=list(leaves))
            check(program, derivatives.jacobian(output, by, mode), leaves)


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


@pytest.mark.parametrize("seed", range(10))
def test_compile_node_derivatives(seed: int) -> None:
    output, (first, second), leaves = random_case(seed)
    node = derivatives.hessian(output, first, second)
    check(compile(node, leaves=list(leaves)), node, leaves)


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


def test_compile_hvp_equals_joint_hessian_product() -> None:
    leaves = {leaf(3, name="x"): normal(3), leaf(3, 3, name="w"): normal(3, 3, seed=1)}
    directions = {leaf(3): normal(3, seed=2), leaf(3, 3): normal(3, 3, seed=3)}
    output = _residual(*leaves)
    program = compile_hvp(output, list(leaves), list(directions), leaves=[*leaves, *directions])
    expected = evaluate(derivatives.hvp(output, list(leaves), list(directions)), {**leaves, **directions})
    for result, value in zip(program({**leaves, **directions}), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-12, atol=1e-12)


def test_compile_value_and_gradient() -> None:
    x, w = leaf(3), leaf(3, 3)
    values = {x: normal(3), w: normal(3, 3, seed=1)}
    output = _deep(x, w)
    value, by_w, by_x = compile_value_and_gradient(output, [w, x])(values)
    torch.testing.assert_close(value, evaluate([output], values)[0])
    for result, by in ((by_w, w), (by_x, x)):
        torch.testing.assert_close(result, evaluate([derivatives.gradient(output, by)], values)[0])


def test_equal_nodes_stay_distinct_for_differentiation() -> None:
    x = leaf(3)
    one, other = build.Exp(x), build.Exp(x)
    output = build.Sum(one * other)
    value = normal(3)
    torch.testing.assert_close(compile_gradient(output, one)(value), value.exp())
    torch.testing.assert_close(compile_gradient(output, x)(value), 2 * (2 * value).exp())


def test_independent_nodes_have_zero_derivatives() -> None:
    x, y = leaf(3), leaf(2)
    output = build.Sum(build.Tanh(x))
    values = {x: normal(3), y: normal(2)}
    assert torch.equal(compile_gradient(output, y)(values), torch.zeros(2, dtype=DOUBLE))
    assert torch.equal(compile_hessian(output, x, y)(values), torch.zeros(3, 2, dtype=DOUBLE))


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
    with pytest.raises(ValueError, match=r"compile_gradient: NonlinearNode: expected a scalar .* got shape \[3\]"):
        compile_gradient(build.Tanh(x), x)
    with pytest.raises(ValueError, match=r"compile_hvp: vector: .* got \[\[2\]\]"):
        compile_hvp(build.Sum(x), x, leaf(2))
    with pytest.raises(ValueError, match="compile_hvp: wrt: expected every node once, got"):
        compile_hvp(build.Sum(x), [x, x], [leaf(3), leaf(3)])
    with pytest.raises(ValueError, match="mode: expected 'reverse' or 'forward', got 'sideways'"):
        compile_jacobian(build.Tanh(x), x, "sideways")  # pyright: ignore[reportArgumentType]
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
