"""Runs of a comparison on a tiny space: records, repeated and interrupted commands, processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gflownet.cli.compare import main, parse
from gflownet.evaluation.store import EvaluationStore
from gflownet.files import locked_folder
from gflownet.report.compared.record import CURVE_NAME, RunRecord, read_record
from gflownet.run.logging import METRICS_NAME
from tests.benchmark_tables import write_nb201
from tests.search.searches import PLACES
from tests.small_run import SMALL

METHODS = ("random", "gflownet")
NUM_EVALUATIONS, NUM_SEEDS = 12, 2
_CHANGED = ("wandb", "num_training_steps", "env.")
SPACE = ("env.max_hidden_nodes=2", "env.max_edges=4", "env.activations=[relu]", "env.aggregations=[sum]")
# Every setting is refused.
REFUSED = (
    *PLACES,
    "task=tests.search.searches:FailsOrRefuses",
    "env.choices.places={a: [1], b: [0, 1], c: [0, 1], d: [2]}",
)
OPTIONS = (*(option for option in SMALL if not option.startswith(_CHANGED)), *SPACE)


def arguments(folder: Path, *more: str) -> list[str]:
    sizes = ["--budget", str(NUM_EVALUATIONS), "--seeds", str(NUM_SEEDS), "--at", "4"]
    return ["--methods", ",".join(METHODS), *sizes, "--out", str(folder), *OPTIONS, *more]


def curves(folder: Path) -> dict[str, Any]:
    """Return the curves of all runs, without times."""
    content = json.loads((folder / "comparison.json").read_text())
    return {
        label: [{key: run[key] for key in ("scores", "tests", "proposals", "num_proposals")} for run in method["runs"]]
        for label, method in content["methods"].items()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    assert main(arguments(folder)) == 0
    return folder


@pytest.fixture(autouse=True)
def no_pictures(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pictures, but for the finished comparison; test_searches.py draws some."""
    assert (finished / "comparison.svg").exists()
    monkeypatch.setattr("gflownet.report.compared.search_tables.draw", lambda comparison: "")


def test_compare_records_new_evaluations_of_every_run(finished: Path) -> None:
    for label in METHODS:
        for seed in range(NUM_SEEDS):
            folder = finished / label / f"seed_{seed}"
            record = read_record(folder)
            assert record is not None
            assert len(record) == NUM_EVALUATIONS
            rows = [json.loads(line) for line in (folder / METRICS_NAME).read_text().splitlines()]
            assert record.num_proposals >= NUM_EVALUATIONS
            assert max(record.scores) >= rows[-1]["score_best"]
            assert record.tests == [pytest.approx(score - 0.1) for score in record.scores]
            assert record.proposals == sorted(set(record.proposals))
            assert record.proposals[-1] <= record.num_proposals
            assert len(set(record.hashes)) == len(record)


def test_compare_counts_every_proposal_of_policy(finished: Path) -> None:
    """A run of the policy samples 4 architectures per step; the shares of known ones are in its metrics."""
    num_repeats = 0
    for seed in range(NUM_SEEDS):
        folder = finished / "gflownet" / f"seed_{seed}"
        record = read_record(folder)
        assert record is not None
        rows = [json.loads(line) for line in (folder / METRICS_NAME).read_text().splitlines()]
        num_last = NUM_EVALUATIONS - rows[-1]["num_distinct"]  # of the step in which the budget was spent
        assert record.num_proposals == 4 * len(rows) + num_last
        num_new = [round(4 * (1 - row["cached_share"])) for row in rows]
        by_step = [sum(4 * step < place <= 4 * (step + 1) for place in record.proposals) for step in range(len(rows))]
        assert by_step == num_new
        num_repeats += 4 * len(rows) - sum(num_new)
    assert num_repeats  # otherwise both accountings are the same


