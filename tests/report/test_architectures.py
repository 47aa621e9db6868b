"""Report of the best architectures: files, rows, weights and failing test scores."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import gflownet
from gflownet.evaluation.final import TopArchitecture
from gflownet.evaluation.statistics import simultaneous_intervals
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus
from gflownet.files import sealed
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.architectures import TOP_NAME, complaints, with_translation, write_top_architectures
from gflownet.report.results import Finalist
from gflownet.translation import summary, to_pytorch_model, to_source
from tests.evaluation.candidates import StubTask, classifier_graph
from tests.translation.test_source import run_source

GRAPHS = [classifier_graph(*[(4, "relu")] * num) for num in range(3)]


def architecture(graph: ComputationGraph, **fields: Any) -> TopArchitecture:
    """Return the result of a graph whose search score is 0.9."""
    record = EvaluationRecord(
        graph.canonical_hash(),
        graph.canonical_key(),
        json.dumps(graph.to_dict()),
        score=0.9,
        status=EvaluationStatus.OK,
        seconds=0.1,
        step=1,
    )
    return TopArchitecture(record, **fields)


def report(folder: Path, top: Sequence[TopArchitecture], **options: Any) -> tuple[list[Finalist], list[Any], list[str]]:
    task = StubTask({})
    for name, value in options.items():
        setattr(task.config.evaluation, name, value)
    finalists = write_top_architectures(folder, top, task=task, from_dict=ComputationGraph.from_dict)
    entries = json.loads((folder / TOP_NAME).read_text())
    return list(finalists), entries, list(complaints(finalists))


def test_write_top_architectures_of_search(tmp_path):
    rows, entries, lines = report(tmp_path, [architecture(graph, tests=(0.25,)) for graph in GRAPHS])
    assert [(row.rank, row.score, row.test_score, row.final) for row in rows] == [
        (k, 0.9, 0.25, None) for k in range(3)
    ]
    assert [entry["test_score"] for entry in entries] == [0.25] * 3
    assert not any("final" in entry or "weights" in entry for entry in entries)
    assert [row.picture for row in rows] == [f"rank_{rank}.svg" for rank in range(3)]
    assert lines == []


def test_write_top_architectures_of_final_stage(tmp_path):
    samples = [(0.8, 0.9, 0.7), (0.7, 0.9, 0.75)]
    top = [
        architecture(graph, scores=scores, tests=(0.5, None, 0.75))
        for graph, scores in zip(GRAPHS[:2], samples, strict=True)
    ]
    failed = architecture(GRAPHS[2], scores=(0.8, 0.05), errors=("RuntimeError: no",), tests=(None, None))
    rows, entries, lines = report(tmp_path, [*top, failed])
    intervals = simultaneous_intervals(samples)
    sides = [row.final for row in rows if row.final is not None]
    assert [side.mean for side in sides] == pytest.approx([0.8, 0.7833333, 0.425])
    ends = [(side.low, side.high) for side in sides]
    assert ends[:2] == [(each.low, min(each.high, 1.0)) for each in intervals]
    assert math.isnan(ends[2][0])
    assert [row.test_score for row in rows] == [0.625, 0.625, None]
    assert entries[0]["validation_score"] == 0.9
    assert entries[1]["final"] == {
        "mean": pytest.approx(0.7833333),
        "posterior_mean": None,
        "interval": [intervals[1].low, min(intervals[1].high, 1.0)],
        "scores": [0.7, 0.9, 0.75],
        "test_scores": [0.5, None, 0.75],
        "num_choice": 0,
        "errors": [],
    }
    assert entries[2]["final"]["interval"] is None
    assert lines == ["rank 2: 1 of 2 trainings on new seeds failed: RuntimeError: no"]


def test_write_top_architectures_saves_weights(tmp_path):
    models = [to_pytorch_model(graph) for graph in GRAPHS[:2]]
    top = [architecture(graph, weights=model.state_dict()) for graph, model in zip(GRAPHS[:2], models, strict=True)]
    _, entries, _ = report(tmp_path, [*top, architecture(GRAPHS[2])], projection="auto")
    inputs = torch.rand(3, 64)
    for rank, model in enumerate(models):
        loaded = gflownet.load(tmp_path / TOP_NAME, rank)
        assert torch.equal(loaded(inputs), model.eval()(inputs))
        assert not loaded.training
    assert "weights" not in entries[2]
    with pytest.raises(ValueError, match="rank 2: expected an entry with weights, got one without; weights=False"):
        gflownet.load(tmp_path / TOP_NAME, 2)


def test_write_top_architectures_saves_tied_and_transposed_weights(tmp_path):
    weight = torch.rand(2, 3)
    tied = {"embedding": weight, "logits": weight, "transposed": weight.T}
    _, (entry,), _ = report(tmp_path, [architecture(GRAPHS[0], weights=tied)])
    tensors = load_file(tmp_path / entry["weights"]["file"])
    assert {name: value.tolist() for name, value in tensors.items()} == {k: v.tolist() for k, v in tied.items()}


def build(choices: dict[str, Any]) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.LazyLinear(choices["width"]), torch.nn.ReLU(), torch.nn.LazyLinear(2))


class ChoicesStub(StubTask):
    def description(self, candidate: Assignment) -> dict[str, Any]:
        return {"module": {"build": f"{__name__}:build"}}


def choices_of(values: dict[str, Any], **fields: Any) -> TopArchitecture:
    graph = json.dumps(Assignment.of(values).to_dict())
    return TopArchitecture(dataclasses.replace(architecture(GRAPHS[0]).record, graph=graph), **fields)


def write_choices(folder: Path, settings: Sequence[dict[str, Any]], **fields: Any) -> list[Finalist]:
    top = [choices_of(values, **fields) for values in settings]
    return list(write_top_architectures(folder, top, task=ChoicesStub({}), from_dict=Assignment.from_dict))


def test_choices_in_which_ranks_differ_are_first(tmp_path):
    settings = [{"act": "relu", "depth": 3, "rate": 1e-5, "width": 4}, {"act": "relu", "depth": 3, "width": 8}]
    rows = write_choices(tmp_path, settings)
    assert rows[0].shown == "{rate: 1.0e-05, width: 4, act: relu, depth: 3}"
    assert rows[1].shown == "{width: 8, act: relu, depth: 3}"
    entries = json.loads((tmp_path / TOP_NAME).read_text())
    assert [yaml.safe_load(entry["choices"]) for entry in entries] == settings


def test_load_builds_the_module_of_choices(tmp_path):
    model = build({"width": 4})
    inputs = torch.rand(3, 5)
    expected = model(inputs)
    write_choices(tmp_path, [{"width": 4}], weights=model.state_dict())
    for function in (None, build):
        loaded = gflownet.load(tmp_path, build=function, trust=function is None)
        assert torch.equal(loaded(inputs), expected)
        assert not loaded.training
    assert gflownet.load(tmp_path, weights=False, trust=True).training
    with pytest.raises(ValueError, match=r"rank 0: expected weights 0.weight of shape \[5, 5\], got \[4, 5\]"):
        gflownet.load(tmp_path, build=lambda choices: torch.nn.Sequential(torch.nn.Linear(5, 5)))
    with pytest.raises(ValueError, match="config: expected none for choices, got"):
        gflownet.load(tmp_path, config={"projection": "auto"}, trust=True)


def test_load_builds_the_module_of_a_description(tmp_path):
    write_choices(tmp_path, [{"depth": 1}])
    (entry,) = json.loads((tmp_path / TOP_NAME).read_text())
    entry |= {"sizes": {"width": 4}, "module": {"build": f"{__name__}:build", "of": "sizes"}}
    (tmp_path / TOP_NAME).write_text(json.dumps([sealed(entry)]))
    assert str(gflownet.load(tmp_path, weights=False, trust=True)) == str(build({"width": 4}))
    entry["module"]["of"] = "no_such_name"
    (tmp_path / TOP_NAME).write_text(json.dumps([sealed(entry)]))
    with pytest.raises(ValueError, match=r"module: expected .*, got .*no_such_name"):
        gflownet.load(tmp_path, weights=False, trust=True)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            {"build": "no_such_module:f"},
            "importable module, got 'no_such_module' .*; add its folder to PYTHONPATH or pass",
        ),
        ({"build": 3}, 'module: expected {"build": "module:function"}, got'),
        (None, "got an object of another environment; if your own code builds its module, pass build=FUNCTION"),
    ],
)
def test_load_of_choices_without_a_function_raises(tmp_path, module, message):
    write_choices(tmp_path, [{"width": 4}])
    (entry,) = json.loads((tmp_path / TOP_NAME).read_text())
    if module is None:
        del entry["module"]
    (tmp_path / TOP_NAME).write_text(json.dumps([sealed(entry | ({"module": module} if module else {}))]))
    with pytest.raises(ValueError, match=message):
        gflownet.load(tmp_path, weights=False, trust=True)


def test_write_top_architectures_of_assignments(tmp_path):
    """A candidate that stands for a network is drawn and loaded as that; another one is written in words."""

    class CellTask(StubTask):
        def network(self, candidate: Assignment) -> ComputationGraph | None:
            return GRAPHS[int(candidate["width"])] if "width" in candidate.names else None

    top = []
    for values in ({"width": 2}, {"depth": 3, "norm": True}, {"words": "long " * 30}):
        candidate = Assignment.of(values)
        record = dataclasses.replace(architecture(GRAPHS[0]).record, graph=json.dumps(candidate.to_dict()))
        top.append(TopArchitecture(record))
    rows = write_top_architectures(tmp_path, top, task=CellTask({}), from_dict=Assignment.from_dict)
    assert [row.shown for row in rows[:2]] == ["", "{depth: 3, norm: true}"]
    assert rows[2].shown.startswith("{words: 'long long")
    assert [row.picture for row in rows] == ["rank_0.svg", "", ""]
    entries = json.loads((tmp_path / TOP_NAME).read_text())
    assert yaml.safe_load(entries[2]["choices"]) == {"words": "long " * 30}
    assert ["network" in entry for entry in entries] == [True, False, False]
    assert Assignment.from_dict(entries[0]["graph"]) == Assignment.of({"width": 2})
    assert gflownet.load_graph(tmp_path / TOP_NAME).canonical_key() == GRAPHS[2].canonical_key()


def test_write_top_architectures_without_test_data(tmp_path):
    rows, entries, lines = report(tmp_path, [architecture(graph) for graph in GRAPHS])
    assert [row.test_score for row in rows] == [entry["test_score"] for entry in entries] == [None] * 3
    assert lines == []


def test_first_missing_test_score_is_reported(tmp_path):
    errors = (None, "RuntimeError: no", "expected a finite score, got nan")
    rows, entries, lines = report(
        tmp_path, [architecture(g, test_error=e) for g, e in zip(GRAPHS, errors, strict=True)]
    )
    assert [row.test_score for row in rows] == [entry["test_score"] for entry in entries] == [None] * 3
    assert lines == ["no test score of rank 1: RuntimeError: no (and of 1 more)"]


@pytest.mark.parametrize("projection", ["always", "auto"])
def test_reported_graph_keeps_translation_settings(tmp_path, projection):
    _, entries, _ = report(tmp_path, [architecture(graph) for graph in GRAPHS], projection=projection)
    scored = classifier_graph((4, "relu"), (4, "relu"))
    graph = ComputationGraph.from_dict(entries[2]["graph"])
    expected = to_pytorch_model(scored, {"projection": projection}).state_dict()
    assert ("proj_2_3.weight" in expected) == (projection == "always")
    path = tmp_path / TOP_NAME
    for model in (to_pytorch_model(graph), gflownet.load(path, 2, weights=False), run_source(to_source(graph))):
        assert model.state_dict().keys() == expected.keys()
    assert summary(graph).num_parameters == sum(value.numel() for value in expected.values())
    # The stored, reported and loaded graphs are equal.
    assert graph == scored == gflownet.load_graph(path, 2)
    assert graph.canonical_hash() == scored.canonical_hash()


def test_with_translation_leaves_assignments_unchanged():
    assignment = Assignment(("a",), (1,)).to_dict()
    assert with_translation(assignment, StubTask({})) == assignment
