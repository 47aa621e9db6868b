"""JSON and identity of operation graphs."""

import copy
import pickle
from functools import partial
from itertools import combinations
from random import Random
from typing import Any

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from tests.graphs.test_computation_graph import edited as edited_graph
from tests.oracles import operation_graphs as oracle

SEEDS = range(12)
EXAMPLE: dict[str, Any] = {
    "nodes": [
        {"id": 0, "shape": [3, 8, 8]},
        {"id": 1, "operation": {"name": "conv2d", "features": 4}, "activation_function": "relu"},
        {"id": 2, "subgraph": "cell", "repeat": 2},
        {"id": 3, "node_type": "output", "operation": {"name": "head", "features": 10}},
    ],
    "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 2, "target": 3}],
    "subgraphs": {"cell": oracle.CELLS["narrow"]},
}


edited = partial(edited_graph, example=EXAMPLE)


def graph_of(data: dict[str, Any]) -> ComputationGraph:
    return ComputationGraph.from_dict(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_identity_ignores_spelling(seed):
    rng = Random(seed)
    data = oracle.random_data(rng)
    graph, other = graph_of(data), graph_of(oracle.rewritten(data, rng))
    assert other.canonical_key() == graph.canonical_key()
    assert other.num_automorphisms() == graph.num_automorphisms() == oracle.count_automorphisms(data)


def test_identity_is_isomorphism():
    cases = [oracle.random_data(Random(seed), num_hidden=1 + seed % 2) for seed in range(40)]
    graphs = [graph_of(data) for data in cases]
    num_equal = 0
    for first, second in combinations(range(len(cases)), 2):
        is_equal = oracle.are_isomorphic(cases[first], cases[second])
        assert (graphs[first] == graphs[second]) == is_equal, (cases[first], cases[second])
        num_equal += is_equal
    assert num_equal >= 10


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes.0.shape", [3, 8, 9]),
        ("nodes.0.shape", [3, 64]),
        ("nodes.1.operation.features", 8),
        ("nodes.1.operation.bias", False),
        ("nodes.1.operation", {"name": "identity"}),
        ("nodes.1.activation_function", "tanh"),
        ("nodes.1.aggregation", "mean"),
        ("nodes.1.align", "never"),
        ("nodes.1.edge_weight", True),
        ("nodes.2.repeat", 3),
        ("nodes.2.share", True),
        ("edges.0.port", "query"),
        ("edges.0.enabled", False),
        ("subgraphs.cell.nodes.1.operation.features", 5),
        ("subgraphs.cell.nodes.1.activation_function", "relu"),
        ("subgraphs.cell.edges.0.target", 3),
    ],
)
def test_identity_depends_on_every_field(path, value):
    assert graph_of(edited(path, value)) != graph_of(EXAMPLE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes.0.layout", "image"),
        ("nodes.0.dtype", "float"),
        ("nodes.1.operation.kernel_size", 3),
        ("nodes.2.share", False),
        ("edges.0.port", "input"),
        ("subgraphs.cell.nodes.0.shape", [7, 7, 7]),
        ("subgraphs.other", {"nodes": []}),
        ("multigraph", True),
    ],
)
def test_identity_ignores_defaults_and_unused_parts(path, value):
    assert graph_of(edited(path, value)) == graph_of(EXAMPLE)


@pytest.mark.parametrize("merge", ["sum", "mean", "max", "min", "product", "concat"])
def test_identity_includes_order_of_concat_at_each_port(merge):
    def merged(*sources: int, key: int = 0) -> ComputationGraph:
        nodes = [{"id": place, "shape": [4, 8, 8]} for place in range(2)]
        nodes.append({"id": 2, "node_type": "output", "operation": {"name": "identity"}, "aggregation": merge})
        edges: list[dict[str, Any]] = [{"source": source, "target": 2} for source in sources]
        # A disabled edge and an edge into another port have no place in the order.
        edges.insert(key, {"source": 0, "target": 2, "port": "key"})
        edges.insert(key, {"source": 1, "target": 2, "enabled": False})
        return graph_of({"multigraph": True, "nodes": nodes, "edges": edges})

    assert (merged(0, 1) == merged(1, 0)) == (merge != "concat")
    assert merged(0, 1) == merged(0, 1, key=1) == merged(0, 1, key=2)


def test_identity_of_short_and_long_shape():
    def vector(**fields: Any) -> ComputationGraph:
        nodes = [{"id": 0, "node_type": "input", **fields}, {"id": 1, "node_type": "output", "operation": {}}]
        return graph_of({"nodes": nodes, "edges": [{"source": 0, "target": 1}]})

    assert vector(output_size=7) == vector(shape=[7]) != vector(shape=[8])
    assert vector(shape=[7]) != vector(shape=[7], dtype="token")


