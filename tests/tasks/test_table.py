"""The task of tables: the loaded model predicts raw rows as the task does, also from ONNX and in a new process."""

import csv
import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

import gflownet
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.final import TopArchitecture
from gflownet.evaluation.presentation import references_of
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus
from gflownet.files import sealed
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.architectures import write_top_architectures
from gflownet.train import main as train_command
from gflownet.translation import to_onnx
from gflownet.translation.table_columns import TableColumns
from tests.evaluation.candidates import classifier_graph
from tests.evaluation.table_data import FORMS, HOUSE_COLUMNS, houses, write_houses, write_rows
from tests.evaluation.test_tables import make_task

_FAST = ("evaluation.num_epochs=8", "evaluation.learning_rate=0.03")


def run_folder(folder: Path, task: TensorTask, graph: ComputationGraph | None = None) -> Path:
    """Write the trained model of a graph, by default a small one, as a run does."""
    if graph is None:
        graph = classifier_graph((6, "relu"), input_size=task.input_sizes[0], num_classes=task.num_outputs)
    epochs = task.max_fidelity
    (training,) = task.train_many([graph], seeds=[0], fidelity=epochs, schedule=epochs, states=[None])
    assert not isinstance(training, Exception)
    row: Any = {"score": training.score().value, "status": EvaluationStatus.OK, "seconds": 0.1, "step": 1}
    record = EvaluationRecord(graph.canonical_hash(), graph.canonical_key(), json.dumps(graph.to_dict()), **row)
    top = [TopArchitecture(record, weights=training.model.state_dict())]
    write_top_architectures(folder, top, task=task, from_dict=ComputationGraph.from_dict)
    return folder


def test_loaded_model_predicts_raw_rows_in_the_units_of_the_file(tmp_path):
    path = write_houses(tmp_path / "houses.csv")
    model: Any = gflownet.load(run_folder(tmp_path, make_task(path, *_FAST)))
    with path.open() as file:
        rows = list(csv.DictReader(file))
    prices = np.array([float(row["price"]) for row in rows])
    predictions = model.predict(rows)
    error = np.mean((predictions - prices) ** 2)
    assert error < 0.3 * prices.var()
    assert np.mean((model.predict([row | {"city": ""} for row in rows]) - prices) ** 2) > 3 * error
    assert np.array_equal(model.predict([[row[name] for name in HOUSE_COLUMNS[:-1]] for row in rows]), predictions)


def test_loaded_model_predicts_the_classes_of_the_file(tmp_path):
    rows = [[k % 10, "pq"[k % 2], "large" if k % 10 > 4 else "small"] for k in range(100)]
    path = write_rows(tmp_path / "a.csv", ("x", "t", "size"), rows)
    task = make_task(path, "task_options.duplicates=keep", "evaluation.num_epochs=30", "evaluation.learning_rate=0.05")
    model: Any = gflownet.load(run_folder(tmp_path, task))
    predicted = model.predict([row[:2] for row in rows])
    assert np.mean(predicted == [row[2] for row in rows]) > 0.9


def test_model_without_columns_does_not_predict_raw_rows():
    model: Any = gflownet.to_pytorch_model(classifier_graph(input_size=2, num_classes=2))
    with pytest.raises(ValueError, match=r"expected a model that gflownet.load returned for a run with task=table"):
        model.predict([[1, 2]])


