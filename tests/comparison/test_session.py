"""Runs of a comparison on a tiny space: repeated and interrupted commands."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gflownet.cli.compare import main, parse
from gflownet.cli.comparison import Plan
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.files import locked_folder
from gflownet.records.status import STATUS_NAME, RunState, read_status
from gflownet.report.page import read_run
from tests.small_run import SMALL

METHODS = ("random", "gflownet")
NUM_EVALUATIONS, NUM_SEEDS = 6, 2
_CHANGED = ("wandb", "num_training_steps", "env.")
SPACE = ("env.max_hidden_nodes=2", "env.max_edges=4", "env.activations=[relu]", "env.aggregations=[sum]")
OPTIONS = (*(option for option in SMALL if not option.startswith(_CHANGED)), *SPACE, "search.train_sampler=false")


def arguments(folder: Path, *more: str) -> list[str]:
    sizes = ["--budget", str(NUM_EVALUATIONS), "--seeds", str(NUM_SEEDS)]
    return ["--methods", ",".join(METHODS), *sizes, "--out", str(folder), *OPTIONS, *more]


def scores(folder: Path) -> dict[str, list[float]]:
    """Return the scores of all runs in order, by method and seed."""
    return {
        f"{run.parent.parent.name} {run.parent.name}": [record.score for record in read_run(run.parent).searched]
        for run in sorted(folder.rglob(STATUS_NAME))
    }


def is_completed(folder: Path) -> bool:
    status = read_status(folder)
    return status is not None and status.state is RunState.COMPLETED


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    assert main(arguments(folder)) == 0
    return folder


def test_compare_reads_finished_runs(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = scores(finished)
    assert [len(run) for run in expected.values()] == [NUM_EVALUATIONS] * len(METHODS) * NUM_SEEDS
    before = {path: path.stat().st_mtime_ns for path in finished.rglob(STATUS_NAME)}
    assert main(arguments(finished, "--json", str(finished / "copy.json"))) == 0
    assert {path: path.stat().st_mtime_ns for path in finished.rglob(STATUS_NAME)} == before
    assert scores(finished) == expected
    text = capsys.readouterr().out
    assert "Highest test score of rank 0" in text
    assert f"report: {finished / 'comparison.html'}\n" in text
    curves = [
        group["curves"]["best-evaluations"] for group in json.loads((finished / "copy.json").read_text())["groups"]
    ]
    assert [curve["x"][-1] for curve in curves] == [NUM_EVALUATIONS] * 2


def test_compare_writes_page_of_ordinary_runs_too(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Comparison of 4 runs" in (finished / "comparison.html").read_text()
    monkeypatch.chdir(tmp_path)
    assert main([str(finished / "random"), str(finished / "gflownet" / "seed_0"), "--json", "figures.json"]) == 0
    assert capsys.readouterr().out.endswith("\nreport: comparison.html\nreport: figures.json\n")
    assert "Comparison of 3 runs" in Path("comparison.html").read_text()
    assert main([str(finished), "env.max_edges=3"]) == 2
    assert "--methods" in capsys.readouterr().err


def test_second_compare_in_one_folder_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait(*_: Any, **__: Any) -> None:  # instead of running
        os.write(told[1], b".")
        os.read(waits[0], 1)

    monkeypatch.setattr(Plan, "run", wait)
    told, waits = os.pipe(), os.pipe()
    first = os.fork()
    if not first:
        os._exit(main(arguments(tmp_path)))
    assert os.read(told[0], 1) == b"."
    assert main(arguments(tmp_path)) == 2
    os.write(waits[1], b".")
    os.waitpid(first, 0)
    error = capsys.readouterr().err
    assert "expected a folder without an active comparison" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*.json"))
    with locked_folder(tmp_path):
        pass  # the first has given it back


def test_compare_rejects_runs_of_other_options(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(finished, "env.max_edges=3")) == 2
    error = capsys.readouterr().err
    assert "env.max_edges: expected 4" in error
    assert "choose another --out" in error


def test_compare_keeps_foreign_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "comparison.html").write_text("mine")
    assert main(arguments(tmp_path)) == 2
    assert "comparison.html" in capsys.readouterr().err
    assert (tmp_path / "comparison.html").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.html"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.json", ["--json", "mine.json"]),
        ("out/random/seed_0/output.log", []),
        ("out/random/seed_0", []),
        ("out/random", []),
    ],
)
def test_compare_refuses_foreign_file_before_runs(
    tmp_path: Path, name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("mine")
    command = ["--methods", "random", "--budget", "2", "--seeds", "1", "--out", "out", *words, *OPTIONS]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert Path(name).name in error
    assert error.count("\n") == 1
    assert Path(name).read_text() == "mine"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(name).name]


def test_output_of_failed_start_is_continued(tmp_path: Path) -> None:
    command = ["--methods", "random", "--budget", "2", "--seeds", "1", "--out", str(tmp_path), *OPTIONS]
    assert main([*command, "task=tests.toy_tasks:Nope"]) == 2
    assert main([*command, "--json", str(tmp_path / "copy.json")]) == 0
    lines = (tmp_path / "random" / "seed_0" / "output.log").read_text().splitlines()
    assert lines[0] == "# python -m gflownet.compare: random, seed 0"


def test_options_around_overrides_are_parsed() -> None:
    options = parse(["--methods", "random", "seed_1=1", "--budget", "7", "env.max_edges=3"])
    assert (options.overrides, options.budget) == (["seed_1=1", "env.max_edges=3"], 7)


def test_compare_resumes_stopped_run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, num_calls = EvaluationStore.add, 0

    def stop_later(store: EvaluationStore, records: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == NUM_EVALUATIONS + 2:  # in the second run
            os.kill(os.getpid(), signal.SIGINT)
        add(store, records)

    monkeypatch.setattr(EvaluationStore, "add", stop_later)
    command = arguments(tmp_path, "--methods", "random")
    assert main(command) == 128 + signal.SIGINT
    assert not (tmp_path / "comparison.html").exists()
    assert [is_completed(tmp_path / "random" / name) for name in ("seed_0", "seed_1")] == [True, False]
    assert main(command) == 0
    assert scores(tmp_path) == {name: run for name, run in scores(finished).items() if name.startswith("random")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--methods", "randm"], "did you mean random?"),
        (["--methods", "random", "--seeds", "0"], "expected a number >= 1"),
        (["--methods", "random", "--config", "nope"], "--config: expected one of"),
        (["--methods", "random", "search.nope=1"], "search.nope: unknown option"),
        (["--methods", "random", "--nope"], "--nope"),
    ],
)
def test_compare_reports_mistakes_in_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
