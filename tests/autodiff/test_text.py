"""Graphs as text: each kind of statement, round trips, and errors with positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.autodiff import derivatives
from gflownet.autodiff import factories as build
from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import (
    CastNode,
    ElementwiseNode,
    LeafKind,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    TransformNode,
)
from gflownet.autodiff.text import format, lines, parse
from tests.autodiff.random_graphs import random_graph

# Example lines: text, index arrays, counts (dummy, new, repeated) of a Transform or (dummy, repeated) of a pair.
SEED_LINES = [
    ("a[i,j] = b[i,j]", [(1, 2), (1, 2)], (0, 0, 2)),
    ("b[i,k] = sum_jl a[i,j,k,l]", [(1, 2), (1, -1, 2, -2)], (2, 0, 2)),
    ("a[i,j:3,k,l:5] = b[i,k]", [(1, -1, 2, -2), (1, 2)], (0, 2, 2)),
    ("a[k,j:3,i] = b[i,k]", [(1, -1, 2), (2, 1)], (0, 1, 2)),
    ("b[k,i] = sum_jl a[i,j,k,l]", [(1, 2), (2, -1, 1, -2)], (2, 0, 2)),
    ("b[i,k,m:3,n:4] = sum_jl 0.5 * a[i,j,k,l]", [(1, 2, -1, -2), (1, -1, 2, -2)], (2, 2, 2)),
    ("Y[a,b,c,d,e] = X1[a,b,c,e] - X2[a,c,d]", [(1, 2, 3, 4, 5), (1, 2, 3, 5), (1, 3, 4)], (0, 2)),
    ("Y[a,b,d,e] = sum_c (X1[a,b,c,e] - X2[a,c,d])", [(1, 2, 3, 4), (1, 2, -5, 4), (1, -5, 3)], (1, 1)),
    ("Y[i] = X1[i] * X2[i]", [(1,), (1,), (1,)], (0, 1)),
    ("C[i,j] = sum_k A[i,k] B[k,j]", [(1, 2), (1, -3), (-3, 2)], (1, 0)),
    ("C[i,j] = sum_k A[k,i] B[k,j]", [(1, 2), (-3, 1), (-3, 2)], (1, 0)),
    ("x[i,j,k] = sum_a W[i,a] Y[a,j,k]", [(1, 2, 3), (1, -4), (-4, 2, 3)], (1, 0)),
    ("x[i,j] = sum_a W[i,a] Y[a,j,i]", [(1, 2), (1, -3), (-3, 2, 1)], (1, 1)),
]


def shapes_of(text: str) -> dict[str, list[int]]:
    """Return a shape for each operand; every index has another extent."""
    (statement,) = parse(text).statements
    return {operand.name: [ord(index) % 4 + 2 for index in operand.indices] for operand in statement.operands}


@pytest.mark.parametrize(("text", "arrays", "counts"), SEED_LINES)
def test_parse_example_lines(text: str, arrays: list[tuple[int, ...]], counts: tuple[int, ...]) -> None:
    listing = parse(text)
    assert str(listing) == text
    assert listing.statements[0].arrays() == arrays
    node = listing.node(shapes_of(text))
    if isinstance(node, TransformNode):
        assert [node.index_dst, node.index_src] == arrays
        assert (node.dummy_index, node.new_index, node.repeated_index) == counts
    else:
        assert isinstance(node, ElementwiseNode | LinearNode)
        assert [node.index_dst, node.index_src_l, node.index_src_r] == arrays
        assert (node.dummy_index, node.repeated_index) == counts
    assert format(node).splitlines()[-1].partition(" = ")[2].count("sum_") == text.count("sum_")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("y[i] = x[i]", TransformNode),
        ("y[i] = -x[i]", TransformNode),
        ("y = sum_i -0.0025 * x[i]", TransformNode),
        ("y[i] = x[i] + x[i]", ElementwiseNode),
        ("y = sum_i (x[i] - x[i])", ElementwiseNode),
        ("y[i] = x[i] * x[i]", ElementwiseNode),
        ("y = sum_i x[i] x[i]", LinearNode),
        ("y[i1,i2] = x[i1] x[i2]", LinearNode),
        ("y[i] = tanh(x[i])", NonlinearNode),
        ("y[i] = exp(sin(x[i]))", NonlinearNode),
        ("y[i] = {2*x**3}(x[i])", NonlinearNode),
        ("y[i] = float32(x[i])", CastNode),
    ],
)
def test_statement_round_trip(text: str, kind: type[Node]) -> None:
    listing = parse(text)
    assert str(listing) == text
    node = listing.node({"x": [3]})
    assert type(node) is kind
    assert parse(format(node)).node().shape == node.shape
    assert format(parse(format(node)).node()) == format(node)


def test_program_with_all_statements() -> None:
    text = """
        # a layer, by hand
        input x[2,3]
        fixed input s
        parameter w[3,4]
        constant half[4]        # a value is no part of the text
        constant e[4,4]
        constant table[2,2]
        input f[2] float32

        z[n,c] = sum_i x[n,i] w[i,c]
        h[n,d] = sum_c z[n,c] e[c,d]
        y[n,c] = h[n,c] * half[c]
        v[n] = float64(f[n])
        u[n,c] = y[n,c] + v[n]
        m[n,c] = sum_k table[k,n] u[k,c]
        r[n,c] = tanh(m[n,c])
        t = sum_nc 2.0 * r[n,c]
        q = t * s
        output r, q
    """
    graph = parse(text).graph()
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    f = rng.normal(size=2).astype(np.float32)
    table = np.array([[1, 2.5], [-3, 4e2]])
    r = np.tanh(table.T @ (0.5 * x @ w + f.astype(float)[:, None]))
    leaves = {"x": x, "w": w, "f": f, "s": 3.0, "half": np.full(4, 0.5), "e": np.eye(4), "table": table}
    np.testing.assert_allclose(graph.value("r", leaves), r, rtol=1e-12)
    np.testing.assert_allclose(graph.value("q", leaves), 6 * r.sum(), rtol=1e-12)
    assert [graph.node(name).has_grad() for name in ("x", "s", "w", "half", "f", "q")] == [1, 0, 1, 0, 1, 1]
    reread = parse(format(graph.outputs))
    assert reread.outputs == ("r", "q")
    torch.testing.assert_close(reread.graph().value("q", leaves), graph.value("q", leaves), rtol=0, atol=0)
    assert str(parse(str(parse(text)))) == str(parse(text))


@pytest.mark.parametrize("seed", range(30))
def test_random_graph_round_trip(seed: int) -> None:
    case = random_graph(seed)
    graph = Graph.from_dict(case.graph)
    text = format(graph.outputs)
    reread = parse(text).graph()
    assert format(reread.outputs) == text
    assert str(parse(text)) == text
    leaves = values_by_name(graph, {graph.node(leaf): value for leaf, value in case.leaves.items()})
    assert torch.equal(reread.value(reread.sink, leaves), graph.value(graph.sink, case.leaves))
    # ids and names aside, the JSON forms are the same
    kinds = [type(node) for node in Graph(graph.outputs).nodes()]
    assert [type(node) for node in reread.nodes()] == kinds


def values_by_name(graph: Graph, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of all leaves by their names in the text, those of constants too."""
    names = {node: line.name for node, line in lines(graph.outputs).items() if isinstance(node, LeafNode)}
    return {name: values[node] if node in values else node.held() for node, name in names.items()}