def test_damaged_columns_name_the_file(tmp_path):
    path = run_folder(tmp_path, make_task(write_houses(tmp_path / "houses.csv"))) / "top_architectures.json"
    entries = json.loads(path.read_text().replace('"kind": "date"', '"kind": "datum"'))
    path.write_text(json.dumps([sealed(entry) for entry in entries]))
    with pytest.raises(ValueError, match=r"^expected the columns of a table, got ValueError"):
        gflownet.load(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
def test_new_process_and_onnx_predict_the_same(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    path = write_houses(tmp_path / "houses.csv")
    model: Any = gflownet.load(run_folder(tmp_path, make_task(path)))
    rows = [row[:-1] for row in houses(20, seed=1)]
    code = f"import gflownet; print(gflownet.load({str(tmp_path)!r}).predict({rows!r}).tolist())"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert np.array_equal(json.loads(output), model.predict(rows))
    to_onnx(model, tmp_path / "model.onnx")
    columns = TableColumns.from_dict(json.loads((tmp_path / "model.columns.json").read_text()))
    (outputs,) = runtime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": columns.encoded(rows)})
    np.testing.assert_allclose(columns.predictions(outputs), model.predict(rows), rtol=1e-5)


def test_summary_is_printed_before_a_refusal(tmp_path, capsys):
    path = write_houses(tmp_path / "houses.csv")
    options = [f"task_options.data={path}", "evaluation.memory_format=channels_last", f"log_dir={tmp_path / 'run'}"]
    assert train_command(["--config", "table", *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("columns, ")
    assert lines[-1].startswith("error: evaluation.memory_format: ")


@pytest.mark.slow
def test_new_process_predicts_raw_rows_of_public_forms(tmp_path):
    expected, code = {}, "import gflownet, json, sys; rows = json.load(open(sys.argv[1])); print(json.dumps({"
    rows: dict[str, list[dict[str, str]]] = {}
    for form in FORMS:
        folder = tmp_path / form.name.partition(".")[0]
        folder.mkdir()
        (folder / form.name).write_bytes(form.content())
        options = (f"task_options.{name}={value}" for name, value in form.options.items())
        task = make_task(folder / form.name, *options)
        model: Any = gflownet.load(run_folder(folder, task))
        names = None if form.has_header else form.names.split(",")
        text = form.content().decode(form.encoding).splitlines()
        reader = csv.DictReader(text, names, delimiter="\t" if form.name.endswith(".tsv") else ",")
        rows[str(folder)] = [dict(row) for row in reader]
        expected[str(folder)] = model.predict(rows[str(folder)]).tolist()
        inputs = np.concatenate([part.inputs.numpy() for part in task.splits_in_use])
        encoded = model.columns.encoded(rows[str(folder)])
        assert {tuple(row) for row in inputs.tolist()} <= {tuple(row) for row in encoded.tolist()}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    code += "k: gflownet.load(k).predict(v).tolist() for k, v in rows.items()}))"
    command = [sys.executable, "-c", code, str(tmp_path / "rows.json")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == expected


def test_installed_packages_are_references(tmp_path, monkeypatch):
    class CatBoostClassifier(HistGradientBoostingClassifier):
        def __init__(self, *, random_state: int, verbose: bool, allow_writing_files: bool) -> None:
            super().__init__(max_iter=3, random_state=random_state)
            self.verbose, self.allow_writing_files = verbose, allow_writing_files

    module = ModuleType("catboost")
    monkeypatch.setattr(module, "CatBoostClassifier", CatBoostClassifier, raising=False)
    module.__spec__ = ModuleSpec("catboost", None)
    monkeypatch.setitem(sys.modules, "catboost", module)
    rows = [[k % 17, k % 5, "ab"[k % 17 > 8]] for k in range(85)]
    task = make_task(write_rows(tmp_path / "a.csv", ("x", "z", "y"), rows))
    references = {each.name: each for each in references_of(task, seeds=[0])}
    assert [name.removeprefix("scikit-learn ") for name in references] == [
        "RandomForest",
        "MLP",
        "HistGradientBoosting",
        "CatBoost",
    ]
    assert references["CatBoost"].test[0] > 0.8


@pytest.mark.slow
def test_summary_is_kept_in_the_run_folder_and_the_report(finished_runs):
    folder = finished_runs("table")
    lines = (folder / "data.txt").read_text().splitlines()
    assert lines[0].startswith("columns, fitted on the training rows")
    assert lines[0] in (folder / "report.html").read_text()
