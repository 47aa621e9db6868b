"""Random graphs in both notations against the oracle: values, Jacobians of both modes, Hessians."""

from collections import Counter

import numpy as np
import pytest
import torch

from gflownet.autodiff.graph import Graph
from tests.autodiff.random_graphs import RandomGraph, random_graph
from tests.oracles import tensor_graphs as oracle

NUM_CHUNKS, NUM_QUICK_CHUNKS, CHUNK = 24, 5, 50
SEEDS = range(NUM_CHUNKS * CHUNK)
of_every_chunk = pytest.mark.parametrize(
    "chunk",
    [*range(NUM_QUICK_CHUNKS), *(pytest.param(i, marks=pytest.mark.slow) for i in range(NUM_QUICK_CHUNKS, NUM_CHUNKS))],
)


def drawn(seed: int) -> RandomGraph:
    return random_graph(seed, "positive" if seed % 3 == 0 else "signed")


def assert_close(found: torch.Tensor, expected: np.ndarray, tolerance: float, what: tuple) -> None:
    assert tuple(found.shape) == expected.shape, what
    error = np.abs(found.numpy() - expected).max(initial=0.0) / max(1.0, np.abs(expected).max(initial=0.0))
    assert error <= tolerance, (*what, error)


def inner_node(found: RandomGraph) -> int:
    """A node that is computed from others, in the middle of the graph."""
    inner = [node["id"] for node in found.graph["nodes"] if node["type"] != "leaf"]
    return inner[len(inner) // 2 - (len(inner) > 1)]


@of_every_chunk
def test_values_and_jacobians(chunk):
    for seed in SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]:
        found = drawn(seed)
        graph = Graph.from_dict(found.graph)
        for node in (inner_node(found), found.output):
            assert_close(graph.value(node, found.leaves), found.values[node], 1e-12, (seed, node))
        for wrt in (*found.leaves, inner_node(found)):
            for mode in ("reverse", "forward"):
                expected = oracle.jacobian(found.graph, found.output, wrt, found.leaves, mode)
                jacobian = graph.jacobian(found.output, wrt, found.leaves, mode=mode)
                assert_close(jacobian, expected, 1e-9, (seed, wrt, mode))


@of_every_chunk
def test_hessians(chunk):
    for seed in SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]:
        found = drawn(seed)
        graph = Graph.from_dict(found.graph)
        leaves = list(found.leaves)
        inner = inner_node(found)
        for first, second in ((leaves[0], leaves[0]), (leaves[0], leaves[-1]), (leaves[-1], leaves[0]), (inner, inner)):
            expected = oracle.hessian(found.graph, found.output, first, second, found.leaves)
            hessian = graph.hessian(found.output, first, second, found.leaves)
            assert_close(hessian, expected, 1e-5, (seed, first, second))


@of_every_chunk
def test_gradients_of_the_running_graph(chunk):
    for seed in SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]:
        found = drawn(seed)
        graph = Graph.from_dict(found.graph)
        graph.forward(found.leaves)
        if not graph.has_grad(found.output):
            continue
        graph.backward()
        num_axes = found.values[found.output].ndim
        for leaf in (leaf for leaf in found.leaves if graph.has_grad(leaf)):
            jacobian = oracle.jacobian(found.graph, found.output, leaf, found.leaves, "forward")
            assert_close(graph.grad(leaf), jacobian.sum(tuple(range(num_axes))), 1e-9, (seed, leaf))


def part_of_the_output(found: RandomGraph) -> list[dict]:
    used = {found.output}
    for node in reversed(found.graph["nodes"]):
        if node["id"] in used:
            used |= {node[field] for field in ("src", "srcL", "srcR") if field in node}
    return [node for node in found.graph["nodes"] if node["id"] in used]


