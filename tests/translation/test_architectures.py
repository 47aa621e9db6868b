"""load: one line from a run's result to a module."""

import json
import pickle
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import TranslatedModel, load_graph, summary, to_pytorch_model, to_source
from gflownet.translation import load as load_model
from tests.translation.graphs import chain
from tests.translation.test_source import run_source


def load(*arguments: Any, **options: Any) -> TranslatedModel:
    model = load_model(*arguments, **options)
    assert isinstance(model, TranslatedModel)
    return model


def translated(projection: str) -> dict:
    """Return the part of node-link data that holds the settings with which a graph was scored."""
    return {"graph": {"translation": {"projection": projection}}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "top_architectures.json"
    entries = [
        {"rank": 0, "graph": chain(3, 3, 2) | translated("always"), "validation_score": 0.9},
        {"rank": 1, "graph": chain(3, 4, 2) | translated("auto"), "validation_score": 0.8},
    ]
    path.write_text(json.dumps(entries))
    return path


def test_an_architecture_is_loaded_with_the_projection_it_was_scored_with(path):
    best = load(path, weights=False)
    assert best(torch.zeros(5, 3)).shape == (5, 2)
    assert best.training
    assert "proj_0_1.weight" in best.state_dict()
    assert load(path, rank=1, weights=False).plan.nodes[1].output.channels == 4
    config = {"projection": "auto", "dtype": torch.float64}
    assert load(path, weights=False, config=config).bias_1.dtype == torch.float64
    assert "proj_0_1.weight" not in load(path, weights=False, config={"projection": "auto"}).state_dict()


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
        (
            {"device": "cuda"},
            "expected translation settings out of autocast, dtype, memory_format, padded, projection, got 'device'",
        ),
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


def test_entries_without_settings_still_load(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps([{"graph": chain(3, 3, 2)}]))
    assert "proj_0_1.weight" not in load(path, weights=False).state_dict()
    assert load(path, weights=False, config={"projection": "always"}).proj_0_1.weight.shape == (3, 3)


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "[" + "1" * 5000 + "]", '[{"graph": []}]', '[{"graph": {"nodes": 1}}]']
)
def test_files_of_another_form_are_refused_in_one_line(tmp_path, text):
    path = tmp_path / "top.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected") as caught:
        load(path, weights=False)
    assert len(str(caught.value).splitlines()) == 1


def test_an_unknown_rank_and_another_file_are_refused(path, tmp_path):
    with pytest.raises(ValueError, match=r"expected a rank out of \[0, 1\], got 7"):
        load(path, rank=7)
    other = tmp_path / "other.json"
    other.write_text('{"rank": 0}')
    with pytest.raises(ValueError, match="expected a JSON list"):
        load(other)


@pytest.fixture
def trained(path) -> TranslatedModel:
    """Save the weights of rank 0 and return its model."""
    entries = json.loads(path.read_text())
    model = load(path, weights=False)
    content = save(model.state_dict())
    (path.parent / "rank_0.safetensors").write_bytes(content)
    entries[0]["weights"] = {"file": "rank_0.safetensors", "sha256": sha256(content).hexdigest()}
    path.write_text(json.dumps(entries))
    return model.eval()


def test_load_returns_trained_weights(path, trained):
    inputs = torch.rand(4, 3)
    loaded = load(path)
    assert torch.equal(loaded(inputs), trained(inputs))
    assert not loaded.training
    assert not torch.equal(load(path, weights=False).eval()(inputs), trained(inputs))
    double = load(path, config={"dtype": torch.float64})
    assert torch.allclose(double(inputs.double()), trained(inputs).double(), atol=1e-6)


def replace_entry(path: Path, value: object) -> None:
    entries = json.loads(path.read_text())
    entries[0]["weights"] = value
    path.write_text(json.dumps(entries))


def replace_file(path: Path, content: bytes) -> None:
    (path.parent / "rank_0.safetensors").write_bytes(content)
    replace_entry(path, {"file": "rank_0.safetensors", "sha256": sha256(content).hexdigest()})


def flip_a_bit(path: Path) -> None:
    file = path.parent / "rank_0.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_bit, "rank_0.safetensors: expected the weights of rank 0, got a damaged or other file; weights=False"),
        (lambda path: (path.parent / "rank_0.safetensors").unlink(), "got none .No such file or directory.; weights="),
        (lambda path: replace_entry(path, None), "rank 0: expected an entry with weights, got one without; weights="),
        (lambda path: replace_entry(path, {"file": 1}), "rank 0: expected file and sha256 of weights, got"),
        (lambda path: replace_file(path, b"text"), "expected safetensors, got another format .*; weights=False"),
        (
            lambda path: replace_file(path, save({"bias_1": torch.zeros(7)})),
            r"expected weights bias_1 of shape \[\], got \[7\]; weights=False returns",
        ),
    ],
)
def test_load_refuses_unusable_weights(path, trained, damage, message):
    damage(path)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1
    assert load(path, weights=False)(torch.zeros(5, 3)).shape == (5, 2)


def test_load_refuses_settings_that_do_not_fit_the_weights(path, trained):
    with pytest.raises(ValueError, match=r"expected weights .*; weights=False"):
        load(path, config={"projection": "auto"})
