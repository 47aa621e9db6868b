"""Hostile graphs: validate() and every way of building give the same verdict, and errors are one clear ValueError."""

import copy
from math import inf, nan
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F

from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.drawing import to_dot, to_svg
from gflownet.operations.vocabulary import (
    ACTIVATIONS,
    AGGREGATIONS,
    DTYPES,
    MAX_WIDTH,
    PROJECTIONS,
    aggregation_parameters,
)
from gflownet.translation import DirectTraining, clear_translation_cache, summary, to_pytorch_model, to_source
from tests.oracles.translation_families import FAMILIES, random_graph
from tests.translation.graphs import chain
from tests.translation.test_source import run_source

FLOATS = [0.5, 1.0, 0.0, -0.0, -1.0, 2.5, 1e-6, 1e9, nan, inf, -inf, 1e308, -1e308, 1e-310, 1e-39, 5e-324, 3.41e38]
FLOATS += [1e38, 1e-7, 1e10, 0.9999999999999999]
INTS = [0, 1, 2, 3, -1, 17, MAX_WIDTH, MAX_WIDTH + 1, 2**31, 2**63, -(2**64), 10**30, 10**400, 10**5000, True, False]
NAMES = [
    "",
    "relu",
    "rhn",
    "sum",
    "Relu",
    "\N{FULLWIDTH LATIN SMALL LETTER R}elu",
    "relu\n",
    '"]; evil [',
    "<script>",
    "\ud800",
    "\x1b[31m",
    "a" * 10_000,
]
NAMES += ["__class__", "softmax", "topk", "auto", "never", "float64", "torch.float32", "x'); import os #"]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


OTHERS: list[Any] = [
    None,
    [],
    {},
    [1, 2],
    {"a": 1},
    {"a": {"b": [nan]}},
    nested(20),
    nested(900),
    nested(5000),
    1j,
    b"x",
]
OTHERS += [{1: 2}, {"projection": "always"}]


def hostile_value(rng: Random) -> Any:
    return rng.choice(rng.choice((FLOATS, FLOATS, INTS, INTS, NAMES, OTHERS)))


def hostile_data(rng: Random) -> dict[str, Any]:
    """A small random graph with up to three fields replaced by hostile values."""
    data = copy.deepcopy(random_graph(rng.choice(FAMILIES), rng.randrange(40)))
    for _ in range(rng.randint(0, 3)):
        node, edge = rng.choice(data["nodes"]), rng.choice(data["edges"])
        match rng.randrange(8):
            case 0 | 1:
                attributes = node.setdefault("attributes", {})
                attributes[rng.choice([*sorted(aggregation_parameters()), "derivation_uuid", "?"])] = hostile_value(rng)
                if rng.random() < 0.7:
                    attributes["aggregation"] = rng.choice(list(AGGREGATIONS))
            case 2:
                node["attributes"] = {"aggregation": rng.choice([*AGGREGATIONS, hostile_value(rng)])}
            case 3:
                node["activation_function"] = rng.choice([*ACTIVATIONS, hostile_value(rng)])
            case 4:
                node[rng.choice(("id", "node_type", "output_size", "bias"))] = hostile_value(rng)
            case 5:
                edge[rng.choice(("source", "target", "edge_id", "weight", "weight", "enabled"))] = hostile_value(rng)
            case 6:
                edge["attributes"] = {rng.choice(("is_recurrent", "order", "derivation_uuid", "?")): hostile_value(rng)}
            case 7:
                settings = {
                    rng.choice(("projection", "dtype", "?")): rng.choice([*PROJECTIONS, *DTYPES, hostile_value(rng)])
                }
                data["graph"] = {"translation": rng.choice([settings, hostile_value(rng)])}
    return data


def read(data: Any) -> ComputationGraph | None:
    """The graph, or None where it is refused in one line."""
    try:
        return ComputationGraph.from_dict(data)
    except ValueError as error:
        assert_clear(error)
        return None


def assert_clear(error: Exception) -> None:
    assert type(error) is ValueError
    assert "expected" in str(error)
    assert all(len(line) < 3000 and line.isprintable() for line in str(error).splitlines())


def is_built(build: Any) -> bool:
    try:
        build()
    except ValueError as error:
        assert_clear(error)
        return False
    return True


def is_moderate(graph: ComputationGraph) -> bool:
    """Whether no large weight or bias makes the exact output too large for the dtype, and the dtype is no half."""
    numbers = [*(node.bias for node in graph.nodes.values()), *(edge.weight for edge in graph.edges.values())]
    dtype = graph.config.get("translation", {}).get("dtype", "float32")
    return all(abs(number) <= 100 for number in numbers) and dtype in ("float32", "float64")


@pytest.mark.parametrize("seeds", [range(50), pytest.param(range(50, 6000), marks=pytest.mark.slow)])
def test_validate_and_every_translation_give_the_same_verdict(seeds):
    clear_translation_cache()
    counts: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    for seed in seeds:
        graph = read(hostile_data(Random(seed)))
        if graph is None:
            counts[None] += 1
            continue
        is_valid = not [problem for problem in graph.validate() if problem.code != "unreachable_output"]
        counts[is_valid] += 1
        for _ in range(2):  # the second time from the cache
            assert is_built(lambda graph=graph: to_pytorch_model(graph)) == is_valid, seed
        assert is_built(lambda graph=graph: to_pytorch_model(graph, {"enable_translation_cache": False})) == is_valid
        assert is_built(lambda graph=graph: summary(graph)) == is_valid
        assert to_dot(graph).encode()
        ElementTree.fromstring(to_svg(graph).encode())
        if is_valid:
            check_model(graph, seed)
    assert min(counts.values()) > len(seeds) / 8, counts