def test_derivative_round_trip() -> None:
    graph = parse("input x[3]\nparameter w[3]\ny = sum_i x[i] w[i]\nz = exp(tanh(y))").graph()
    hessian = derivatives.hessian(graph.node("z"), graph.node("w"))
    reread = parse(format(hessian)).graph()
    named = {"x": torch.tensor([0.1, 0.2, 0.3]), "w": torch.tensor([1.0, -1.0, 2.0])}
    values = {node: named[f"{node.name}"] for node in graph.nodes() if isinstance(node, LeafNode)}
    leaves = values_by_name(Graph(hessian), values)
    expected = evaluate([hessian], values)[0]
    torch.testing.assert_close(reread.value(reread.sink, leaves), expected, rtol=0, atol=0)


def test_constants_of_equal_entries_have_a_comment() -> None:
    x = build.Input([2], dtype=torch.float64, name="x")
    assert format(derivatives.jacobian(x, x)) == "constant t_1[2,2]  # identity"
    assert format(build.Constant(0.5, name="half")).startswith("constant half")
    assert format(LeafNode([3], kind=LeafKind.CONSTANT, fill=2.0, dtype=torch.float64)) == "constant t_1[3]  # 2"


def test_operands_as_nodes_shapes_or_extents() -> None:
    x = build.Parameter(torch.ones(3, dtype=torch.float64), name="mine")
    graph = parse("y[i] = a[i] + b[i]").graph({"a": x, "b": [3]})
    assert graph.node("a") is x
    node = parse("y[i] = a[i:3] * b[i:3]").node()
    assert isinstance(node, ElementwiseNode)
    assert node.left.shape == (3,)