def test_identity_ignores_home_of_class_and_share_of_one_application():
    graphs = []
    for name, more in (("conv2d", {}), ("gflownet.operations.convolution:Conv2d", {"share": True})):
        data = copy.deepcopy(EXAMPLE)
        data["nodes"][1]["operation"]["name"] = name
        data["nodes"][2] = {**data["nodes"][2], "repeat": 1, **more}
        graphs.append(ComputationGraph.from_dict(data))
    assert graphs[0] == graphs[1]


def test_identity_of_subgraph_inputs_follows_ports():
    def applied(ports: tuple[str, str]) -> ComputationGraph:
        inner = {
            "nodes": [{"id": place, "node_type": "input", "port": port} for place, port in enumerate(ports)]
            + [{"id": 2, "operation": {"name": "conv2d", "features": 4}}]
            + [{"id": 3, "node_type": "output", "operation": {"name": "identity"}}],
            # The input of port `a` is convolved.
            "edges": [{"source": ports.index("a"), "target": 2}]
            + [{"source": source, "target": 3} for source in (2, ports.index("b"))],
        }
        nodes = [{"id": 0, "shape": [4, 8, 8]}, {"id": 1, "node_type": "output", "subgraph": "inner"}]
        edges = [{"source": 0, "target": 1, "port": port} for port in ("a", "b")]
        return graph_of({"nodes": nodes, "edges": edges, "subgraphs": {"inner": inner}})

    assert applied(("a", "b")) == applied(("b", "a"))
    other = applied(("a", "b")).to_dict()
    other["subgraphs"]["inner"]["edges"][0]["source"] = 1
    other["subgraphs"]["inner"]["edges"][2]["source"] = 0
    assert graph_of(other) != applied(("a", "b"))


def test_identity_of_deeply_nested_subgraphs():
    """The text of a key must not grow exponentially with the number of levels."""
    level = {
        "nodes": [{"id": 0, "node_type": "input"}, {"id": 1, "operation": {"name": "identity"}}],
        "edges": [{"source": 0, "target": 1}],
    }
    subgraphs = {"s30": level}
    for place in range(30):
        nodes = [{"id": 0, "node_type": "input"}, *({"id": n, "subgraph": f"s{place + 1}"} for n in (1, 2, 3))]
        subgraphs[f"s{place}"] = {"nodes": nodes, "edges": [{"source": n, "target": n + 1} for n in range(3)]}
    nodes = [{"id": 0, "shape": [3]}, {"id": 1, "subgraph": "s0"}]
    graph = graph_of({"nodes": nodes, "edges": [{"source": 0, "target": 1}], "subgraphs": subgraphs})
    assert len(graph.canonical_key()) < 1000


@pytest.mark.parametrize("seed", SEEDS)
def test_operation_graph_round_trips(seed):
    graph = graph_of(oracle.random_data(Random(seed)))
    text = graph.to_json()
    copies = {
        "json": ComputationGraph.from_json(text),
        "networkx": ComputationGraph.from_networkx(graph.to_networkx()),
        "copy": graph.copy(),
        "pickle": pickle.loads(pickle.dumps(graph)),
    }
    for name, other in copies.items():
        assert other.to_json() == text, name
        assert other == graph, name


def test_to_dict_writes_short_fields():
    graph = graph_of(EXAMPLE)
    assert graph.nodes[2].attributes == {"subgraph": "cell", "repeat": 2}
    written = graph.to_dict()
    assert written.pop("directed") is True
    assert written.pop("multigraph") is False
    expected = copy.deepcopy(EXAMPLE)
    types = {0: "input", 1: "hidden", 2: "hidden", 3: "output"}
    for nodes in (expected["nodes"], expected["subgraphs"]["cell"]["nodes"]):
        for node in nodes:
            node["node_type"] = types[node["id"]]
    assert written == expected


def test_attributes_and_fields_are_one_graph():
    data = copy.deepcopy(EXAMPLE)
    operation = data["nodes"][1].pop("operation")
    data["nodes"][1]["attributes"] = {"operation": operation}
    assert graph_of(data).to_json() == graph_of(EXAMPLE).to_json()


