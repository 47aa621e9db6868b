"""Labelled directed acyclic graphs: number of states, options and parents by name."""

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.graph_building import LabelledDAGEnv, parents_of
from gflownet.graphs.canonical import ColouredGraph


@pytest.mark.parametrize(
    ("num_nodes", "num_graphs"), [(1, 1), (2, 3), (3, 25), (4, 543), pytest.param(5, 29_281, marks=pytest.mark.slow)]
)
def test_labelled_dag_count_and_trivial_automorphisms(num_nodes, num_graphs):
    """Robinson 1973, Counting labeled acyclic digraphs."""
    graph = enumerate_states(LabelledDAGEnv(num_nodes))
    assert len(graph) == len(graph.terminal) == num_graphs
    assert bool((graph.num_automorphisms == 1).all())
    assert torch.equal(graph.num_backward, graph.level)


def test_parents_of_uses_node_names():
    graph = ColouredGraph(("2", "0", "1"), {(0, 1): "edge", (2, 1): "edge", (0, 2): "edge"})
    assert parents_of(graph) == [[1, 2], [2], []]
    assert parents_of(ColouredGraph.from_dict(graph.to_dict())) == [[1, 2], [2], []]
