"""Checks of index arrays and dtypes of each node class, with their messages, and index counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gflownet.autodiff import nodes as node_classes
from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import ElementwiseNode, LeafKind, LeafNode, LinearNode, Node, NonlinearNode, TransformNode

DOUBLE = torch.float64
A = LeafNode([2, 3, 4, 5], dtype=DOUBLE, name="a")
M = LeafNode([2, 3], dtype=DOUBLE)
V = LeafNode([3], dtype=DOUBLE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([2, -2],), r"LeafNode: shape \[2, -2\]: expected extents of at least 0"),
        (([-1],), r"LeafNode: shape \[-1\]: expected extents of at least 0"),
        (([2], {"value": torch.zeros(3)}), r"LeafNode: value: expected shape \[2\], got \[3\]"),
        (([], {"value": torch.zeros(1)}), r"LeafNode: value: expected shape \[\], got \[1\]"),
        (([2], {"value": torch.zeros(2), "dtype": DOUBLE}), r"value: expected dtype torch.float64, got torch.float32"),
        (([2], {"fill": 1.0}), r"expected a value, or of a constant a fill or an identity"),
        (([2], {"fill": 1.0, "value": torch.zeros(2), "kind": LeafKind.CONSTANT}), r"expected a value, .* got several"),
        (([2, 3], {"is_identity": True, "kind": LeafKind.CONSTANT}), r"expected an identity to have its axes twice"),
        (([2, 3, 2], {"is_identity": True, "kind": LeafKind.CONSTANT}), r"expected an identity to have its axes twice"),
        (([2], {"kind": 3}), r"3 is not a valid LeafKind"),
    ],
)
def test_leaves(arguments: tuple[Any, ...], message: str) -> None:
    shape, options = arguments[0], arguments[1] if len(arguments) > 1 else {}
    with pytest.raises(ValueError, match=message):
        LeafNode(shape, **options)


@pytest.mark.parametrize(
    ("index_dst", "index_src", "new_dims", "message"),
    [
        ([1, 0], [1, -1, 2, -2], [], r"TransformNode 't': index_dst \[1, 0\]: expected indices other than 0"),
        ([1, 1], [1, -1, 2, -2], [], r"index_dst \[1, 1\]: expected every index once in a tensor, got 1 twice"),
        ([1], [1, -1, -1, -2], [], r"index_src \[1, -1, -1, -2\]: expected every index once in a tensor, got -1 twice"),
        ([1], [1, -1, -2], [], r"index_src \[1, -1, -2\]: expected one index for each of the 4 axes of shape"),
        (
            [1, 2],
            [1, -1, -2, -3],
            [],
            r"index_dst \[1, 2\]: expected positive indices on both sides, got \[2\] on this",
        ),
        ([1], [1, 2, -2, -3], [], r"index_src \[1, 2, -2, -3\]: expected positive indices on both sides, got \[2\]"),
        (
            [1, -1],
            [1, -1, -2, -3],
            [],
            r"new_dims \[\]: expected an extent of at least 0 for each of the 1 New indices",
        ),
        ([1], [1, -1, -2, -3], [4], r"new_dims \[4\]: expected an extent of at least 0 for each of the 0 New indices"),
        ([1, -1], [1, -1, -2, -3], [-2], r"new_dims \[-2\]: expected an extent of at least 0"),
    ],
)
def test_transforms(index_dst: list[int], index_src: list[int], new_dims: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformNode(A, index_dst, index_src, new_dims=new_dims, name="t")


@pytest.mark.parametrize("alpha", [math.inf, -math.inf, math.nan, 10**400])
def test_infinite_alpha_raises(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"TransformNode 't': alpha: expected a finite number, got (-?inf|nan)"):
        TransformNode(V, [1], [1], alpha=alpha, name="t")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integer_operands_raise(dtype: torch.dtype) -> None:
    whole = LeafNode([3], dtype=dtype, name="n")
    message = f"'y': expected a floating or complex operand, got {dtype} of LeafNode 'n': Cast it first"
    for make in (
        lambda: TransformNode(whole, [1], [1], alpha=0.5, name="y"),
        lambda: ElementwiseNode(whole, whole, [1], [1], [1], operation="-", name="y"),
        lambda: LinearNode(whole, whole, [], [-1], [-1], name="y"),
        lambda: NonlinearNode(whole, Function.parse("tanh"), name="y"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    entries = torch.tensor([0, 1, 1]).to(dtype)
    assert evaluate([node_classes.CastNode(whole, DOUBLE)], {whole: entries})[0].tolist() == [0.0, 1.0, 1.0]


PAIRS = [
    ([1, 2], [1, 2], [0], r"index_src_r \[0\]: expected indices other than 0"),
    ([1, 1], [1, 2], [2], r"index_dst \[1, 1\]: expected every index once in a tensor, got 1 twice"),
    ([1], [1, 1], [1], r"index_src_l \[1, 1\]: expected every index once in a tensor, got 1 twice"),
    ([1, 2], [1], [2], r"index_src_l \[1\]: expected one index for each of the 2 axes of shape \[2, 3\], got 1"),
    ([1, 2], [1, 2], [2, 3], r"index_src_r \[2, 3\]: expected one index for each of the 1 axes of shape \[3\], got 2"),
    ([1, 2], [1, 2], [1], r"index_src_l and index_src_r: expected one extent for index 1, got 2 on the left and 3"),
    (
        [1, 2],
        [1, -2],
        [-2],
        r"index_dst \[1, 2\]: expected indices of the operands, got \[2\]: compose with a Transform",
    ),
    ([1, -2], [1, -2], [-2], r"index_dst \[1, -2\]: expected indices of the operands, got \[-2\]"),
    ([1], [1, 2], [-3], r"index_src_l \[1, 2\]: expected positive indices to be in index_dst \[1\], got \[2\]"),
    ([1], [1, -3], [2], r"index_src_r \[2\]: expected positive indices to be in index_dst \[1\], got \[2\]"),
]


@pytest.mark.parametrize(("index_dst", "index_src_l", "index_src_r", "message"), PAIRS)
def test_pairs(index_dst: list[int], index_src_l: list[int], index_src_r: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"LinearNode 'p': {message}"):
        LinearNode(M, V, index_dst, index_src_l, index_src_r, name="p")
    with pytest.raises(ValueError, match=f"ElementwiseNode: {message}"):
        ElementwiseNode(M, V, index_dst, index_src_l, index_src_r, operation="-")


def test_pair_operation_and_dtype_errors() -> None:
    with pytest.raises(ValueError, match="ElementwiseNode: operation: expected one of"):
        ElementwiseNode(M, V, [1, 2], [1, 2], [2], operation="/")  # pyright: ignore[reportArgumentType]
    single = LeafNode([3], dtype=torch.float32)
    for make in (LinearNode, lambda *given: ElementwiseNode(*given, operation="*")):
        with pytest.raises(ValueError, match=r"expected operands of one dtype \(see Cast\)"):
            make(M, single, [1, 2], [1, 2], [2])


def test_scope_of_negative_indices() -> None:
    both = TransformNode(V, [-1], [-1], new_dims=[5])
    assert (both.shape, both.dummy_index, both.new_index, both.repeated_index) == ((5,), 1, 1, 0)
    values = {V: torch.tensor([1.0, 2.0, 4.0], dtype=DOUBLE)}
    assert evaluate([both], values)[0].tolist() == [7.0] * 5
    inner = LinearNode(V, V, [], [-1], [-1])
    assert (inner.dummy_index, inner.repeated_index) == (1, 0)
    assert evaluate([inner], values)[0].item() == 21.0
    outer = LinearNode(V, V, [], [-1], [-2])
    assert outer.dummy_index == 2
    assert evaluate([outer], values)[0].item() == 49.0


def test_shape_one_is_not_a_scalar() -> None:
    one, scalar = LeafNode([1], dtype=DOUBLE), LeafNode([], dtype=DOUBLE)
    assert (one.rank, scalar.rank) == (1, 0)
    assert TransformNode(one, [], [-1]).shape == ()
    assert TransformNode(scalar, [-1], [], new_dims=[1]).shape == (1,)


def test_node_label() -> None:
    assert repr(A) == "<LeafNode 'a' [2, 3, 4, 5] float64>"
    assert repr(node_classes.CastNode(V, torch.float32)) == "<CastNode [3] float32>"
    assert NonlinearNode(V, Function.parse("exp"), name="e").label == "NonlinearNode 'e'"


def test_compute_leaf_raises() -> None:
    class Unknown(Node):
        __slots__ = ()

    for node in (V, Unknown([V], shape=[3], dtype=DOUBLE, name=None)):
        with pytest.raises(TypeError, match="expected a node that is computed from others"):
            node.forward_(torch.zeros(3))
        with pytest.raises(TypeError, match="expected a node that is computed from others"):
            _ = node.form


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex128])
def test_results_keep_dtype(dtype: torch.dtype) -> None:
    left, right = LeafNode([2, 3], dtype=dtype), LeafNode([3], dtype=dtype)
    nodes: list[Node] = [
        LinearNode(left, right, [1], [1, -2], [-2]),
        ElementwiseNode(left, right, [1], [1, -2], [-2], operation="-"),
        ElementwiseNode(left, right, [2, 1], [1, 2], [2], operation="*"),
        TransformNode(left, [1, -1], [-2, 1], alpha=2.0, new_dims=[4]),
        *(LeafNode([2], kind=LeafKind.CONSTANT, dtype=dtype, fill=1.0),),
        *(LeafNode([2, 2], kind=LeafKind.CONSTANT, dtype=dtype, is_identity=True),),
    ]
    a, b = torch.arange(6).reshape(2, 3).to(dtype), torch.tensor([1, 2, 3]).to(dtype)
    result = evaluate(nodes, {left: a, right: b})
    expected = [
        (a * b).sum(1),
        (a - b).sum(1),
        (a * b).T,
        2 * a.sum(0)[:, None].expand(3, 4),
        torch.ones(2),
        torch.eye(2),
    ]
    for node, value, expected_counts in zip(nodes, result, expected, strict=True):
        assert (value.dtype, value.shape) == (node.dtype, node.shape)
        assert torch.equal(value, expected_counts.to(dtype))
