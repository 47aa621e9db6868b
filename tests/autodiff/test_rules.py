"""The differentiation rules on nodes: worked examples with their index arrays, and the values of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

from gflownet.autodiff import rules
from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.functions import Function
from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import (
    CastNode,
    ElementwiseNode,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    Operation,
    TransformNode,
)

DOUBLE = torch.float64
EXTENTS = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "i": 2, "j": 3, "k": 4, "l": 5, "m": 3, "n": 2}


def leaf(axes: str = "", **fields) -> LeafNode:
    return LeafNode([EXTENTS[axis] for axis in axes], dtype=DOUBLE, **fields)


def free(*shape: int, of: Node) -> LeafNode:
    """Return a derivative of some tensor by a node, or of the node by some tensor: the node's axes, then others."""
    return LeafNode([*of.shape, *shape], dtype=DOUBLE)


def reverse(node: Node, cotangent: Node, side: int) -> Node | None:
    extra = cotangent.shape[node.rank :]
    return rules.reverse(Nodes(), rules.node_form(node), node.inputs, side, cotangent, extra)


def forward(node: Node, tangents: list[Node | None]) -> Node | None:
    [(tangent, source), *_] = [(t, source) for t, source in zip(tangents, node.inputs, strict=True) if t is not None]
    extra = tangent.shape[source.rank :]
    return rules.forward(Nodes(), rules.node_form(node), node.inputs, tangents, extra)


def renamed(*arrays: Sequence[int], separate: bool) -> tuple[list[int], ...]:
    """Return index arrays with indices numbered by first appearance; `separate`: negative ones per array."""
    names: dict[tuple[int, int], int] = {}
    result = []
    for number, array in enumerate(arrays):
        keys = [(index, number if separate and index < 0 else 0) for index in array]
        result.append([names.setdefault(key, len(names) + 1) * (1 if key[0] > 0 else -1) for key in keys])
    return tuple(result)


def arrays(node: Node | None) -> tuple[list[int], ...]:
    """Return the index arrays of a node with indices numbered by first appearance."""
    if isinstance(node, TransformNode):
        return renamed(node.index_dst, node.index_src, separate=True)
    assert isinstance(node, ElementwiseNode | LinearNode)
    return renamed(node.index_dst, node.index_src_l, node.index_src_r, separate=False)


def transform(*expected: list[int]) -> tuple[list[int], ...]:
    return renamed(*expected, separate=True)


def pair(*expected: list[int]) -> tuple[list[int], ...]:
    return renamed(*expected, separate=False)


def test_renamed_numbers_indices_by_first_appearance():
    assert pair([7], [7, -9], [-9]) == pair([1], [1, -2], [-2]) == ([1], [1, -2], [-2])
    assert transform([5, 3], [3, 5]) == ([1, 2], [2, 1])
    assert transform([1, 2], [1, 2]) != transform([1, 2], [2, 1])


def test_renamed_separates_positive_from_negative_indices():
    assert transform([1, 2], [1, -1]) != transform([1, 2], [2, -1])
    assert transform([1, 2], [1, -2]) != transform([1, 2], [1, 2])
    assert pair([3], [-3, 3], [3]) == pair([1], [-2, 1], [1])
    assert pair([3], [-3, 3], [3]) != pair([3], [-3, 3], [-3])


def test_renamed_scope_of_negative_indices():
    assert transform([1, -1], [1, -1]) == transform([1, -1], [1, -2])  # of a transform: one array
    assert transform([1], [1, -1, -1]) != transform([1], [1, -1, -2])
    assert pair([1], [1, -2], [-2]) != pair([1], [1, -2], [-3])  # of a pair: both operands


def counts(node: Node | None) -> tuple[int, ...]:
    assert isinstance(node, TransformNode)
    return node.dummy_index, node.new_index, node.repeated_index


