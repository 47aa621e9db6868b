"""summary against the model it describes."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import to_pytorch_model
from gflownet.translation.graph_summary import GraphSummary
from gflownet.translation.graph_summary import summary as summary_of
from tests.oracles.translation_families import FAMILIES, random_graph
from tests.translation.graphs import chain, mixed, recurrent


def summary(graph: ComputationGraph, **options: Any) -> GraphSummary:
    result = summary_of(graph, **options)
    assert isinstance(result, GraphSummary)
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_summary_parameters_and_shapes_match_the_model(family):
    for seed in range(12):
        graph = ComputationGraph.from_dict(random_graph(family, seed))
        projection = ("auto", "always")[seed % 2]
        told, model = summary(graph, projection=projection), to_pytorch_model(graph, {"projection": projection})
        assert told.num_parameters == sum(parameter.numel() for parameter in model.parameters())
        assert told.num_parameters == sum(node.num_parameters for node in told.nodes)
        assert (told.input_size, told.output_size) == (model.plan.input_size, model.plan.output_size)
        assert told.state_size == sum(slot.size for slot in model.plan.slots)


@pytest.mark.parametrize("family", ["simple", "recurrent", "unfed"])
def test_matrix_flops_are_those_that_torch_counts(family):
    batch = 4
    for seed in range(12):
        data = random_graph(family, seed)
        for node in data["nodes"]:
            if node.get("attributes", {}).get("aggregation") == "attention":
                node["attributes"] = {}  # torch does not count the product with a single query
        graph = ComputationGraph.from_dict(data)
        model = to_pytorch_model(graph)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(batch, model.plan.input_size))
        expected = batch * sum(node.matrix_flops for node in summary(graph).nodes if node.is_live)
        assert counter.get_total_flops() == expected, seed


def test_elementwise_flops_by_hand():
    told = summary(ComputationGraph.from_dict(chain(4, 3, 2)))
    hidden, output = told.nodes
    assert (hidden.matrix_flops, hidden.elementwise_flops) == (2 * 4 * 3, 3 + 3 + 3)  # weight, bias, relu
    assert (output.matrix_flops, output.elementwise_flops) == (2 * 3 * 2, 2 + 2)
    assert told.flops == 24 + 9 + 12 + 4


def test_dead_nodes_are_named_and_cost_no_flops():
    data = chain(4, 3, 2)
    data["nodes"].append({"id": 8, "node_type": "hidden", "output_size": 3})
    data["edges"].append({"source": 0, "target": 8, "edge_id": 9})
    told = summary(ComputationGraph.from_dict(data))
    assert told.dead_node_ids == (8,)
    assert told.flops == summary(ComputationGraph.from_dict(chain(4, 3, 2))).flops
    assert "dead" in str(told)


def test_it_prints_one_line_per_node_and_a_total():
    told = summary(ComputationGraph.from_dict(mixed()))
    lines = str(told).splitlines()
    assert len(lines) == len(told.nodes) + 2
    assert "multi_head_attention -> silu" in str(told)
    assert lines[-1].startswith("total")
    assert lines[-1].endswith(f"{told.flops:,}")


def test_an_invalid_graph_and_an_unknown_projection_are_refused():
    with pytest.raises(ValueError, match="expected one of auto"):
        summary(ComputationGraph.from_dict(recurrent()), projection="some")
    data = chain(2, 2)
    data["nodes"][1]["bias"] = float("inf")
    with pytest.raises(ValueError, match="finite bias"):
        summary(ComputationGraph.from_dict(data))


def test_it_imports_no_torch():
    code = "import sys; from gflownet.translation import summary; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