def check_model(graph: ComputationGraph, seed: int) -> None:
    model = to_pytorch_model(graph).eval()
    assert summary(graph).num_parameters == sum(parameter.numel() for parameter in model.parameters())
    again = ComputationGraph.from_json(graph.to_json())
    assert again == graph
    assert again.config == graph.config
    if all(node.activation_function != "rhn" for node in graph.nodes.values()):
        compile(to_source(graph), "<source>", "exec")
    if is_moderate(graph):
        x = torch.randn(3, model.plan.input_size, generator=torch.Generator().manual_seed(seed))
        assert model(x.to(next(model.parameters()).dtype)).isfinite().all(), seed


WIDE = [
    {"nodes": 3, "deep": nested(900)},
    {"nodes": [{"id": 0, "node_type": nested(900)}]},
    {"nodes": [{"id": nested(900), "node_type": "input"}]},
    {"nodes": [{"id": 10**5000, "node_type": "input"}]},
    {"nodes": [{"id": 0, "node_type": "input", "attributes": {"a": nested(900)}}]},
    {"nodes": [{"id": 0, "node_type": "input", "bias": nested(5000)}]},
    {"graph": {"a": nested(5000)}},
    {"edges": [{}]},
    {"edges": [{"source": 0}]},
    {"nodes": [{}]},
    {"nodes": {"a": 1}},
    [],
    None,
    "{}",
    nested(900),
]


@pytest.mark.parametrize("place", range(len(WIDE)))
@pytest.mark.parametrize("graph_type", [ComputationGraph, ColouredGraph, Assignment])
def test_data_of_another_form_are_one_value_error(graph_type, place):
    data = WIDE[place]
    with pytest.raises(ValueError, match="expected") as caught:
        graph_type.from_dict(data)
    assert_clear(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {"nodes": [{"id": 0, "colour": 1}], "edges": []},
        {"nodes": [{"id": 1, "colour": "a"}], "edges": []},
        {"nodes": [{"id": 0, "colour": "a"}], "edges": [{"source": 0, "target": 5, "colour": "b"}]},
        {"nodes": [{"id": 0, "colour": "a"}], "edges": [{"source": 0, "target": [], "colour": "b"}]},
    ],
)
def test_coloured_graphs_are_read_strictly(data):
    with pytest.raises(ValueError, match="expected"):
        ColouredGraph.from_dict(data)


def test_nesting_of_more_than_32_levels_is_refused():
    own_item: list[Any] = []
    own_item.append(own_item)
    objects: dict[str, Any] = {}
    for _ in range(31):
        objects = {"a": objects}
    ComputationGraph(config={"a": objects})
    for value in (own_item, {"a": objects}):
        with pytest.raises(ValueError, match="expected attributes of at most 32 levels"):
            ComputationGraph(config={"a": value})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 900, "[" * 100_000, '{"nodes": [{"id": ' + "1" * 5000 + "}]}", "\x00"]
)
def test_text_of_another_form_is_one_value_error(text):
    with pytest.raises(ValueError, match="expected") as caught:
        ComputationGraph.from_json(text)
    assert len(str(caught.value)) < 500


def with_temperature(aggregation: str, temperature: float) -> ComputationGraph:
    data = chain(2, 2)
    name = "router_temperature" if aggregation == "moe" else "temperature"
    data["nodes"][1]["attributes"] = {"aggregation": aggregation, name: temperature}
    return ComputationGraph.from_dict(
        {**data, "multigraph": True, "edges": data["edges"] + [{"source": 0, "target": 1}]}
    )


@pytest.mark.parametrize("aggregation", ["attention", "attn_pool", "topk_weighted_sum", "moe"])
def test_extreme_temperatures(aggregation):
    for temperature in (1e-6, 1e9):
        assert (
            to_pytorch_model(with_temperature(aggregation, temperature))(torch.tensor([[1e3, -1e3]])).isfinite().all()
        )
    for temperature in (1e-310, 1e-39, 9e-7, 1.1e9, 10**400):
        with pytest.raises(ValueError, match=r"expected a float in \[1e-06, 1e\+09\] for .*temperature, got [19]"):
            to_pytorch_model(with_temperature(aggregation, temperature))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_fan_in_of_300(aggregation):
    data = chain(2, 2)
    data["multigraph"] = True
    data["nodes"][1]["attributes"] = {"aggregation": aggregation}
    data["edges"] = [{"source": 0, "target": 1, "weight": float(weight)} for weight in range(300)]
    graph = ComputationGraph.from_dict(data)
    model = to_pytorch_model(graph)
    x = torch.tensor([[1.0, -1.0]])
    y = model(x)
    assert y.isfinite().all()
    if aggregation in ("max", "min"):
        expected = [[299.0, 0.0]] if aggregation == "max" else [[0.0, -299.0]]
        assert y.tolist() == run_source(to_source(graph))(x).tolist() == expected
        losses = DirectTraining([model]).backward([x], [torch.tensor([0])])
        assert losses.item() == F.cross_entropy(torch.tensor(expected), torch.tensor([0])).item()
