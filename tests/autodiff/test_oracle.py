"""Random graphs in both notations against the oracle: values, Jacobians of both modes, Hessians."""

from collections import Counter

import numpy as np
import pytest
import torch

from gflownet.autodiff.graph import Graph
from tests.autodiff.random_graphs import RandomGraph, random_graph
from tests.oracles import tensor_graphs as oracle

NUM_CHUNKS, NUM_QUICK_CHUNKS, CHUNK = 18, 1, 66
SEEDS = range(NUM_CHUNKS * CHUNK)
of_every_chunk = pytest.mark.parametrize(
    "chunk",
    [*range(NUM_QUICK_CHUNKS), *(pytest.param(i, marks=pytest.mark.slow) for i in range(NUM_QUICK_CHUNKS, NUM_CHUNKS))],
)


def drawn(seed: int) -> RandomGraph:
    return random_graph(seed, "positive" if seed % 3 == 0 else "signed")


def assert_close(result: torch.Tensor, expected: np.ndarray, tolerance: float, what: tuple) -> None:
    assert tuple(result.shape) == expected.shape, what
    error = np.abs(result.numpy() - expected).max(initial=0.0) / max(1.0, np.abs(expected).max(initial=0.0))
    assert error <= tolerance, (*what, error)


def inner_node(result: RandomGraph) -> int:
    """A node that is computed from others, in the middle of the graph."""
    inner = [node["id"] for node in result.graph["nodes"] if node["type"] != "leaf"]
    return inner[len(inner) // 2 - (len(inner) > 1)]


@of_every_chunk
def test_values_and_jacobians(chunk):
    for seed in SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]:
        result = drawn(seed)
        graph = Graph.from_dict(result.graph)
        for node in (inner_node(result), result.output):
            assert_close(graph.value(node, result.leaves), result.values[node], 1e-12, (seed, node))
        for wrt in (*result.leaves, inner_node(result)):
            for mode in ("reverse", "forward"):
                expected = oracle.jacobian(result.graph, result.output, wrt, result.leaves, mode)
                jacobian = graph.jacobian(result.output, wrt, result.leaves, mode=mode)
                assert_close(jacobian, expected, 1e-9, (seed, wrt, mode))


@of_every_chunk
def test_hessians(chunk):
    for seed in SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]:
        result = drawn(seed)
        graph = Graph.from_dict(result.graph)
        leaves = list(result.leaves)
        inner = inner_node(result)
        for first, second in ((leaves[0], leaves[0]), (leaves[0], leaves[-1]), (leaves[-1], leaves[0]), (inner, inner)):
            expected = oracle.hessian(result.graph, result.output, first, second, result.leaves)
            hessian = graph.hessian(result.output, first, second, result.leaves)
            assert_close(hessian, expected, 1e-5, (seed, first, second))


@of_every_chunk
def test_gradients_of_the_running_graph(chunk):
    for seed in SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]:
        result = drawn(seed)
        graph = Graph.from_dict(result.graph)
        graph.forward(result.leaves)
        if not graph.has_grad(result.output):
            continue
        graph.backward()
        num_axes = result.values[result.output].ndim
        for leaf in (leaf for leaf in result.leaves if graph.has_grad(leaf)):
            jacobian = oracle.jacobian(result.graph, result.output, leaf, result.leaves, "forward")
            assert_close(graph.grad(leaf), jacobian.sum(tuple(range(num_axes))), 1e-9, (seed, leaf))


def part_of_the_output(result: RandomGraph) -> list[dict]:
    used = {result.output}
    for node in reversed(result.graph["nodes"]):
        if node["id"] in used:
            used |= {node[field] for field in ("src", "srcL", "srcR") if field in node}
    return [node for node in result.graph["nodes"] if node["id"] in used]


def features(result: RandomGraph) -> set:
    """Return the rules that apply to the nodes an output depends on."""
    visited: set = {result.graph["indexing"]}
    for node in part_of_the_output(result):
        visited |= {node["type"], (node["type"], node.get("op")), ("scalar", result.values[node["id"]].ndim == 0)}
        if node["type"] == "transform":
            dst, src = set(node["indexDst"]), set(node["indexSrc"])
            visited |= {("new", bool(node["newDims"])), ("summed", len(dst) - len(node["newDims"]) < len(src))}
        if "srcL" in node:
            left, right, dst = (set(node[field]) for field in ("indexSrcL", "indexSrcR", "indexDst"))
            visited |= {("shared", node["srcL"] == node["srcR"]), ("batch", bool(left & right & dst))}
            visited |= {
                ("one-sided", node.get("op"), side)
                for side, own_indices in enumerate((left - right, right - left))
                if own_indices - dst
            }
            visited.add(("2 and -2", any(-index in left | right for index in dst)))
    return visited


@pytest.mark.parametrize(
    ("num_graphs", "num_uses"),
    [(NUM_QUICK_CHUNKS * CHUNK, 1), pytest.param(NUM_CHUNKS * CHUNK, 40, marks=pytest.mark.slow)],
)
def test_random_graphs_cover_all_rules(num_graphs, num_uses):
    graphs = [drawn(seed) for seed in SEEDS[:num_graphs]]
    count = Counter(feature for result in graphs for feature in features(result))
    expected = {"leaf", "transform", "elementwise", "linear", "nonlinear", "signed", "positive", ("scalar", True)}
    expected |= {("elementwise", operation) for operation in "+-*"}
    expected |= {("one-sided", operation, side) for operation in (*"+-*", None) for side in (0, 1)}
    expected |= {(name, True) for name in ("new", "summed", "shared", "batch", "2 and -2")}
    assert [(feature, count[feature]) for feature in expected if count[feature] < num_uses] == []
