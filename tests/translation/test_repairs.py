"""repair: every code of validate(), random damage, and valid graphs left unchanged."""

import copy

import numpy as np
import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import repair, to_pytorch_model
from gflownet.translation.repairs import STRATEGIES
from tests.oracles.translation_families import FAMILIES, random_graph
from tests.translation.graphs import chain, mixed

NAN = float("nan")


def damaged(**changes):
    """A chain 4-3-2 whose hidden node or first edge has other fields."""
    data = chain(4, 3, 2)
    for key, value in changes.items():
        part = data["edges"][0] if key in ("weight", "enabled", "edge_attributes") else data["nodes"][1]
        part["attributes" if key == "edge_attributes" else key] = value
    return data


CASES = {
    "invalid_activation": (damaged(activation_function="reluu"), "activation_function 'reluu' -> 'relu'"),
    "invalid_aggregation": (damaged(attributes={"aggregation": "maxx"}), "aggregation 'maxx' -> 'max'"),
    "missing_output_size": (damaged(output_size=None), "output_size None -> 4"),
    "invalid_output_size": (damaged(output_size=-1), "output_size -1 -> 4"),
    "non_finite_bias": (damaged(bias=NAN), "bias nan -> 0.0"),
    "non_finite_weight": (damaged(weight=NAN), "weight nan -> 1.0"),
    "invalid_agg_param": (damaged(attributes={"aggregation": "attention", "temperature": -1}), "temperature removed"),
    "unknown_attribute": (damaged(attributes={"colour": "red"}), "colour removed"),
    "invalid_attribute": (damaged(attributes={"derivation_uuid": 3}), "derivation_uuid removed"),
    "unreachable_output": (damaged(enabled=False), "edge 0: enabled, to reach output 2"),
}


@pytest.mark.parametrize("code", CASES)
def test_repair_lists_each_change(code):
    data, message = CASES[code]
    graph = ComputationGraph.from_dict(data)
    before = graph.to_dict()
    assert code in {problem.code for problem in graph.validate()}
    repaired = repair(graph)
    assert repaired.graph.validate() == []
    assert len(repaired.changes) == 1
    assert message in repaired.changes[0].message
    assert str(graph.to_dict()) == str(before)  # as text, because nan is not nan
    to_pytorch_model(repaired.graph)(torch.zeros(1, 4))


def test_edges_that_no_value_can_save_are_removed():
    data = chain(4, 3, 2)
    for edge_id, (source, target) in enumerate([(1, 0), (0, 99), (0, 1)], start=10):
        data["edges"].append({"source": source, "target": target, "edge_id": edge_id})
    repaired = repair(ComputationGraph.from_dict(data))
    assert sorted(repaired.graph.edges) == [0, 1]
    assert [change.edge_id for change in repaired.changes] == [10, 11, 12]


def test_an_input_is_made_plain():
    data = chain(4, 3, 2)
    data["nodes"][0] |= {"activation_function": "relu", "bias": 2.0}
    repaired = repair(ComputationGraph.from_dict(data)).graph
    assert (repaired.nodes[0].activation_function, repaired.nodes[0].bias) == ("linear", 0.0)


def test_repair_disable_cuts_faulty_parts_and_keeps_outputs_fed():
    data = chain(4, 3, 2)
    data["nodes"].append({"id": 8, "node_type": "hidden", "output_size": 3, "bias": NAN})
    data["edges"] += [{"source": 0, "target": 8, "edge_id": 5}, {"source": 8, "target": 2, "edge_id": 6}]
    repaired = repair(ComputationGraph.from_dict(data), strategy="disable").graph
    assert [edge_id for edge_id, edge in repaired.edges.items() if not edge.enabled] == [5, 6]
    data["nodes"][1]["bias"] = NAN
    again = repair(ComputationGraph.from_dict(data), strategy="disable")
    assert again.graph.validate() == []
    assert any("added from input 0 to output 2" in change.message for change in again.changes)


def test_the_fewest_disabled_edges_are_enabled():
    data = chain(4, 3, 3, 2)
    data["nodes"].append({"id": 8, "node_type": "hidden", "output_size": 3})
    data["edges"] += [{"source": 0, "target": 8, "edge_id": 7}, {"source": 8, "target": 3, "edge_id": 8}]
    for edge in data["edges"]:
        edge["enabled"] = edge["edge_id"] in (0, 7)
    changes = repair(ComputationGraph.from_dict(data)).changes
    assert [change.edge_id for change in changes] == [8]


def test_a_valid_graph_stays_as_it_is():
    graph = ComputationGraph.from_dict(mixed())
    for strategy in STRATEGIES:
        repaired = repair(graph, strategy=strategy)
        assert repaired.changes == ()
        assert repaired.graph.to_dict() == graph.to_dict()


def test_repair_refuses_graphs_without_ends():
    with pytest.raises(ValueError, match="input and output nodes"):
        repair(ComputationGraph())
    with pytest.raises(ValueError, match="expected one of minimal, disable, got 'delete'"):
        repair(ComputationGraph.from_dict(chain(2, 2)), strategy="delete")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_damage_becomes_a_model(family, strategy):
    for seed in range(5):
        data = copy.deepcopy(random_graph(family, seed))
        rng = np.random.default_rng(seed)
        for node in data["nodes"]:
            if rng.random() < 0.3:
                node[str(rng.choice(["output_size", "activation_function", "bias"]))] = None
                node.update({"activation_function": "what", "bias": NAN} if rng.random() < 0.5 else {})
                node["bias"] = node.get("bias") if node.get("bias") is not None else float("inf")
                node["activation_function"] = node.get("activation_function") or "tahn"
        for edge in data["edges"]:
            if rng.random() < 0.3:
                edge["weight"] = NAN
            if rng.random() < 0.2:
                edge["target"] = int(rng.integers(0, 41))
        repaired = repair(ComputationGraph.from_dict(data), strategy=strategy)
        model = to_pytorch_model(repaired.graph)
        assert model(torch.zeros(2, model.plan.input_size)).shape == (2, model.plan.output_size)
