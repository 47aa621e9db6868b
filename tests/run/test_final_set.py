"""The set of networks of a run: members, figures, resume, and what test data may change."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

import gflownet
from gflownet.config import load_config, with_task_options
from gflownet.errors import counted
from gflownet.evaluation.candidates.sets import WeightFolder, figures_of, greedy, predicted
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.config import FinalConfig
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.final import FinalStage, Sizes, TopArchitecture
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.evaluation.store.rows import EvaluationRecord, EvaluationStatus
from gflownet.evaluation.tasks import TASKS
from gflownet.files import write_whole
from gflownet.report.page import page_of, read_run
from gflownet.report.results import Results
from gflownet.report.verdict import summary_figures
from gflownet.run.final_set import kept_weights, with_set
from gflownet.train import main
from gflownet.translation import to_onnx
from tests.evaluation.candidates import StubTask, dispatcher_of, record
from tests.evaluation.stub_rows import open_store
from tests.tiny_run import TINY_RUN, metric_rows

KINDS = ("digits", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("images", "table")))


def content_of(folder: Path) -> Any:
    return json.loads((folder / "set.json").read_text())


def rows_of(folder: Path) -> list[EvaluationRecord]:
    with StoreOverview(str(folder / "evaluations.sqlite")) as overview:
        return overview.records()


def weights_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "weights").iterdir()}


def task_of(folder: Path, *options: str) -> TensorTask:
    config = load_config(str(folder / "config.yaml"), options)
    task_class = TASKS.load(config.task)
    return task_class(with_task_options(config, task_class.Config))


@pytest.mark.parametrize("kind", KINDS)
def test_set_of_a_run_is_the_mean_of_its_members(finished_runs, kind: str):
    folder = finished_runs(kind)
    content, model, task = content_of(folder), gflownet.load(folder, set=True), task_of(folder)
    split = task.test_split
    with torch.no_grad():
        inputs = torch.cat([inputs for inputs, _ in split.in_order()])
        each = [gflownet.load(folder / "set.json", rank)(inputs) for rank in range(len(content["members"]))]
        outputs = model(inputs)
    shares = [member["weight"] for member in content["members"]]
    assert sum(shares) == pytest.approx(1.0)
    members = zip(shares, each, strict=True)
    mean = torch.stack([share * predicted(values, split.targets) for share, values in members]).sum(0)
    torch.testing.assert_close(predicted(outputs, split.targets), mean, atol=1e-6, rtol=1e-5)
    (row, *_) = content["table"]
    assert row["num_parameters"] == sum(member["num_parameters"] for member in content["members"])
    figures = figures_of(mean, split.targets)
    assert {name: row[name] for name in figures} == pytest.approx(figures, abs=1e-6)
    assert {each["key"] for each in content["table"]} >= {"set", "best_alone", "best_seeds", "best_single"}


@pytest.mark.slow
def test_scores_of_a_function_give_no_set(finished_runs):
    folder = finished_runs("choices")
    assert not (folder / "set.json").exists()
    assert not (folder / "weights").exists()


BUILT = """
from torch import nn

