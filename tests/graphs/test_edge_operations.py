"""Operations on edges as nodes."""

from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import Any

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.edge_operations import edge_operations_to_nodes
from gflownet.graphs.elements import Edge, Node

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


def chains(graph: ComputationGraph) -> Iterator[tuple[Edge, Node, Edge]]:
    """Yield every added node between its edges."""
    for node_id, node in graph.nodes.items():
        if node_id > 3:
            (into,), (out,) = graph.in_edges(node_id), graph.out_edges(node_id)
            yield into, node, out


@pytest.mark.parametrize("seed", range(20))
def test_edge_operations_become_nodes(seed):
    graph = ComputationGraph.from_dict(random_cell(Random(seed)))
    nodes = edge_operations_to_nodes(graph)
    assert nodes.validate() == []
    assert len(nodes.nodes) == 4 + len(graph.edges)
    assert len(nodes.edges) == 2 * len(graph.edges)
    paths = {(into.source, node.attributes["operation"]["name"], out.target) for into, node, out in chains(nodes)}
    assert paths == {(edge.source, edge.attributes["operation"]["name"], edge.target) for edge in graph.edges.values()}


def test_edge_operations_keep_ports_orders_and_disabled_edges():
    data = random_cell(Random(0))
    data["edges"][0] |= {"port": "key", "attributes": {"order": -4}, "edge_id": 17}
    data["edges"][1]["enabled"] = False
    data["edges"][2].pop("operation")
    graph = ComputationGraph.from_dict(data)
    nodes = edge_operations_to_nodes(graph)
    assert nodes.edges[17].attributes == {"port": "key", "order": -4}
    assert not nodes.edges[18].enabled
    assert (nodes.edges[19].source, nodes.edges[19].target) == (1, 2)
