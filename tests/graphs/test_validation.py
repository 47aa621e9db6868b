from math import inf, nan
from random import Random
from typing import Any

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations import vocabulary
from gflownet.operations.vocabulary import ACTIVATIONS, AGGREGATIONS, aggregation_parameters
from tests.oracles import graphs as oracle


def line(*, hidden: dict[str, Any] | None = None, edge: dict[str, Any] | None = None) -> ComputationGraph:
    """input 0 -> hidden 1 -> output 2, with fields of the hidden node and of its in-edge (edge 0) replaced."""
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=4)
    graph.add_node(1, "hidden", **{"output_size": 4, **(hidden or {})})
    graph.add_node(2, "output", output_size=4)
    graph.add_edge(0, 1, **(edge or {}))
    graph.add_edge(1, 2)
    return graph


def problems(graph: ComputationGraph) -> list[tuple[str, int | None, int | None]]:
    return [(problem.code, problem.node_id, problem.edge_id) for problem in graph.validate()]


@pytest.mark.parametrize("seed", range(30))
def test_valid_graphs_have_no_problems(seed):
    assert oracle.random_computation_graph(Random(seed)).validate() == []


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_valid(activation):
    assert line(hidden={"activation_function": activation}).validate() == []


GOOD = {
    "head_dim": [1, 8],
    "num_heads": [1, 4],
    "pool_heads": [1, 4],
    "temperature": [0.1, 2, 1e9],
    "top_k": [1, 3, None],
    "router_type": ["softmax", "topk"],
    "router_temperature": [0.5],
    "dropout_p": [0.0, 0, 0.999],
    "attn_eps": [0.0, 1e-6],
    "normalize": [True, False],
    "post_projection": [True, False],
}
BAD = {
    "head_dim": [0, -1, 1.0, "8", True, None, [8], 2**20 + 1],
    "num_heads": [0, 2.0, "2", True, 10**30],
    "pool_heads": [0, None],
    "temperature": [0.0, -1.0, nan, inf, "1", True, None, 1e-310, 1e-39, 9e-7, 1.1e9, 10**400],
    "top_k": [0, 1.5, True, "1", 10**400],
    "router_type": ["soft", None, 1, ["topk"], {"a": 1}],
    "router_temperature": [0, nan, 1e-310],
    "dropout_p": [1.0, -0.1, nan, True, None, 10**400],
    "attn_eps": [-1e-6, inf, None, 1.5, 10**400],
    "normalize": [1, "true", None],
    "post_projection": [0, None],
}


def test_cases_cover_every_parameter():
    assert set(GOOD) == set(BAD) == aggregation_parameters()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_aggregation_parameters(aggregation):
    for name in sorted(aggregation_parameters()):
        accepted = name in vocabulary.aggregation(aggregation).accepted()
        for value in GOOD[name]:
            graph = line(hidden={"attributes": {"aggregation": aggregation, name: value}})
            assert problems(graph) == ([] if accepted else [("invalid_agg_param", 1, None)]), (name, value)
        for value in BAD[name]:
            graph = line(hidden={"attributes": {"aggregation": aggregation, name: value}})
            assert problems(graph) == [("invalid_agg_param", 1, None)], (name, value)


def test_problem_messages():
    graph = line(hidden={"attributes": {"aggregation": "attention", "temperature": -1.0, "num_heads": 2}})
    messages = [problem.message for problem in graph.validate()]
    accepted = "attn_eps, dropout_p, head_dim, post_projection, temperature"
    assert messages == [
        "node 1: expected a float in [1e-06, 1e+09] for temperature, got -1.0",
        f"node 1: expected attention parameters out of {accepted}, got 'num_heads'",
    ]


@pytest.mark.parametrize(
    ("hidden", "codes"),
    [
        ({"output_size": None}, ["missing_output_size"]),
        ({"output_size": 0}, ["invalid_output_size"]),
        ({"output_size": -3}, ["invalid_output_size"]),
        ({"output_size": 2**20}, []),
        ({"output_size": 2**20 + 1}, ["invalid_output_size"]),
        ({"output_size": 10**30}, ["invalid_output_size"]),
        ({"activation_function": "Relu"}, ["invalid_activation"]),
        ({"activation_function": ""}, ["invalid_activation"]),
        ({"bias": nan}, ["non_finite_bias"]),
        ({"bias": -inf}, ["non_finite_bias"]),
        ({"bias": -3.4028234e38}, []),
        ({"bias": 3.41e38}, ["non_finite_bias"]),
        ({"attributes": {"aggregation": "avg"}}, ["invalid_aggregation"]),
        ({"attributes": {"aggregation": None}}, ["invalid_aggregation"]),
        ({"attributes": {"aggregation": ["sum"]}}, ["invalid_aggregation"]),
        ({"attributes": {"aggregation": {"sum": [1]}}}, ["invalid_aggregation"]),
        ({"attributes": {"aggregation": "avg", "colour": 1}}, ["invalid_aggregation", "unknown_attribute"]),
        ({"attributes": {"colour": "red"}}, ["unknown_attribute"]),
        ({"attributes": {"is_recurrent": True}}, ["unknown_attribute"]),
        ({"attributes": {"derivation_uuid": "u"}}, []),
        ({"attributes": {"derivation_uuid": 3}}, ["invalid_attribute"]),
    ],
)
def test_node_problems(hidden, codes):
    assert problems(line(hidden=hidden)) == [(code, 1, None) for code in codes]