def test_compare_reads_finished_runs(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [finished / label / f"seed_{seed}" / CURVE_NAME for label in METHODS for seed in range(NUM_SEEDS)]
    before = {path: path.stat().st_mtime_ns for path in paths}
    expected = curves(finished)
    assert main(arguments(finished)) == 0
    assert {path: path.stat().st_mtime_ns for path in paths} == before
    assert curves(finished) == expected
    text = capsys.readouterr().out
    assert "gflownet" in text
    assert "random after 12 evaluations" in text


def test_compare_writes_page_of_ordinary_runs_too(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Comparison of 4 runs" in (finished / "comparison.html").read_text()
    monkeypatch.chdir(tmp_path)
    assert main([str(finished / "random"), str(finished / "gflownet" / "seed_0"), "--json", "figures.json"]) == 0
    assert capsys.readouterr().out == "report: comparison.html\nreport: figures.json\n"
    assert "Comparison of 3 runs" in Path("comparison.html").read_text()
    assert main([str(finished), "env.max_edges=3"]) == 2
    assert "--methods" in capsys.readouterr().err


# A `compare` with its lock and its output, which waits for a line of input instead of running.
WAITING = """
import sys
import gflownet.comparison.session
from gflownet.cli.compare import main
def wait(*arguments, **options):
    print("running", flush=True)
    sys.stdin.readline()
gflownet.comparison.session.run_plan = wait
sys.exit(main(sys.argv[1:]))
"""


def test_second_compare_in_one_folder_is_refused_at_once(
    tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", WAITING, *arguments(tmp_path)]
    with subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "running\n"
        assert main(arguments(tmp_path)) == 2
        first.communicate("\n")
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
    (tmp_path / "comparison.svg").write_text("mine")
    assert main(arguments(tmp_path)) == 2
    assert "comparison.svg" in capsys.readouterr().err
    assert (tmp_path / "comparison.svg").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.svg"]


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
    assert not (tmp_path / "comparison.json").exists()
    assert len(list(tmp_path.rglob(CURVE_NAME))) == 1
    assert main(command) == 0
    assert curves(tmp_path) == {"random": curves(finished)["random"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nb201(tmp_path_factory.mktemp("table") / "table.csv")


def record_of_cells(table: Path, folder: Path, *overrides: str) -> RunRecord:
    """Return the record of a random search of cells with one seed."""
    words = ["--config", "cells", "--methods", "random", "--budget", "3", "--seeds", "1", "--out", str(folder)]
    assert main([*words, f"task_options.table={table}", *overrides]) == 0
    record = read_record(folder / "random" / "seed_0")
    assert record is not None
    return record


def test_compare_knows_optimum_and_tests_of_table(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of_cells(table, tmp_path)
    assert record.optimum == pytest.approx(0.82)
    assert record.top_test == pytest.approx(0.75)  # 1 % of 15,625 cells are 156: digits with a sum of 20 or more
    assert record.tests == [pytest.approx(score + 0.05) for score in record.scores]
    assert "best score of the space: 0.8200" in capsys.readouterr().out


@pytest.mark.parametrize(
    "cap",
    ["evaluation.constraints.edgegpu_latency=5", pytest.param("budget.parameters=1000000000", marks=pytest.mark.slow)],
)
def test_optimum_is_unknown_with_caps(
    table: Path, tmp_path: Path, cap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of_cells(table, tmp_path, cap)
    assert (record.optimum, record.top_test) == (None, None)
    assert "best score of the space" not in capsys.readouterr().out


def test_run_without_evaluations_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--methods", "gflownet", "--budget", "3", "--seeds", "1", "--out", str(tmp_path)]
    assert main([*words, *REFUSED]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: gflownet, seed 0: expected at least one evaluation, got none")
    assert error.count("\n") == 1


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


@pytest.mark.slow
def test_compare_in_two_processes_continues_after_kill(finished: Path, tmp_path: Path, checkout: Path) -> None:
    command = [sys.executable, "-m", "gflownet.compare", *arguments(tmp_path, "--parallel", "2")]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL) as process:
        while not list(tmp_path.rglob(CURVE_NAME)):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert not (tmp_path / "comparison.json").exists()
    result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    while "in use" in result.stderr:  # the processes of the killed command are ending
        result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert curves(tmp_path) == curves(finished)
