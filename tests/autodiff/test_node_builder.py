"""Simplification: equal values, no larger graph, and removed nodes."""

from __future__ import annotations

import pytest
import torch

from gflownet.autodiff import derivatives
from gflownet.autodiff import factories as build
from gflownet.autodiff.evaluation import evaluate, topological_order
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.node_builder import simplify
from gflownet.autodiff.nodes import LeafNode, LinearNode, Node, TransformNode
from tests.autodiff.random_graphs import random_graph

DOUBLE = torch.float64


def size(node: Node) -> int:
    return len(topological_order([node]))


def test_simplify_keeps_values_and_shrinks() -> None:
    removed = 0
    for seed in range(50):
        random = random_graph(seed)
        graph = Graph.from_dict(random.graph)
        leaves = {
            node: torch.tensor(value)
            for id, value in random.leaves.items()
            if isinstance(node := graph.node(id), LeafNode)
        }
        output = graph.node(random.output)
        inner = topological_order([output])
        by = inner[seed % len(inner)]
        for node in (output, derivatives.jacobian(output, by), derivatives.hessian(output, by)):
            simpler = simplify(node)
            assert simpler.shape == node.shape
            assert simpler.dtype == node.dtype
            assert size(simpler) <= size(node)
            removed += size(node) - size(simpler)
            [expected], [result] = evaluate([node], leaves), evaluate([simpler], leaves)
            torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    assert removed > 50


def test_simplify_merges_equal_nodes() -> None:
    x = build.Input((3,), dtype=DOUBLE)
    assert size(simplify(build.Tanh(x) * build.Tanh(x))) == 3


def test_simplify_merges_transformations() -> None:
    a, b = build.Input((3, 4), dtype=DOUBLE), build.Input((3, 5), dtype=DOUBLE)
    twice = build.Transpose(build.Transpose(a))
    assert simplify(twice) is a
    product = simplify(build.Transpose(build.MatMul(build.Transpose(b), a)))
    assert [type(node) for node in topological_order([product])].count(TransformNode) <= 1


def test_simplify_zero_hessian() -> None:
    x, w = build.Input((3,), dtype=DOUBLE), build.Input((4, 3), dtype=DOUBLE)
    hessian = derivatives.hessian(build.Sum(w @ x), x)
    simpler = simplify(hessian)
    assert isinstance(simpler, LeafNode)
    assert simpler.fill == 0.0
    assert simpler.shape == (3, 3)


def test_simplify_removes_identities() -> None:
    x, w = build.Input((3,), dtype=DOUBLE), build.Input((4, 3), dtype=DOUBLE)
    jacobian = simplify(derivatives.jacobian(w @ x, x, "forward"))
    assert jacobian is w


@pytest.mark.parametrize("count", [2, 3])
def test_simplify_repeated_output_labels(count: int) -> None:
    x = build.Input((4,), dtype=DOUBLE)
    identity = build.Identity((4,), dtype=DOUBLE)
    node: Node = x
    for axis in range(count - 1):
        axes = list(range(1, axis + 3))
        node = LinearNode(node, identity, axes, axes[:-1], [axes[0], axes[-1]])
    value = torch.arange(4, dtype=DOUBLE)
    expected = torch.zeros([4] * count, dtype=DOUBLE)
    for k in range(4):
        expected[(k,) * count] = value[k]
    for result in (node, simplify(node), simplify(simplify(node) + simplify(node)) * 0.5):
        assert torch.equal(evaluate([result], {x: value})[0], expected)


def test_simplify_diagonal_of_three_axes() -> None:
    a = build.Input((4, 4, 4), dtype=DOUBLE)
    identity = build.Identity((4,), dtype=DOUBLE)
    pairs = LinearNode(a, identity, [1, 3], [1, -2, 3], [1, -2])
    node = LinearNode(pairs, identity, [1], [1, -2], [1, -2])
    value = torch.arange(64, dtype=DOUBLE).reshape(4, 4, 4)
    expected = torch.stack([value[k, k, k] for k in range(4)])
    assert torch.equal(evaluate([node], {a: value})[0], expected)
    assert torch.equal(evaluate([simplify(node)], {a: value})[0], expected)
    # with a third operand the diagonal is part of a product, for which there are nodes to save
    doubled = simplify(node * node + node * node)
    assert torch.equal(evaluate([doubled], {a: value})[0], 2 * expected**2)