def test_round_trip_keeps_uncommon_values():
    data = edited("edges.1.edge_id", 7)
    data["graph"] = {"translation": {"dtype": "float64"}}
    data["edges"][0] |= {"enabled": False, "weight": 2.0, "attributes": {"order": 3, "derivation_uuid": "e"}}
    data["nodes"][1] |= {"bias": 0.5, "attributes": {"note": [1, None], "align": None}}
    data["nodes"][0] |= {"attributes": {"layout": None}}
    graph = graph_of(data)
    assert graph.edges[7].source == 1
    for other in (graph_of(graph.to_dict()), ComputationGraph.from_networkx(graph.to_networkx())):
        assert other.to_json() == graph.to_json()
        assert other.nodes == graph.nodes
        assert other.edges == graph.edges
        assert other.config == graph.config


@pytest.mark.parametrize("multigraph", [False, True])
def test_networkx_keeps_parallel_edges_into_ports(multigraph):
    nodes = [{"id": 0, "shape": [4, 8]}, {"id": 1, "node_type": "output", "operation": {"name": "identity"}}]
    edges = [{"source": 0, "target": 1, "port": port} for port in ("query", "key", "value")]
    graph = graph_of({"multigraph": multigraph, "nodes": nodes, "edges": edges})
    as_networkx = graph.to_networkx()
    assert as_networkx.number_of_edges() == 3
    assert ComputationGraph.from_networkx(as_networkx).to_json() == graph.to_json()


def test_subgraph_sees_outer_and_own_names():
    data = copy.deepcopy(EXAMPLE) | {"subgraphs": copy.deepcopy(oracle.CELLS)}
    data["subgraphs"]["outer"]["subgraphs"] = {"narrow": {"nodes": [{"id": 4, "node_type": "input"}]}}
    graph = graph_of(data)
    assert len(graph.subgraph("narrow").nodes) == 4
    assert len(graph.subgraph("outer").subgraph("narrow").nodes) == 1
    assert graph.subgraph("narrow") is graph.subgraph("narrow")
    assert graph_of(graph.subgraph("outer").to_dict()).subgraph("narrow").nodes.keys() == {4}
    with pytest.raises(ValueError, match="expected a subgraph out of narrow, outer, got 'x'"):
        graph.subgraph("x")


@pytest.mark.parametrize("length", [1, 2, 50])
def test_subgraph_recursion_raises(length):
    subgraphs = {f"s{n}": {"nodes": [{"id": 0, "subgraph": f"s{(n + 1) % length}"}]} for n in range(length)}
    graph = graph_of({"nodes": [{"id": 0, "subgraph": "s0"}], "subgraphs": subgraphs})
    expected = "got s0 -> " if length < 50 else "at most 32 levels"
    with pytest.raises(ValueError, match=expected):
        graph.subgraph("s0")
    assert graph.canonical_key() == graph_of(graph.to_dict()).canonical_key()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("nodes.1.attributes", {"operation": {}}, "node 1: expected operation once, got it as a field and under attri"),
        ("nodes.1.operations", {}, r"nodes\[1\]: expected fields out of id, .*, got 'operations'"),
        ("nodes.1.operation", None, r"nodes\[1\]: expected a value for operation, got null"),
        ("nodes.1", {"id": 1}, "node 1: expected a field node_type, got none"),
        ("edges.0.ports", "a", r"edges\[0\]: expected fields out of source, .*, got 'ports'"),
        ("graph", {"subgraphs": {}}, "graph: expected subgraphs next to nodes and edges, got them under graph"),
        ("subgraphs", [], r"graph: expected an object under subgraphs, got \[\]"),
        ("subgraphs.cell", 3, "subgraph cell: graph: expected an object, got 3"),
        ("subgraphs.cell.nodes.1.id", 0, "subgraph cell: node 0: expected an unused id, got one already taken"),
        ("subgraphs.cell.nodes.1.bias", "x", "subgraph cell: node 1: expected a float bias, got 'x'"),
        ("subgraphs.cell.edges.1.source", "x", r"subgraph cell: edges\[1\]: expected an int source, got 'x'"),
        ("subgraphs.cell.subgraphs", {"a": {"node": []}}, "subgraph cell: subgraph a: graph: expected fields out of"),
    ],
)
def test_from_dict_malformed_operation_graph_raises(path, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        graph_of(edited(path, value))
    assert "\n" not in str(caught.value)


def test_short_fields_need_an_operation_graph():
    data = {"nodes": [{"id": 0, "node_type": "hidden", "output_size": 3, "aggregation": "mean"}], "edges": []}
    with pytest.raises(ValueError, match=r"nodes\[0\]: expected fields out of id, .*, got 'aggregation'"):
        graph_of(data)