# Examples with their numpy expression: indices of result and operands, counts (dummy, New, repeated), extents of New.
TRANSFORMS = [
    ("ij", [1, 2], [1, 2], (0, 0, 2), (), lambda b: b),
    ("ijkl", [1, 2], [1, -1, 2, -2], (2, 0, 2), (), lambda a: a.sum((1, 3))),
    ("ik", [1, -1, 2, -2], [1, 2], (0, 2, 2), (3, 5), lambda b: np.tile(b[:, None, :, None], (1, 3, 1, 5))),
    ("ik", [2, -1, 1], [1, 2], (0, 1, 2), (3,), lambda b: np.tile(b.T[:, None], (1, 3, 1))),
    ("ijkl", [2, 1], [1, -1, 2, -2], (2, 0, 2), (), lambda a: a.sum((1, 3)).T),
    (
        *("ijkl", [1, 2, -1, -2], [1, -1, 2, -2], (2, 2, 2), (3, 2)),
        lambda a: np.tile(a.sum((1, 3))[:, :, None, None], (1, 1, 3, 2)),
    ),
]
PAIRS = [
    (
        *("acd", "abce", "+", [1, 2, 3, 4, 5], [1, 3, 4], [1, 2, 3, 5], (0, 2)),
        lambda x, y: x[:, None, :, :, None] + y[:, :, :, None],
    ),
    (
        *("acd", "abce", "-", [1, 2, 4, 5], [1, -3, 4], [1, 2, -3, 5], (1, 1)),
        lambda x, y: (x[:, None, :, :, None] - y[:, :, :, None]).sum(2),
    ),
    ("i", "i", "*", [1], [1], [1], (0, 1), lambda x, y: x * y),
    ("jk", "ki", "linear", [1, 2], [1, -3], [-3, 2], (1, 0), lambda a, b: a @ b),
    ("kj", "ki", "linear", [1, 2], [-3, 1], [-3, 2], (1, 0), lambda a, b: a.T @ b),
    (
        *("ia", "ajk", "linear", [1, 2, 3], [1, -4], [-4, 2, 3], (1, 0)),
        lambda w, y: (w[:, :, None, None] * y[None]).sum(1),
    ),
    (
        *("ia", "aji", "linear", [1, 2], [1, -3], [-3, 2, 1], (1, 1)),
        lambda w, y: (w.T[:, None, :] * y).sum(0).T,
    ),
    (
        *("abcde", "abce", "linear", [1, 3, 4], [1, -2, 3, 4, -5], [1, -2, 3, -5], (2, 2)),
        lambda g, x: (g * x[:, :, :, None]).sum((1, 4)),
    ),
]


def example(axes: str, seed: int) -> tuple[LeafNode, np.ndarray]:
    value = np.random.default_rng(seed).normal(size=[EXTENTS[axis] for axis in axes])
    return leaf(axes, value=torch.tensor(value)), value


class TestNodeValues:
    """Values of nodes."""

    @pytest.mark.parametrize(("axes", "dst", "src", "counted", "new_dims", "expected"), TRANSFORMS)
    def test_transform(self, axes, dst, src, counted, new_dims, expected):
        source, value = example(axes, 0)
        node = TransformNode(source, dst, src, alpha=-0.5, new_dims=new_dims)
        assert counts(node) == counted
        np.testing.assert_allclose(evaluate([node])[0].numpy(), -0.5 * expected(value), rtol=1e-13)

    @pytest.mark.parametrize(("left", "right", "operation", "dst", "src_l", "src_r", "counted", "expected"), PAIRS)
    def test_pair(self, left, right, operation, dst, src_l, src_r, counted, expected):
        (l_node, l_value), (r_node, r_value) = example(left, 0), example(right, 1)
        build = LinearNode if operation == "linear" else partial(ElementwiseNode, operation=operation)
        node = build(l_node, r_node, dst, src_l, src_r)
        assert (node.dummy_index, node.repeated_index) == counted
        np.testing.assert_allclose(evaluate([node])[0].numpy(), expected(l_value, r_value), rtol=1e-11, atol=1e-13)