@pytest.mark.parametrize(
    ("edge", "codes"),
    [
        ({"weight": nan}, ["non_finite_weight"]),
        ({"weight": inf}, ["non_finite_weight"]),
        ({"weight": -1e39}, ["non_finite_weight"]),
        ({"attributes": {"is_recurrent": True}}, []),
        ({"attributes": {"is_recurrent": 1}}, ["invalid_attribute"]),
        ({"attributes": {"is_recurrent": "yes"}}, ["invalid_attribute"]),
        ({"attributes": {"order": 3}}, []),
        ({"attributes": {"order": "first"}}, ["invalid_attribute"]),
        ({"attributes": {"order": nan}}, ["invalid_attribute"]),
        ({"attributes": {"derivation_uuid": "u"}}, []),
        ({"attributes": {"head_dim": 3}}, ["unknown_attribute"]),
    ],
)
def test_edge_problems(edge, codes):
    assert problems(line(edge=edge)) == [(code, None, 0) for code in codes]


def test_input_problems():
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=4, activation_function="relu", bias=1.0, attributes={"head_dim": 2})
    graph.add_node(1, "output", output_size=4)
    graph.add_edge(0, 1)
    assert problems(graph) == [
        ("invalid_input_node", 0, None),
        ("invalid_input_node", 0, None),
        ("invalid_agg_param", 0, None),
    ]


def test_edge_end_problems():
    graph = line()
    graph.add_edge(0, 77)
    graph.add_edge(78, 79)
    graph.add_edge(1, 0, attributes={"is_recurrent": True})
    assert problems(graph) == [
        ("dangling_edge", None, 2),
        ("dangling_edge", None, 3),
        ("dangling_edge", None, 3),
        ("edge_into_input", None, 4),
    ]


def test_duplicate_edge_problems():
    graph = line()
    graph.add_edge(0, 1, enabled=False)
    graph.add_edge(0, 1)
    assert problems(graph) == [("duplicate_edge", None, 2), ("duplicate_edge", None, 3)]
    data = graph.to_dict() | {"multigraph": True}
    assert ComputationGraph.from_dict(data).validate() == []


def test_empty_graph_problems():
    assert problems(ComputationGraph()) == [("missing_input", None, None), ("missing_output", None, None)]


def test_unreachable_output_problems():
    assert problems(line(edge={"enabled": False})) == [("unreachable_output", 2, None)]
    graph = line()
    graph.add_node(3, "output", output_size=1)
    graph.add_node(4, "hidden", output_size=1)
    graph.add_edge(4, 3)
    assert problems(graph) == [("unreachable_output", 3, None)]
    graph.add_edge(3, 1)
    graph.add_edge(2, 4, attributes={"is_recurrent": True})
    assert problems(graph) == []


def test_unmarked_cycle_is_valid():
    graph = line()
    graph.add_edge(2, 1)
    assert graph.validate() == []


def test_all_problems_reported_together():
    graph = ComputationGraph.from_dict(
        {
            "nodes": [
                {"id": 0, "node_type": "hidden", "activation_function": "nope", "bias": nan},
                {"id": 1, "node_type": "output", "output_size": 0, "attributes": {"aggregation": "?", "x": 1}},
            ],
            "edges": [
                {"source": 0, "target": 9, "weight": nan},
                {"source": 0, "target": 9, "attributes": {"is_recurrent": None}},
            ],
        }
    )
    assert [code for code, _, _ in problems(graph)] == [
        "missing_input",
        "missing_output_size",
        "invalid_activation",
        "non_finite_bias",
        "invalid_output_size",
        "invalid_aggregation",
        "unknown_attribute",
        "dangling_edge",
        "non_finite_weight",
        "dangling_edge",
        "invalid_attribute",
        "duplicate_edge",
        "unreachable_output",
    ]


@pytest.mark.parametrize(
    ("hidden", "projection", "is_too_large"),
    [
        # 4 -> 2^15 -> 4 with a matrix on both edges; an lstm has 8 D^2 weights, a post layer heads * D^2.
        ({"output_size": 2**15}, "always", False),
        ({"output_size": 2**15, "activation_function": "lstm"}, "always", True),
        ({"output_size": 2**13, "activation_function": "lstm"}, "always", False),
        ({"output_size": 2**14, "attributes": {"aggregation": "attn_pool", "pool_heads": 2**6}}, "auto", True),
        ({"output_size": 2**14, "attributes": {"aggregation": "attn_pool", "head_dim": 2**17}}, "auto", True),
        ({"output_size": 2**15, "attributes": {"post_projection": True}}, "auto", True),
        ({"output_size": 2**14, "attributes": {"post_projection": True}}, "auto", False),
        ({"output_size": 4, "attributes": {"aggregation": "multi_head_attention", "num_heads": 2**20}}, "auto", False),
    ],
)
def test_parameter_limit(hidden, projection, is_too_large):
    graph = line(hidden=hidden).with_translation({"projection": projection})
    expected = [("too_many_parameters", None, None)] if is_too_large else []
    assert problems(graph) == expected
    # Two edges between wide nodes are scalars or matrices of 2^34 weights.
    graph = ComputationGraph()
    for node_id, kind in enumerate(("input", "output")):
        graph.add_node(node_id, kind, output_size=2**17)
    graph.add_edge(0, 1, edge_id=2)
    assert problems(graph) == []
    assert problems(graph.with_translation({"projection": "always"})) == [("too_many_parameters", None, None)]
    graph = ComputationGraph.from_dict(graph.to_dict() | {"graph": {"translation": {"projection": "always"}}})
    graph.add_edge(1, 0)
    assert [code for code, _, _ in problems(graph)] == ["edge_into_input"]