def features(found: RandomGraph) -> set:
    """What of the rules the part of a graph that its output depends on puts to use."""
    seen: set = {found.graph["indexing"]}
    for node in part_of_the_output(found):
        seen |= {node["type"], (node["type"], node.get("op")), ("scalar", found.values[node["id"]].ndim == 0)}
        if node["type"] == "transform":
            dst, src = set(node["indexDst"]), set(node["indexSrc"])
            seen |= {("new", bool(node["newDims"])), ("summed", len(dst) - len(node["newDims"]) < len(src))}
        if "srcL" in node:
            left, right, dst = (set(node[field]) for field in ("indexSrcL", "indexSrcR", "indexDst"))
            seen |= {("shared", node["srcL"] == node["srcR"]), ("batch", bool(left & right & dst))}
            seen |= {
                ("one-sided", node.get("op"), side)
                for side, own in enumerate((left - right, right - left))
                if own - dst
            }
            seen.add(("2 and -2", any(-index in left | right for index in dst)))
    return seen


@pytest.mark.parametrize(
    ("num_graphs", "num_uses"),
    [(NUM_QUICK_CHUNKS * CHUNK, 6), pytest.param(NUM_CHUNKS * CHUNK, 40, marks=pytest.mark.slow)],
)
def test_every_rule_is_put_to_use_often(num_graphs, num_uses):
    graphs = [drawn(seed) for seed in SEEDS[:num_graphs]]
    count = Counter(feature for found in graphs for feature in features(found))
    expected = {"leaf", "transform", "elementwise", "linear", "nonlinear", "signed", "positive", ("scalar", True)}
    expected |= {("elementwise", operation) for operation in "+-*"}
    expected |= {("one-sided", operation, side) for operation in (*"+-*", None) for side in (0, 1)}
    expected |= {(name, True) for name in ("new", "summed", "shared", "batch", "2 and -2")}
    assert [(feature, count[feature]) for feature in expected if count[feature] < num_uses] == []


def test_most_jacobians_and_many_hessians_are_not_zero():
    num_jacobians = num_hessians = 0
    for seed in SEEDS[:100]:
        found = drawn(seed)
        jacobians = [oracle.jacobian(found.graph, found.output, leaf, found.leaves) for leaf in found.leaves]
        hessians = [oracle.hessian(found.graph, found.output, leaf, leaf, found.leaves) for leaf in found.leaves]
        num_jacobians += any(np.abs(jacobian).max() > 1e-6 for jacobian in jacobians)
        num_hessians += any(np.abs(hessian).max() > 1e-6 for hessian in hessians)
    assert num_jacobians >= 75
    assert num_hessians >= 40


def test_the_oracle_agrees_with_loops_over_single_numbers():
    num_checked = 0
    for seed in range(1, 150, 2):
        found = random_graph(seed)
        for node in found.graph["nodes"]:
            value = found.values[node["id"]]
            if node["type"] == "transform":
                looped = oracle.looped_transform(node, found.values[node["src"]])
            elif node["type"] in ("elementwise", "linear"):
                looped = oracle.looped_pair(node, found.values[node["srcL"]], found.values[node["srcR"]])
            else:
                continue
            assert np.allclose(looped, value, rtol=1e-12, atol=1e-12), (seed, node)
            num_checked += 1
    assert num_checked > 200


def test_the_oracle_differentiates_as_torch_does():
    graph = {
        "indexing": "signed",
        "nodes": [
            {"id": 1, "type": "leaf", "kind": "input", "shape": [3, 2]},
            {"id": 2, "type": "leaf", "kind": "parameter", "shape": [2]},
            {"id": 3, "type": "linear", "srcL": 1, "srcR": 2, "indexDst": [1], "indexSrcL": [1, -1], "indexSrcR": [-1]},
            {"id": 4, "type": "nonlinear", "src": 3, "function": "gelu(softplus(x))"},
        ],
        "outputs": [4],
    }
    rng = np.random.default_rng(0)
    leaves = {1: rng.normal(size=(3, 2)), 2: rng.normal(size=2)}
    x, w = (torch.tensor(leaves[k]) for k in (1, 2))

    def function(w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.logaddexp(x @ w, torch.zeros(3, dtype=x.dtype)))

    jacobian = torch.func.jacrev(function)(w).numpy()
    assert np.allclose(oracle.jacobian(graph, 4, 2, leaves, "forward"), jacobian, atol=1e-13)
    assert np.allclose(oracle.jacobian(graph, 4, 2, leaves), jacobian.T, atol=1e-13)
    assert np.allclose(oracle.hessian(graph, 4, 2, 2, leaves), torch.func.hessian(function)(w).numpy(), atol=1e-9)
