"""Graphs as JSON: accepted spellings, errors, and round trips."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.autodiff import derivatives
from gflownet.autodiff import factories as build
from gflownet.autodiff.graph import Graph
from gflownet.autodiff.nodes import LeafNode, Node, TransformNode
from tests.autodiff.random_graphs import random_graph
from tests.oracles import tensor_graphs as oracle

SEEDS = range(30)

# Logistic-like: a transform with a New index, a difference, a contraction, a function.
EXAMPLE: dict[str, Any] = {
    "indexing": "signed",
    "nodes": [
        {"id": 1, "type": "leaf", "kind": 0, "shape": [3, 2]},
        {"id": 2, "type": "leaf", "kind": 1, "shape": [2]},
        {"id": 3, "type": "linear", "srcL": 1, "srcR": 2, "indexDst": [1], "indexSrcL": [1, -2], "indexSrcR": [-2]},
        {"id": 4, "type": "nonlinear", "src": 3, "function": "tanh"},
        {"id": 5, "type": "transform", "src": 4, "indexDst": [-1, 1], "indexSrc": [1], "alpha": 2.0, "newDims": [2]},
        *(
            {"id": 6, "type": "elementwise", "op": "-", "srcL": 5, "srcR": 1}
            | {"indexDst": [2], "indexSrcL": [-1, 2], "indexSrcR": [2, -1]},
        ),
    ],
    "outputs": [6],
}
LEAVES = {1: np.arange(6.0).reshape(3, 2) / 4, 2: [0.5, -1.0]}


def changed(node: int, fields: dict[Any, Any]) -> dict[str, Any]:
    """Return the example with fields of one node replaced, `...` leaving one out."""
    data = json.loads(json.dumps(EXAMPLE))
    data["nodes"][node - 1].update({field: value for field, value in fields.items() if value is not ...})
    for field in [field for field, value in fields.items() if value is ...]:
        del data["nodes"][node - 1][field]
    return data


@pytest.mark.parametrize("seed", SEEDS)
def test_json_round_trip(seed: int) -> None:
    case = random_graph(seed, ("signed", "positive")[seed % 2])
    graph = Graph.from_dict(case.graph)
    expected = graph.value(case.output, case.leaves)
    for indexing in ("signed", "positive"):
        data = graph.to_dict(indexing=indexing)
        reread = Graph.from_dict(json.loads(json.dumps(data)))
        assert torch.equal(reread.value(case.output, case.leaves), expected)
        assert reread.to_dict(indexing=indexing) == data
        assert data["indexing"] == indexing
        np.testing.assert_allclose(expected, oracle.value(data, case.output, case.leaves), rtol=1e-12, atol=1e-12)


def test_example_by_id() -> None:
    graph = Graph.from_dict(EXAMPLE)
    x, w = torch.tensor(LEAVES[1]), torch.tensor(LEAVES[2], dtype=torch.float64)
    expected = 2 * 2 * torch.tanh(x @ w) - x.sum(1)
    torch.testing.assert_close(graph.value(6, LEAVES), expected)
    slope = 4 * (1 - torch.tanh(x @ w) ** 2)
    forward = graph.jacobian(6, 2, LEAVES, mode="forward")
    torch.testing.assert_close(forward, slope[:, None] * x)
    torch.testing.assert_close(graph.jacobian(6, 2, LEAVES), forward.T)
    torch.testing.assert_close(graph.jacobian(6, 3, LEAVES), torch.diag(slope))
    second = torch.einsum("i,ia,ib->iab", -8 * torch.tanh(x @ w) * slope / 4, x, x)
    torch.testing.assert_close(graph.hessian(6, 2, 2, LEAVES), second)
    assert graph.hessian(6, 2, 1, LEAVES).shape == (3, 2, 3, 2)
    assert graph.jacobian(3, 4, LEAVES).eq(0).all()
    assert graph.jacobian(3, 4, LEAVES, mode="reverse").shape == (3, 3)


@pytest.mark.parametrize("number", ["int", "text"])
def test_id_and_leaf_spellings(number: str) -> None:
    spell = {"int": int, "text": str}[number]
    graph = Graph.from_dict(EXAMPLE)
    expected = graph.value(6, LEAVES)
    for leaves in (
        {spell(key): value for key, value in LEAVES.items()},
        {spell(key): torch.as_tensor(value, dtype=torch.float32) for key, value in LEAVES.items()},
        {spell(key): np.asarray(value).tolist() for key, value in LEAVES.items()},
        {spell(key): np.asarray(value)[::-1][::-1] for key, value in LEAVES.items()},
    ):
        result = graph.value(spell(6), leaves)
        assert result.dtype == torch.float64
        assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("node", "fields"),
    [
        (1, {"kind": "input"}),
        (1, {"kind": "_leafIn_"}),
        (1, {"kind": ...}),
        (1, {"kind": None}),
        (1, {"type": "LeafNode", "kind": "0", "src": None, "indexDst": [], "alpha": 1.0, "function": None}),
        (2, {"kind": "parameter"}),
        (2, {"kind": "_leafPara_"}),
        (3, {"op": "*"}),
        (3, {"op": "*", "dummyIndex": 1, "repeatedIndex": 0, "shape": [3]}),
        (4, {"function": "tanh(x)"}),
        (5, {"newDims": ..., "shape": [2, 3]}),
        (5, {"dummyIndex": 0, "newIndex": 1, "repeatedIndex": 1, "src": "4"}),
        (6, {"type": "Elementwise", "name": "loss"}),
    ],
)
def test_field_spellings(node: int, fields: dict[str, Any]) -> None:
    expected = Graph.from_dict(EXAMPLE).value(6, LEAVES)
    assert torch.equal(Graph.from_dict(changed(node, fields)).value(6, LEAVES), expected)


@pytest.mark.parametrize(
    ("node", "fields", "message"),
    [
        (1, {"kind": 3}, r"node 1: kind: expected 0, 1, 2, input, parameter or constant, got 3"),
        (1, {"shape": ...}, r"node 1: expected a field shape, got none"),
        (1, {"shape": [3, -1]}, r"node 1: shape \[3, -1\]: expected extents of at least 0"),
        (1, {"shape": [3, 2.5]}, r"node 1: shape: expected a list of integers, got \[3, 2.5\]"),
        (1, {"value": [[1.0]]}, r"node 1: value: expected shape \[3, 2\], got \[1, 1\]"),
        (1, {"value": [[1.0], 2.0]}, r"node 1: value: expected numbers in nested lists"),
        (1, {"requiresGrad": 1}, r"node 1: requiresGrad: expected true or false, got 1"),
        (1, {"type": "tensor"}, r"node 1: type: expected one of leaf, transform, .*, got 'tensor'"),
        (1, {"id": None}, r"nodes\[0\]: expected an object with an integer or a string as id"),
        (2, {"id": 1}, r"node 1: id: expected one that no other node has"),
        (3, {"srcL": 4}, r"node 3: srcL: expected the id of a node listed before, got 4"),
        (3, {"srcL": ...}, r"node 3: expected a field srcL, got none"),
        (3, {"op": "+"}, r"node 3: op: expected none or \* of a linear node, got '\+'"),
        (3, {"alpha": 2.0}, r"node 3: alpha: expected a field of a linear"),
        (3, {"indexDst": [1, 5]}, r"node 3: indexDst \[1, 5\]: expected indices of the operands, got \[5\]"),
        (3, {"indexSrcL": [-2, 1]}, r"node 3: .*: expected one extent for index -2, got 3 on the left and 2"),
        (3, {"shape": [2]}, r"node 3: shape: expected \[3\] by the other fields, got \[2\]"),
        (3, {"dummyIndex": 0}, r"node 3: dummyIndex: expected 1, got 0"),
        (4, {"function": "tan"}, r"node 4: function: .*tan"),
        (5, {"newDims": []}, r"node 5: newDims \[\]: expected an extent of at least 0 for each of the 1 New"),
        (5, {"alpha": "2"}, r"node 5: alpha: expected a number, got '2'"),
        (5, {"alpa": 2}, r"node 5: alpa: expected a field of a transform, perhaps alpha"),
        (6, {"op": "/"}, r"node 6: op: expected one of \+, -, \*, got '/'"),
        (1, {3: 4}, r"node 1: 3: expected a field of a leaf"),
        (1, {None: 4}, r"node 1: None: expected a field of a leaf"),
        (1, {"kind": 2, "fill": 10**400}, r"node 1: fill: expected a number that a float can hold, got 10000"),
        (1, {"value": [[10**400] * 2] * 3}, r"node 1: value: expected numbers in nested lists, got \[\[1000"),
        (1, {"id": "a\nb", "shape": None}, r"node 'a\\nb': expected a field shape, got none"),
        (1, {"id": "a" * 9999, "shape": None}, r"node 'aaaaaa.*: expected a field shape, got none"),
        (4, {"function": "(" * 100_000 + "x"}, r"node 4: function: function '\(\(.*\(x': expected a shorter formula"),
        (4, {"function": "sin(" * 5_000 + "x"}, r"node 4: function: function 'sin\(.*: expected a shorter formula"),
        (4, {"function": "f" * 9_999}, r"node 4: function: .*: unknown function 'fff.*fff'"),
        (5, {"alpha": 10**400}, r"node 5: alpha: expected a number that a float can hold, got 10000"),
        (5, {"alpha": math.inf}, r"node 5: alpha: expected a finite number, got inf"),
        (5, {"name": "foo", "indexDst": [0, 1]}, r"node 5: indexDst \[0, 1\]: expected indices other than 0"),
        (5, {"name": "a\nb", "newDims": [-3]}, r"node 5: newDims \[-3\]: .* New indices of indexDst \[-1, 1\]"),
        (6, {"id": "b", "name": "foo", "indexSrcL": [0, 2]}, r"node b: indexSrcL \[0, 2\]: expected indices other"),
    ],
)
def test_invalid_entry_raises(node: int, fields: dict[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        Graph.from_dict(changed(node, fields))
    error_text = str(caught.value)
    assert "\n" not in error_text
    assert len(error_text) < 500


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": 3}, r"graph: expected an object with a list of nodes"),
        ({"outputs": [7]}, r"graph: outputs: expected ids of nodes, got \[7\]"),
        ({"outputs": []}, r"graph: outputs: expected ids of nodes, got \[\]"),
        ({"indexing": "einstein"}, r"graph: indexing: expected 'signed' or 'positive', got 'einstein'"),
        ({"indexing": "positive"}, r"node 3: indexSrcL: expected positive integers \(indexing\), got \[1, -2\]"),
    ],
)
def test_invalid_graph_raises(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph.from_dict({**EXAMPLE, **fields})


def test_null_indexing_is_signed() -> None:
    expected = Graph.from_dict(EXAMPLE).value(6, LEAVES)
    assert torch.equal(Graph.from_dict({**EXAMPLE, "indexing": None}).value(6, LEAVES), expected)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64])
@pytest.mark.parametrize("shape", [[], [2], [2, 2]])
def test_complex_constants_are_written_as_pairs(dtype: torch.dtype, shape: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    constant = build.Constant(torch.randn(shape, dtype=dtype, generator=generator).conj())
    data = json.loads(json.dumps(Graph(constant).to_dict()))
    result = Graph.from_dict(data).sink
    assert isinstance(result, LeafNode)
    assert result.given is not None
    assert torch.equal(result.given, torch.as_tensor(constant.given))
    data["nodes"][0]["value"] = torch.ones(shape).tolist()
    assert Graph.from_dict(data).sink.value().eq(1.0).all()


def test_invalid_cast_dtype_and_indexing_raise() -> None:
    nodes = [{"id": 1, "type": "leaf", "shape": []}, {"id": 2, "type": "cast", "src": 1, "dtype": "float33"}]
    with pytest.raises(ValueError, match="node 2: dtype: expected the name of a dtype of torch, got 'float33'"):
        Graph.from_dict({"nodes": nodes})
    with pytest.raises(ValueError, match="indexing: expected 'signed' or 'positive', got 'einstein'"):
        Graph.from_dict(EXAMPLE).to_dict(indexing="einstein")  # pyright: ignore[reportArgumentType]


def test_unknown_node_raises() -> None:
    graph = Graph.from_dict(EXAMPLE)
    with pytest.raises(ValueError, match=r"expected the id of a node of the graph, got 9"):
        graph.value(9, LEAVES)
    with pytest.raises(ValueError, match=r"LinearNode '3': leaves: expected values of leaves only"):
        graph.value(6, {**LEAVES, 3: [0.0] * 3})
    with pytest.raises(ValueError, match=r"LeafNode '2': value: expected one of shape \[2\], got none"):
        graph.value(6, {1: LEAVES[1]})
    with pytest.raises(ValueError, match=r"mode: expected 'reverse' or 'forward', got 'sideways'"):
        graph.jacobian(6, 1, LEAVES, mode="sideways")  # pyright: ignore[reportArgumentType]


def test_default_outputs_are_unused_nodes() -> None:
    data = {key: value for key, value in EXAMPLE.items() if key != "outputs"}
    data["nodes"] = [*EXAMPLE["nodes"], {"id": "spare", "type": "nonlinear", "src": 1, "function": "exp"}]
    graph = Graph.from_dict(data)
    assert graph.outputs == (graph.node(6), graph.node("spare"))
    only = Graph.from_dict({**data, "outputs": 6})
    assert only.outputs == (only.node(6),)
    torch.testing.assert_close(only.value("spare", LEAVES), torch.exp(torch.tensor(LEAVES[1])))


def test_positive_indexing() -> None:
    nodes = [
        {"id": 1, "type": "leaf", "shape": [2, 3]},
        {"id": 2, "type": "transform", "src": 1, "indexDst": [7, 4], "indexSrc": [4, 9], "newDims": [5]},
    ]
    node = Graph.from_dict({"indexing": "positive", "nodes": nodes, "outputs": [2]}).node(2)
    assert isinstance(node, TransformNode)
    assert (node.index_dst, node.index_src) == ((-7, 4), (4, -9))
    written_graph = Graph(node).to_dict(indexing="positive")["nodes"][-1]
    assert (written_graph["indexDst"], written_graph["indexSrc"]) == ([1, 2], [2, 3])
    spread = TransformNode(LeafNode([3]), [-1], [-1], new_dims=[2])  # two indices that the signed notation calls alike
    written_graph = Graph(spread).to_dict(indexing="positive")["nodes"][-1]
    assert (written_graph["indexDst"], written_graph["indexSrc"]) == ([1], [2])


def test_write_derivatives_casts_and_constants() -> None:
    x = build.Input([2], dtype=torch.float32, name="x")
    fixed = build.FixedParameter(torch.tensor([1.0, 2.0]))
    one = build.Constant(1.0, dtype=torch.float32)
    loss: Node = build.Sum(build.Cast(build.Tanh(x * fixed + one), torch.float64))
    graph = Graph([loss, derivatives.hessian(loss, x), derivatives.jacobian(fixed, x)])
    data = json.loads(json.dumps(graph.to_dict()))
    reread = Graph.from_dict(data)
    leaf = next(node for node in reread.nodes() if node.name == "x")
    assert isinstance(leaf, LeafNode)
    for node, same in zip(graph.nodes(), reread.nodes(), strict=True):
        assert (node.dtype, node.shape, node.requires_grad) == (same.dtype, same.shape, same.requires_grad)
    at = torch.tensor([0.3, -0.7])
    for sink, same in zip(graph.outputs, reread.outputs, strict=True):
        assert torch.equal(graph.value(sink, {x: at}), reread.value(same, {leaf: at}))
    assert reread.to_dict() == data