def test_invalid_names_are_replaced() -> None:
    leaves = [LeafNode([], name=name) for name in ("sum_i", "input", "two words", "7", "x", "x", None)]
    node: Node = leaves[0]
    for leaf in leaves[1:]:
        node = node + leaf
    text = format(node)
    assert [line.split()[1] for line in text.splitlines() if line.startswith("input")] == (
        ["t_1", "t_2", "t_4", "t7", "x", "x_1", "t_9"]
    )
    assert format(parse(text).node()) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected a declaration or a statement, got an empty text"),
        ("a[i] b[i]", "line 1, column 6: expected '=', got 'b'"),
        ("a[i] =", "line 1, column 7: expected a name, got the end of the line"),
        ("a[i] = b[i] c[i] d[i]", "line 1, column 18: expected the end of the line, got 'd'"),
        ("a[i] = b[i])", r"line 1, column 12: expected the end of the line, got '\)'"),
        ("a[i] = b[i;j]", "line 1, column 11: expected ',', got ';'"),
        ("a[row] = b[row]", "line 1, column 3: expected an index: a letter, perhaps with digits, got 'row'"),
        ("a[i] = b[i:x]", "line 1, column 12: expected a whole number, got 'x'"),
        ("\n\na[i] = b[i,i]", r"line 3, column 8: b\[i,i\]: expected every index once in a tensor, got i twice"),
        ("a[i,i] = b[i]", r"line 1, column 1: a\[i,i\]: expected every index once in a tensor"),
        ("a[i] = b[i,j]", r"line 1, column 8: b\[i,j\]: expected j in a\[i\] or under a sum"),
        (
            "a[i] = sum_k b[i]",
            r"line 1, column 1: a\[i\]: expected the sum to be over indices of the operands .* got k",
        ),
        ("a[i] = sum_i b[i]", "expected the sum to be over indices of the operands that the result lacks, got i"),
        ("a[i,j] = b[i] + c[i]", r"line 1, column 1: a\[i,j\]: expected indices of the operands, got j"),
        ("a[i] = sum_j b[i,j] + c[i,j]", "line 1, column 14: expected parentheses: the sum covers both operands"),
        ("a[i] = 2.0 b[i]", r"line 1, column 12: expected '\*' and an operand, got 'b'"),
        ("a[i] = tan(b[i])", "line 1, column 8: .*tan"),
        ("a[j,i] = tanh(b[i,j])", r"line 1, column 1: a\[j,i\]: expected the indices of b\[i,j\], in their order"),
        ("a = sum_i tanh(b[i])", "line 1, column 11: expected no sum before a function"),
        ("a[i] = tanh(b[i]", r"line 1, column 17: expected '\)', got the end of the line"),
        ("input x[2,3", "line 1, column 12: expected ',', got the end of the line"),
        ("fixed x[2]", "line 1, column 7: expected one of input, parameter, constant, got 'x'"),
        ("constant x[2] = 3", "line 1, column 15: expected the end of the line, got '='"),
        ("input x[2]\noutput x\ny[i] = x[i]", "line 3, column 1: expected nothing after the line `output`, got 'y'"),
        ("input constant[2]", "line 1, column 7: expected a name, got 'constant'"),
        ("y[i] = tanh(", "line 1, column 13: expected a name, got the end of the line"),
        ("y[i] = float32(", "line 1, column 16: expected a name, got the end of the line"),
        ("y[i] = power(x[i])", r"line 1, column 8: function 'power\(x\)': .* expected power\(number\)"),
        ("y[i] = 1e400 * x[i]", "line 1, column 8: expected a number that a float can hold, got '1e400'"),
        (f"y[i] = {'9' * 5000} * x[i]", "line 1, column 8: expected a number that a float can hold, got '999.*999'"),
        (f"input x[{'9' * 5000}]", "line 1, column 9: expected a whole number of at most 18 digits, got '999.*999'"),
        ("input x[\N{SUPERSCRIPT TWO}]", "line 1, column 9: expected a whole number"),
        (f"y[i] {'z' * 5000}", "line 1, column 6: expected '=', got 'zzz.*zzz'"),
        (f"y[i] = {{{'(' * 100_000}x}}(z[i])", r"line 1, column 8: function '\(\(\(.*: expected a shorter formula"),
    ],
)
def test_invalid_line_raises(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y[i] = x[i]", r"line 1, column 8: x\[i\]: expected a declaration before, as in `input x\[2,3\]`"),
        ("input x[2]\ny[i] = x[i] + y[i]", r"line 2, column 15: y\[i\]: expected a declaration before"),
        ("input x[2]\ninput x[2]", "line 2, column 1: x: expected a name that is not defined yet"),
        ("input x[2]\ny[i,j:2] = x[i]\ny[i] = x[i]", "line 3, column 1: y: expected a name that is not defined yet"),
        ("input x[2,3]\ny[i] = x[i]", r"line 2, column 8: x\[i\]: expected an index for each axis of shape \[2, 3\]"),
        ("input x[2]\ny[i,j] = x[i]", r"line 2, column 1: y\[i,j\]: expected an extent of the New index, as in j:2"),
        ("input x[2]\ny[i] = x[i:3]", r"line 2, column 8: x\[i:3\]: expected 2 as the extent of i"),
        ("input x[2]\ny[i:3] = x[i]", r"line 2, column 1: y\[i:3\]: expected 2 as the extent of i"),
        (
            "input x[2]\ninput z[3]\ny[i] = x[i] + z[i]",
            r"line 3, column 1: ElementwiseNode 'y': .*: expected one extent",
        ),
        ("input x[2]\noutput y", "output: expected names that are defined, got y"),
        ("input n[2] int64\ny[i] = 0.5 * n[i]", "line 2, column 1: TransformNode 'y': expected a floating or complex"),
    ],
)
def test_build_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text).graph()