class TestReverse:
    """Reverse rules; H are the last indices, one per axis of the differentiated tensor."""

    @pytest.mark.parametrize("num_free", [0, 1, 3])
    def test_transform(self, num_free):
        # b[i,k,m,n] = alpha sum_jl a[i,j,k,l]; counts 2, 2, 2 + |H|
        node = TransformNode(leaf("ijkl"), [1, 2, -1, -2], [1, -1, 2, -2], alpha=0.5, new_dims=[3, 2])
        assert counts(node) == (2, 2, 2)
        h = [3, 4, 5][:num_free]
        actual = reverse(node, free(*[2] * num_free, of=node), 0)
        assert arrays(actual) == transform([1, -1, 2, -2, *h], [1, 2, -1, -2, *h])
        assert counts(actual) == (2, 2, 2 + num_free)
        assert isinstance(actual, TransformNode)
        assert (actual.alpha, actual.new_dims) == (0.5, (3, 5))  # alpha once; j and l are New

    @pytest.mark.parametrize("num_free", [0, 1, 3])
    def test_difference(self, num_free):
        # Y[a,b,c,d,e] = X1[a,b,c,e] - X2[a,c,d]
        node = ElementwiseNode(leaf("abce"), leaf("acd"), [1, 2, 3, 4, 5], [1, 2, 3, 5], [1, 3, 4], operation="-")
        assert (node.dummy_index, node.repeated_index) == (0, 2)
        h = [6, 7, 8][:num_free]
        cotangent = free(*[2] * num_free, of=node)
        left, right = reverse(node, cotangent, 0), reverse(node, cotangent, 1)
        assert arrays(left) == transform([1, 2, 3, 5, *h], [1, 2, 3, -4, 5, *h])
        assert counts(left) == (1, 0, 4 + num_free)
        assert arrays(right) == transform([1, 3, 4, *h], [1, -2, 3, 4, -5, *h])
        assert counts(right) == (2, 0, 3 + num_free)
        assert isinstance(left, TransformNode)
        assert isinstance(right, TransformNode)
        assert (left.alpha, right.alpha) == (1.0, -1.0)

    @pytest.mark.parametrize("num_free", [0, 1, 3])
    def test_summed_difference(self, num_free):
        # Y[a,b,d,e] = sum_c (X1[a,b,c,e] - X2[a,c,d])
        node = ElementwiseNode(leaf("abce"), leaf("acd"), [1, 2, 4, 5], [1, 2, -3, 5], [1, -3, 4], operation="-")
        assert (node.dummy_index, node.repeated_index) == (1, 1)
        h = [6, 7, 8][:num_free]
        cotangent = free(*[2] * num_free, of=node)
        left, right = reverse(node, cotangent, 0), reverse(node, cotangent, 1)
        assert arrays(left) == transform([1, 2, -3, 5, *h], [1, 2, -4, 5, *h])
        assert counts(left) == (1, 1, 3 + num_free)
        assert arrays(right) == transform([1, -3, 4, *h], [1, -2, 4, -5, *h])
        assert counts(right) == (2, 1, 2 + num_free)
        assert isinstance(left, TransformNode)
        assert isinstance(right, TransformNode)
        assert (left.alpha, right.alpha) == (1.0, -1.0)
        assert left.new_dims == right.new_dims == (EXTENTS["c"],)

    @pytest.mark.parametrize("operation", ["+", "-"])
    def test_sum_over_index_of_one_operand_counts_the_other(self, operation: Operation):
        # Y[a] = sum_bc (X1[a,b,c] +- X2[a])
        node = ElementwiseNode(leaf("abc"), leaf("a"), [1], [1, -2, -3], [1], operation=operation)
        left, right = reverse(node, free(of=node), 0), reverse(node, free(of=node), 1)
        assert isinstance(left, TransformNode)
        assert isinstance(right, TransformNode)
        sign = 1 if operation == "+" else -1
        assert (left.alpha, right.alpha) == (1.0, sign * EXTENTS["b"] * EXTENTS["c"])

    def test_product(self):
        # Y[a,b,c,d,e] = X1[a,b,c,e] * X2[a,c,d]: contractions
        node = ElementwiseNode(leaf("abce"), leaf("acd"), [1, 2, 3, 4, 5], [1, 2, 3, 5], [1, 3, 4], operation="*")
        cotangent = free(2, 2, of=node)
        left, right = reverse(node, cotangent, 0), reverse(node, cotangent, 1)
        assert isinstance(left, LinearNode)
        assert left.inputs == (cotangent, node.right)
        assert arrays(left) == pair([1, 2, 3, 5, 6, 7], [1, 2, 3, -4, 5, 6, 7], [1, 3, -4])
        assert isinstance(right, LinearNode)
        assert right.inputs == (cotangent, node.left)
        assert arrays(right) == pair([1, 3, 4, 6, 7], [1, -2, 3, 4, -5, 6, 7], [1, -2, 3, -5])

    def test_contraction(self):
        # x[i,j,k] = sum_a w[i,a] y[a,j,k]: the dummy a becomes positive
        node = LinearNode(leaf("ia"), leaf("ajk"), [1, 2, 3], [1, -4], [-4, 2, 3])
        cotangent = free(2, of=node)
        assert arrays(reverse(node, cotangent, 0)) == pair([1, 4, 5], [1, -2, -3, 5], [4, -2, -3])
        assert arrays(reverse(node, cotangent, 1)) == pair([4, 2, 3, 5], [-1, 2, 3, 5], [-1, 4])

    def test_nonlinear(self):
        # out[I,H] = G[I,H] * f'(X)[I]
        node = NonlinearNode(leaf("ij"), Function.parse("tanh"))
        cotangent = free(2, of=node)
        actual = reverse(node, cotangent, 0)
        assert isinstance(actual, ElementwiseNode)
        assert (actual.operation, arrays(actual)) == ("*", pair([1, 2, 3], [1, 2, 3], [1, 2]))
        slope = actual.right
        assert isinstance(slope, NonlinearNode)
        assert (slope.source, slope.function) == (node.source, Function.parse("1 - tanh(x)**2"))

    def test_cast(self):
        node = CastNode(leaf("i"), torch.float32)
        actual = reverse(node, LeafNode([2], dtype=torch.float32), 0)
        assert isinstance(actual, CastNode)
        assert actual.dtype == DOUBLE


