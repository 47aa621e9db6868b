"""Operations on edges as nodes, and back."""

from itertools import combinations
from random import Random
from typing import Any

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.edge_operations import edge_operations_to_nodes, node_operations_to_edges

OPERATIONS = (
    {"name": "conv2d", "features": 4},
    {"name": "conv2d", "features": 4, "kernel_size": 1},
    {"name": "max_pool2d", "kernel_size": 3, "stride": 1, "padding": "same"},
    {"name": "identity"},
)


def random_cell(rng: Random) -> dict[str, Any]:
    """A cell of NAS-Bench-201: four nodes, an operation or nothing on every edge, a path to the output."""
    nodes: list[dict[str, Any]] = [{"id": 0, "shape": [4, 8, 8]}]
    nodes += [{"id": place, "operation": {"name": "identity"}} for place in (1, 2)]
    nodes.append({"id": 3, "node_type": "output", "operation": {"name": "identity"}})
    edges = [{"source": s, "target": t, "operation": rng.choice(OPERATIONS)} for s, t in combinations(range(4), 2)]
    dropped = rng.choice([None, (0, 2), (0, 3), (1, 3), (1, 2)])
    return {"nodes": nodes, "edges": [edge for edge in edges if (edge["source"], edge["target"]) != dropped]}


@pytest.mark.parametrize("seed", range(20))
def test_edge_operations_round_trip(seed):
    graph = ComputationGraph.from_dict(random_cell(Random(seed)))
    nodes = edge_operations_to_nodes(graph)
    assert nodes.validate() == []
    assert len(nodes.nodes) == 4 + len(graph.edges)
    assert len(nodes.edges) == 2 * len(graph.edges)
    assert node_operations_to_edges(nodes).to_json() == graph.to_json()
    assert edge_operations_to_nodes(node_operations_to_edges(nodes)) == nodes


def test_edge_operations_keep_ports_orders_and_disabled_edges():
    data = random_cell(Random(0))
    data["edges"][0] |= {"port": "key", "attributes": {"order": -4}, "edge_id": 17}
    data["edges"][1]["enabled"] = False
    data["edges"][2].pop("operation")
    graph = ComputationGraph.from_dict(data)
    nodes = edge_operations_to_nodes(graph)
    assert nodes.edges[17].attributes == {"port": "key", "order": -4}
    assert node_operations_to_edges(nodes).to_json() == graph.to_json()


def test_parallel_operations_become_a_multigraph():
    nodes = [
        {"id": 0, "shape": [4, 8, 8]},
        {"id": 1, "operation": OPERATIONS[0]},
        {"id": 2, "operation": OPERATIONS[1]},
    ]
    nodes.append({"id": 3, "node_type": "output", "operation": {"name": "identity"}})
    edges = [{"source": source, "target": target} for source, target in ((0, 1), (0, 2), (1, 3), (2, 3))]
    graph = ComputationGraph.from_dict({"nodes": nodes, "edges": edges})
    on_edges = node_operations_to_edges(graph)
    assert [(edge.source, edge.target) for edge in on_edges.edges.values()] == [(0, 3), (0, 3)]
    assert on_edges.config["multigraph"] is True
    assert edge_operations_to_nodes(on_edges) == graph


@pytest.mark.parametrize(
    "change",
    [
        {"activation_function": "relu"},
        {"bias": 0.5, "edge_weight": True},
        {"aggregation": "mean"},
        {"node_type": "output"},
    ],
)
def test_nodes_with_more_than_an_operation_stay(change):
    nodes = [{"id": 0, "shape": [4, 8, 8]}, {"id": 1, "operation": OPERATIONS[0], **change}]
    nodes.append({"id": 2, "node_type": "output", "operation": {"name": "identity"}})
    graph = ComputationGraph.from_dict(
        {"nodes": nodes, "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}]}
    )
    assert node_operations_to_edges(graph).to_json() == graph.to_json()