def network(choices):
    width = 4 if choices["model"] == "svm" else 9
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
"""


@pytest.mark.slow
def test_set_of_modules_of_a_user(tmp_path: Path, monkeypatch):
    (tmp_path / "built_networks.py").write_text(BUILT)
    monkeypatch.syspath_prepend(tmp_path)
    folder, options = tmp_path / "run", ["task_options.score=''", "task_options.test=''"]
    options += ["task_options.build=built_networks:network", "evaluation.batch_size=64", f"log_dir={folder}"]
    assert main(["--config", "choices", *TINY_RUN, *options]) == 0
    content, task = content_of(folder), task_of(folder)
    model = gflownet.load(folder, set=True)
    inputs = torch.cat([inputs for inputs, _ in task.test_split.in_order()])
    figures = figures_of(predicted(model(inputs).detach(), task.test_split.targets), task.test_split.targets)
    assert {name: content["table"][0][name] for name in figures} == pytest.approx(figures, abs=1e-6)


@pytest.mark.slow
def test_set_of_a_table_predicts_rows(finished_runs):
    folder = finished_runs("table")
    model, first = gflownet.load(folder, set=True), gflownet.load(folder / "set.json", 0)
    names = [column.name for column in model.columns.columns]
    rows = [dict.fromkeys(names, "") for _ in range(3)]
    assert len(model.predict(rows)) == len(first.predict(rows)) == 3


@pytest.mark.parametrize("kind", KINDS[:2])
def test_kept_weights_predict_as_after_the_training(finished_runs, kind: str):
    folder = finished_runs(kind)
    task, weights = task_of(folder), WeightFolder(folder / "weights", 20, write=write_whole)
    rows = [row for row in rows_of(folder) if row.status is EvaluationStatus.OK]
    new = [row for row in rows if row.seed not in (0, RANDOM_REPEAT)]
    kept = [row for row in rows if weights.path(row).exists()]
    assert (
        weights_of(folder).keys() == {weights.path(row).name for row in kept} >= {weights.path(row).name for row in new}
    )
    assert len([row for row in kept if not row.seed]) == min(20, len([row for row in rows if not row.seed]))
    for row in kept:
        graph = gflownet.ComputationGraph.from_dict(json.loads(row.graph))
        outputs = task.outputs(graph, load(weights.path(row).read_bytes()), split="validation")
        figures = figures_of(predicted(outputs, task.validation.targets), task.validation.targets)
        assert figures["accuracy"] == pytest.approx(row.metrics["validation_accuracy"])


def chosen_again(
    folder: Path, target: Path, *options: str, others: Sequence[TopArchitecture] = ()
) -> tuple[Any, str, dict[str, float]]:
    """Return set.json, the line and the summary of the choice of a finished run, written to another folder."""
    config = load_config(str(folder / "config.yaml"), options)
    task = task_of(folder, *options)
    (row, *_) = rows = rows_of(folder)
    best = json.loads((folder / "top_architectures.json").read_text())[0]["final"]["scores"]
    top = next(each for each in rows if 0 < each.seed < RANDOM_REPEAT and each.score in best)
    parts: Any = SimpleNamespace(config=config, task=task, run_id=row.run, step=1)
    parts.env = SimpleNamespace(terminal_type=gflownet.ComputationGraph)
    parts.build_evaluator = lambda store, executor, **_: dispatcher_of(task, store, executor)
    summary: dict[str, Any] = {}
    run: Any = SimpleNamespace(folder=SimpleNamespace(path=target, write=write_whole), is_stopped=False)
    run.record = lambda set: summary.update(summary_figures(Results(set=set)))
    weights = WeightFolder(folder / "weights", 20, write=write_whole)
    evaluator: Any = SimpleNamespace(weights=weights, executor=InlineExecutor(task))
    tops = (TopArchitecture(top, scores=best), *others)
    final = FinalStage(tops, num_seeds=2, fidelity=1, sizes=Sizes("parameters", (1e9,)) if others else None)
    with open_store(folder / "evaluations.sqlite") as run.store:
        final = with_set(parts, evaluator, run, final)
    (line,) = final.notes
    return content_of(target) if (target / "set.json").exists() else None, line, summary


def members_of(content: Any) -> list[Any]:
    return [(member["weights"]["sha256"], member["weight"]) for member in content["members"]]


def test_test_data_do_not_choose_the_set(finished_runs, tmp_path: Path, monkeypatch):
    """Reversed test outputs change the figures of the set and not its members; validation outputs change these."""
    folder, outputs = finished_runs("digits"), TensorTask.outputs
    before, line, summary = chosen_again(folder, tmp_path / "usual")
    assert members_of(before) == members_of(content_of(folder))
    assert before["table"] == content_of(folder)["table"]
    first = before["table"][0]
    size = f"{counted(len(before['members']), 'distinct network')}, {first['num_parameters']:,} parameters"
    assert line.startswith(f"a set of 5 ({size}): accuracy {first['accuracy']:.4g}, log loss {first['log_loss']:.4g}; ")
    assert summary["set/set/accuracy"] == first["accuracy"]
    assert summary["set/best_alone/calibration_error"] == before["table"][1]["calibration_error"]

    def reverse(name: str) -> None:
        def planted(self: TensorTask, graph: Any, weights: Any, *, split: str) -> torch.Tensor:
            values = outputs(self, graph, weights, split=split)
            return values.flip(0) if split == name else values

        monkeypatch.setattr(TensorTask, "outputs", planted)

    reverse("test")
    after, *_ = chosen_again(folder, tmp_path / "test")
    assert members_of(after) == members_of(before)
    assert after["table"][0]["accuracy"] < first["accuracy"]
    reverse("validation")
    other, *_ = chosen_again(folder, tmp_path / "validation")
    assert members_of(other) != members_of(before)


def test_random_set_is_chosen_by_the_same_rule(finished_runs, tmp_path: Path):
    """The set of random architectures equals that of a run which has found these."""
    folder = finished_runs("digits")
    content, *_ = chosen_again(folder, tmp_path / "set")
    task, weights = task_of(folder), WeightFolder(folder / "weights", 20, write=write_whole)
    rows = [row for row in rows_of(folder) if row.seed >= RANDOM_REPEAT and weights.path(row).exists()]
    rows.sort(key=lambda row: row.identity)

    def predictions(split: str) -> list[torch.Tensor]:
        graphs = [gflownet.ComputationGraph.from_dict(json.loads(row.graph)) for row in rows]
        loaded = [load(weights.path(row).read_bytes()) for row in rows]
        outputs = [task.outputs(graph, each, split=split) for graph, each in zip(graphs, loaded, strict=True)]
        return [predicted(each, getattr(task.splits_in_use, split).targets) for each in outputs]

    chosen = greedy(predictions("validation"), task.validation.targets, size=5)
    mean = torch.stack([predictions("test")[place] for place in chosen]).mean(0)
    (row,) = [each for each in content["table"] if each["key"] == "random_set"]
    assert {name: row[name] for name in ("accuracy", "log_loss")} == pytest.approx(
        {name: figures_of(mean, task.test_split.targets)[name] for name in ("accuracy", "log_loss")}
    )


def test_set_lines_name_the_metric_of_the_run(finished_runs, tmp_path: Path):
    folder = finished_runs("digits")
    content, line, _ = chosen_again(folder, tmp_path / "small", "final.set=3", "evaluation.training.metric=f1")
    assert content["table"][0]["f1"] != content["table"][0]["accuracy"]
    assert f": f1 {content['table'][0]['f1']:.4g}, accuracy {content['table'][0]['accuracy']:.4g}; " in line
    assert content["table"][0]["name"].startswith("a set of 3")


def test_best_alone_has_new_seeds(finished_runs, tmp_path: Path):
    """A finalist without time for a training has the score of the search, which is too high."""
    folder = finished_runs("digits")
    lucky = TopArchitecture(replace(rows_of(folder)[0], key="another", score=1.0))
    content, *_ = chosen_again(folder, tmp_path, others=[lucky])
    assert [each for each in content["table"] if each["key"] == "best_alone"] == [
        each for each in content_of(folder)["table"] if each["key"] == "best_alone"
    ]


def test_networks_without_finite_outputs_are_not_in_the_set(finished_runs, tmp_path: Path, monkeypatch):
    outputs, is_finite = TensorTask.outputs, dict[float, bool]()

    def planted(self: TensorTask, graph: Any, weights: Any, *, split: str) -> torch.Tensor:
        key = float(sum(value.double().sum() for value in weights.values()))
        values = outputs(self, graph, weights, split=split)
        return values if is_finite.setdefault(key, len(is_finite) % 2 == 1) else values * torch.nan

    monkeypatch.setattr(TensorTask, "outputs", planted)
    content, *_ = chosen_again(finished_runs("digits"), tmp_path)
    assert len(is_finite) > 2
    assert math.isfinite(content["table"][0]["log_loss"])


def test_kept_weights_are_the_best_within_the_limits(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("gflownet.run.final_set._NUM_KEPT", 2)
    task: Any = type("Task", (StubTask,), {"max_fidelity": 4, "outputs": None})({})
    task.limits = {"cost": 5.0}
    config = SimpleNamespace(final=FinalConfig(set=3))
    parts: Any = SimpleNamespace(config=config, task=task, plan=SimpleNamespace(num_final=1))
    run: Any = SimpleNamespace(folder=SimpleNamespace(path=tmp_path, write=write_whole, resumed=False))
    weights = kept_weights(parts, run)
    assert weights is not None
    scores = {"a": 0.9, "b": 0.8, "worse": 0.4}
    rows = [record(key, score=score, metrics={"cost": 1.0}) for key, score in scores.items()]
    rows.append(record("limited", score=1.0, metrics={"cost": 9.0}))
    for row in rows:
        weights.add(row, b"weights")
    assert [row.key for row in rows if weights.path(row).exists()] == ["a", "b"]


def test_failed_outputs_leave_a_line(finished_runs, tmp_path: Path, monkeypatch):
    def fails(self: TensorTask, graph: Any, weights: Any, *, split: str) -> torch.Tensor:
        raise RuntimeError("no outputs")

    monkeypatch.setattr(TensorTask, "outputs", fails)
    _, line, summary = chosen_again(finished_runs("digits"), tmp_path)
    assert line == "no set of networks: no outputs of modules that this run has trained"
    assert summary == {}


def test_task_without_models_has_a_line():
    task, options = StubTask({}), FinalConfig()
    parts: Any = SimpleNamespace(config=SimpleNamespace(final=options, task="mine:Task"), task=task)
    parts.plan = SimpleNamespace(num_final=1)
    run: Any = SimpleNamespace(is_stopped=False)
    evaluator: Any = SimpleNamespace(weights=kept_weights(parts, run))
    final = FinalStage((), num_seeds=1, fidelity=None)
    (line,) = with_set(parts, evaluator, run, final).notes
    assert line == "no set of networks: task=mine:Task gives no trained modules"
    options.set = 0
    assert with_set(parts, evaluator, run, final) is final


@pytest.mark.slow
def test_resume_gives_the_same_set(copied_run, finished_runs):
    folder = copied_run("digits")
    (folder / "set.json").unlink()
    before = weights_of(folder)
    (folder / "weights" / "mine.txt").write_text("of the user")
    assert main([f"log_dir={folder}", "resume=true"]) == 0
    assert content_of(folder) == content_of(finished_runs("digits"))
    assert weights_of(folder) == before | {"mine.txt": b"of the user"}


@pytest.mark.slow
def test_run_without_a_set_has_the_same_scores(finished_runs, tmp_path: Path):
    folder = tmp_path / "run"
    assert main(["--config", "digits", *TINY_RUN, f"log_dir={folder}", "final.set=0"]) == 0
    assert metric_rows(folder) == metric_rows(finished_runs("digits"))
    scores = {(row.key, row.seed, row.fidelity): (row.score, row.curve) for row in rows_of(finished_runs("digits"))}
    assert {(row.key, row.seed, row.fidelity): (row.score, row.curve) for row in rows_of(folder)} == scores
    assert {name.split("-")[1] for name in weights_of(folder)} == {"1", str(RANDOM_REPEAT + 1)}
    assert not (folder / "set.json").exists()


def test_page_shows_the_set(finished_runs):
    folder = finished_runs("digits")
    text = page_of(read_run(folder))
    assert 'id="set-reliability"' in text
    for row in content_of(folder)["table"]:
        assert f"{row['name'].replace(chr(39), '&#39;')}" in text
    assert "set=True" in text


def test_load_refuses_a_damaged_set(copied_run):
    folder = copied_run("digits")
    content = content_of(folder)
    (folder / "set.json").write_text(json.dumps(content | {"has_classes": False}))
    with pytest.raises(ValueError, match=r"set.json: expected the set of networks of a run, got something else"):
        gflownet.load(folder, set=True)
    with pytest.raises(ValueError, match=r"architectures.json: expected the set of networks of a run, got something"):
        gflownet.load(folder / "top_architectures.json", set=True)
    (folder / "set.json").unlink()
    with pytest.raises(ValueError, match=r"set.json: expected the file of a run, got none"):
        gflownet.load(folder, set=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's exporter warns about itself
def test_onnx_file_of_a_set(finished_runs, tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model: Any = gflownet.load(finished_runs("images"), set=True)
    to_onnx(model, tmp_path / "set.onnx")
    session = runtime.InferenceSession(tmp_path / "set.onnx", providers=["CPUExecutionProvider"])
    inputs = torch.rand(5, *model.translated.zeros(2)[0].shape[1:])
    (outputs,) = session.run(None, {"x": inputs.numpy()})
    np.testing.assert_allclose(outputs, model(inputs).detach().numpy(), atol=1e-5)