class TestForward:
    """Forward rules; H are the last indices, one per axis of the tensor that one differentiates by."""

    @pytest.mark.parametrize("num_free", [0, 1, 3])
    def test_transform(self, num_free):
        node = TransformNode(leaf("ijkl"), [1, 2, -1, -2], [1, -1, 2, -2], alpha=0.5, new_dims=[3, 2])
        h = [3, 4, 5][:num_free]
        actual = forward(node, [free(*[2] * num_free, of=node.source)])
        assert arrays(actual) == transform([1, 2, -1, -2, *h], [1, -1, 2, -2, *h])
        assert counts(actual) == (2, 2, 2 + num_free)
        assert isinstance(actual, TransformNode)
        assert (actual.alpha, actual.new_dims) == (0.5, (3, 2))  # alpha is kept

    @pytest.mark.parametrize("operation", ["+", "-"])
    def test_sum_and_difference(self, operation: Operation):
        node = ElementwiseNode(leaf("abce"), leaf("acd"), [1, 2, 3, 4, 5], [1, 2, 3, 5], [1, 3, 4], operation=operation)
        left, right = free(2, of=node.left), free(2, of=node.right)
        actual = forward(node, [left, right])
        assert isinstance(actual, ElementwiseNode)
        assert (actual.operation, actual.inputs) == (operation, (left, right))
        assert arrays(actual) == pair([1, 2, 3, 4, 5, 6], [1, 2, 3, 5, 6], [1, 3, 4, 6])

    @pytest.mark.parametrize(("operation", "alpha"), [("+", 1.0), ("-", -1.0)])
    def test_operand_without_tangent(self, operation: Operation, alpha):
        # Y[a,b,d,e] = sum_c (X1[a,b,c,e] +- X2[a,c,d])
        node = ElementwiseNode(leaf("abce"), leaf("acd"), [1, 2, 4, 5], [1, 2, -3, 5], [1, -3, 4], operation=operation)
        of_left = forward(node, [free(2, of=node.left), None])
        assert isinstance(of_left, TransformNode)
        assert arrays(of_left) == transform([1, 2, -4, 5, 6], [1, 2, -3, 5, 6])
        assert (of_left.alpha, of_left.new_dims) == (1.0, (EXTENTS["d"],))
        of_right = forward(node, [None, free(2, of=node.right)])
        assert isinstance(of_right, TransformNode)
        assert arrays(of_right) == transform([1, -2, 4, -5, 6], [1, -3, 4, 6])
        assert of_right.alpha == alpha

    def test_product(self):
        node = ElementwiseNode(leaf("abce"), leaf("acd"), [1, 2, 3, 4, 5], [1, 2, 3, 5], [1, 3, 4], operation="*")
        left, right = free(2, of=node.left), free(2, of=node.right)
        actual = forward(node, [left, right])
        assert isinstance(actual, ElementwiseNode)
        assert actual.operation == "+"
        first, second = actual.inputs
        assert first.inputs == (left, node.right)
        assert arrays(first) == pair([1, 2, 3, 4, 5, 6], [1, 2, 3, 5, 6], [1, 3, 4])
        assert second.inputs == (node.left, right)
        assert arrays(second) == pair([1, 2, 3, 4, 5, 6], [1, 2, 3, 5], [1, 3, 4, 6])

    def test_contraction(self):
        node = LinearNode(leaf("ia"), leaf("ajk"), [1, 2, 3], [1, -4], [-4, 2, 3])
        actual = forward(node, [None, free(2, of=node.right)])
        assert isinstance(actual, LinearNode)
        assert arrays(actual) == pair([1, 2, 3, 5], [1, -4], [-4, 2, 3, 5])

    def test_nonlinear(self):
        node = NonlinearNode(leaf("ij"), Function.parse("exp"))
        actual = forward(node, [free(2, of=node.source)])
        assert isinstance(actual, ElementwiseNode)
        assert (actual.operation, arrays(actual)) == ("*", pair([1, 2, 3], [1, 2, 3], [1, 2]))


def test_difference_does_not_commute():
    x, y = leaf("a"), leaf("a")
    values = {x: torch.tensor([1.0, 2.0], dtype=DOUBLE), y: torch.tensor([5.0, 7.0], dtype=DOUBLE)}
    both = [ElementwiseNode(*sides, [1], [1], [1], operation="-") for sides in ((x, y), (y, x))]
    actual = evaluate(both, values)
    assert torch.equal(actual[0], -actual[1])


# Y[b] = sum_c L[c,b] * R[b]: no other operand of the product rule has c, so a Transform brings it in;
# 3 and -3 are two indices, so the dummy is given another name before it becomes positive.
@pytest.mark.parametrize("multiply", [LinearNode, partial(ElementwiseNode, operation="*")])
def test_dummy_with_the_number_of_a_result_index(multiply):
    left, right = leaf("cb"), leaf("b")
    node = multiply(left, right, [3], [-3, 3], [3])
    actual = reverse(node, free(2, of=node), 0)
    assert isinstance(actual, TransformNode)
    assert arrays(actual) == transform([-4, 3, 5], [3, 5])
    assert arrays(actual.source) == pair([3, 5], [3, 5], [3])
    assert actual.new_dims == (EXTENTS["c"],)
