"""The differentiation rules on worked examples: the derivative of a statement, as text.

G is a derivative by the node, dX1 and dX2 are derivatives of its operands; the last axis is one of another tensor.
"""

from __future__ import annotations

import pytest
import torch

from gflownet.autodiff import rules
from gflownet.autodiff.node_builder import Nodes
from gflownet.autodiff.nodes import LeafNode, LinearNode, Node
from gflownet.autodiff.text import format, parse

EXTENTS = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "i": 2, "j": 3, "k": 4, "l": 5, "n": 2}
EXTRA = 7
TRANSFORM = "b[i,k,j:3,l:5] = sum_n -0.5 * X1[i,n,k]"
DIFFERENCE = "Y[a,b,c,d,e] = X1[a,b,c,e] - X2[a,c,d]"
SUMMED_DIFFERENCE = "Y[a,b,d,e] = sum_c (X1[a,b,c,e] - X2[a,c,d])"
ONE_SIDED_SUM = "Y[a] = sum_bc (X1[a,b,c] + X2[a])"
ONE_SIDED_DIFFERENCE = "Y[a] = sum_bc (X1[a,b,c] - X2[a])"
PRODUCT = "Y[a,b,c,d,e] = X1[a,b,c,e] * X2[a,c,d]"
CONTRACTION = "Y[i,j,k] = sum_a X1[i,a] X2[a,j,k]"
ONE_SIDED_DUMMY = "Y[b] = sum_c X1[c,b] X2[b]"
FUNCTION = "Y[i,j] = tanh(X1[i,j])"
CAST = "Y[i] = float32(X1[i])"


def node_of(statement: str) -> Node:
    listing = parse(statement)
    operands = listing.statements[0].operands
    return listing.node({operand.name: [EXTENTS[index] for index in operand.indices] for operand in operands})


def leaf(node: Node, name: str) -> LeafNode:
    return LeafNode([*node.shape, EXTRA], dtype=node.dtype, name=name)


def statements(node: Node | None) -> list[str]:
    """Return the lines of a node without the declarations of its leaves."""
    assert node is not None
    return [line for line in format(node).splitlines() if not line.startswith("input ")]


@pytest.mark.parametrize(
    ("statement", "side", "expected"),
    [
        (TRANSFORM, 0, ["t_1[i,j:2,k,l] = sum_mn -0.5 * G[i,k,m,n,l]"]),  # alpha once
        (DIFFERENCE, 0, ["t_1[i,j,k,l,m] = sum_n G[i,j,k,n,l,m]"]),
        (DIFFERENCE, 1, ["t_1[i,j,k,l] = sum_mn -G[i,m,j,k,n,l]"]),
        (SUMMED_DIFFERENCE, 0, ["t_1[i,j,k:4,l,m] = sum_n G[i,j,n,l,m]"]),
        (SUMMED_DIFFERENCE, 1, ["t_1[i,j:4,k,l] = sum_mn -G[i,m,k,n,l]"]),
        (ONE_SIDED_SUM, 0, ["t_1[i,j:3,k:4,l] = G[i,l]"]),
        (ONE_SIDED_SUM, 1, ["t_1[i,j] = 12.0 * G[i,j]"]),
        (ONE_SIDED_DIFFERENCE, 1, ["t_1[i,j] = -12.0 * G[i,j]"]),
        (PRODUCT, 0, ["t_1[i,j,k,l,m] = sum_n G[i,j,k,n,l,m] X2[i,k,n]"]),
        (PRODUCT, 1, ["t_1[i,j,k,l] = sum_mn G[i,m,j,k,n,l] X1[i,m,j,n]"]),
        (CONTRACTION, 0, ["t_1[i,j,k] = sum_lm G[i,l,m,k] X2[j,l,m]"]),
        (CONTRACTION, 1, ["t_1[i,j,k,l] = sum_m G[m,j,k,l] X1[m,i]"]),
        # No other operand has c, so a Transform brings it in.
        (ONE_SIDED_DUMMY, 0, ["t_1[i,j] = G[i,j] * X2[i]", "t_2[i:4,j,k] = t_1[j,k]"]),
        (FUNCTION, 0, ["t_1[i,j] = {1 - tanh(x)**2}(X1[i,j])", "t_2[i,j,k] = G[i,j,k] * t_1[i,j]"]),
        (CAST, 0, ["t_1[i,j] = float64(G[i,j])"]),
    ],
)
def test_reverse_rule_of_worked_examples(statement: str, side: int, expected: list[str]) -> None:
    node = node_of(statement)
    derivative = rules.reverse(Nodes(), node.form, node.inputs, side, leaf(node, "G"), (EXTRA,))
    assert statements(derivative) == expected


SUM_OF_PRODUCTS = [
    "t_1[i,j,k,l,m,n] = dX1[i,j,k,m,n] X2[i,k,l]",
    "t_2[i,j,k,l,m,n] = X1[i,j,k,m] dX2[i,k,l,n]",
    "t_3[i,j,k,l,m,n] = t_1[i,j,k,l,m,n] + t_2[i,j,k,l,m,n]",
]


@pytest.mark.parametrize(
    ("statement", "known", "expected"),
    [
        (TRANSFORM, (0,), ["t_1[i,j,k:3,l:5,m] = sum_n -0.5 * dX1[i,n,j,m]"]),
        (DIFFERENCE, (0, 1), ["t_1[i,j,k,l,m,n] = dX1[i,j,k,m,n] - dX2[i,k,l,n]"]),
        (SUMMED_DIFFERENCE, (0,), ["t_1[i,j,k:5,l,m] = sum_n dX1[i,j,n,l,m]"]),
        (SUMMED_DIFFERENCE, (1,), ["t_1[i,j:3,k,l:6,m] = sum_n -dX2[i,n,k,m]"]),
        (ONE_SIDED_DIFFERENCE, (1,), ["t_1[i,j] = -12.0 * dX2[i,j]"]),
        (PRODUCT, (0, 1), SUM_OF_PRODUCTS),
        (CONTRACTION, (1,), ["t_1[i,j,k,l] = sum_m X1[i,m] dX2[m,j,k,l]"]),
        (FUNCTION, (0,), ["t_1[i,j] = {1 - tanh(x)**2}(X1[i,j])", "t_2[i,j,k] = dX1[i,j,k] * t_1[i,j]"]),
        (CAST, (0,), ["t_1[i,j] = float32(dX1[i,j])"]),
    ],
)
def test_forward_rule_of_worked_examples(statement: str, known: tuple[int, ...], expected: list[str]) -> None:
    node = node_of(statement)
    tangents = [leaf(x, f"d{x.name}") if place in known else None for place, x in enumerate(node.inputs)]
    assert statements(rules.forward(Nodes(), node.form, node.inputs, tangents, (EXTRA,))) == expected


def test_dummy_with_the_number_of_a_result_index() -> None:
    """3 and -3 are two indices: the dummy gets another name before it becomes positive."""
    left, right = LeafNode([4, 3], dtype=torch.float64, name="X1"), LeafNode([3], dtype=torch.float64, name="X2")
    node = LinearNode(left, right, [3], [-3, 3], [3])
    derivative = rules.reverse(Nodes(), node.form, node.inputs, 0, leaf(node, "G"), (EXTRA,))
    assert statements(derivative) == ["t_1[i,j] = G[i,j] * X2[i]", "t_2[i:4,j,k] = t_1[j,k]"]
