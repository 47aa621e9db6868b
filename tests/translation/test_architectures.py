"""load: one line from a run's result to a module."""

import json
import pickle
import re

import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import (
    load,
    load_graph,
    repair,
    summary,
    to_pytorch_model,
    to_source,
)
from tests.translation.graphs import chain
from tests.translation.test_source import run_source


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "top_architectures.json"
    entries = [
        {"rank": 0, "graph": chain(3, 3, 2), "projection": "always", "validation_score": 0.9},
        {"rank": 1, "graph": chain(3, 4, 2), "projection": "auto", "validation_score": 0.8},
    ]
    path.write_text(json.dumps(entries))
    return path


def test_an_architecture_is_loaded_with_the_projection_it_was_scored_with(path):
    best = load(path)
    assert best(torch.zeros(5, 3)).shape == (5, 2)
    assert "proj_0_1.weight" in best.state_dict()
    assert load(path, rank=1).plan.sizes[1] == 4
    assert load(path, config={"projection": "auto", "dtype": torch.float64}).bias_1.dtype == torch.float64
    assert "proj_0_1.weight" not in load(path, config={"projection": "auto"}).state_dict()


def test_settings_of_the_graph_are_defaults_that_arguments_override(path):
    graph = load_graph(path).with_translation({"projection": "always", "dtype": "float64"})
    assert graph == load_graph(path)
    for copied in (graph, graph.copy(), pickle.loads(pickle.dumps(graph)), ComputationGraph.from_json(graph.to_json())):
        assert summary(copied).num_parameters == 19
        assert to_pytorch_model(copied).proj_0_1.weight.dtype == torch.float64
    assert summary(graph, projection="auto").num_parameters == 10
    model = to_pytorch_model(graph, {"projection": "auto", "dtype": torch.float32})
    assert "proj_0_1.weight" not in model.state_dict()
    assert model.bias_1.dtype == torch.float32
    assert "proj_0_1" in to_source(graph)
    assert "proj_0_1" not in to_source(graph, projection="auto")
    torch.manual_seed(1)
    expected = to_pytorch_model(graph).state_dict()
    torch.manual_seed(1)
    state = run_source(to_source(graph)).state_dict()
    assert all(torch.allclose(state[name], expected[name]) for name in expected)
    assert {value.dtype for value in state.values()} == {torch.float64}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"projection": "sometimes"}, "expected one of auto, always, never for projection, got 'sometimes'"),
        ({"dtype": "int8"}, "expected one of float32, .* for dtype, got 'int8'"),
        ({"device": "cuda"}, "expected translation settings out of dtype, projection, got 'device'"),
        (["always"], "expected an object under translation, got"),
        ({"projection": "never"}, "edge 1: expected equal widths with projection=never, got 3 from node 1 and 2"),
    ],
)
def test_invalid_settings_are_reported_and_refused(settings, message):
    graph = ComputationGraph.from_dict({**chain(3, 3, 2), "graph": {"translation": settings}})
    (problem,) = graph.validate()
    assert re.search(message, problem.message)
    for refuse in (to_pytorch_model, summary, to_source):
        with pytest.raises(ValueError, match=message):
            refuse(graph)
    repaired = repair(graph)
    assert repaired.graph.validate() == []
    assert len(repaired.changes) == 1
    assert repaired.changes[0].message.startswith("graph: ")


def test_entries_without_settings_still_load(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps([{"graph": chain(3, 3, 2)}]))
    assert "proj_0_1.weight" not in load(path).state_dict()
    assert load(path, config={"projection": "always"}).proj_0_1.weight.shape == (3, 3)


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "[" + "1" * 5000 + "]", '[{"graph": []}]', '[{"graph": {"nodes": 1}}]']
)
def test_files_of_another_form_are_refused_in_one_line(tmp_path, text):
    path = tmp_path / "top.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected") as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_an_unknown_rank_and_another_file_are_refused(path, tmp_path):
    with pytest.raises(ValueError, match=r"expected a rank out of \[0, 1\], got 7"):
        load(path, rank=7)
    other = tmp_path / "other.json"
    other.write_text('{"rank": 0}')
    with pytest.raises(ValueError, match="expected a JSON list"):
        load(other)
