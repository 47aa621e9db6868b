"""The list of candidates that end their process: its entries, the closing line, names that are taken."""

import json
import re
from pathlib import Path

import pytest

from gflownet.cli.store import main as requeue
from gflownet.errors import UserError
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.run.failures import Quarantine
from gflownet.run.folder import QUARANTINE_NAME, RunFolder
from tests.disk_limits import file_size_limit
from tests.evaluation.candidates import config_with
from tests.evaluation.stub_rows import record
from tests.small_run import run
from tests.test_stop import statuses
from tests.tiny_run import metric_rows
from tests.toy_tasks import RewardsHiddenNodes


class ExitsOrFillsMemory(RewardsHiddenNodes):
    """A third of the graphs exit, a third exceed the memory, the others have a score."""

    is_cheap = False

    def evaluate(self, graph, *, seed):
        if seed % 3 == 0:
            raise SystemExit(7)
        if seed % 3 == 1:
            raise MemoryError("\x1b[31mtoo large")
        return super().evaluate(graph, seed=seed)


def entries(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / QUARANTINE_NAME).read_text().splitlines()]


def test_run_lists_candidates_that_end_their_process(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gflownet.evaluation.dispatcher.MAX_ATTEMPTS", 1)
    folder = tmp_path / "run"
    task = f"task={__name__}:{ExitsOrFillsMemory.__name__}"
    options = (task, "evaluation.executor=inline", "num_training_steps=2")
    assert run(folder, *options) == 0
    shown = capsys.readouterr()
    rows, listed = statuses(folder), entries(folder)
    assert set(rows) == {"ok", "crashed", "out_of_memory"}
    assert len(listed) == len(rows) - rows.count("ok")
    assert {entry["status"] for entry in listed} == {"crashed", "out_of_memory"}
    for entry in listed:
        graph = ComputationGraph.from_dict(entry["graph"])
        assert graph.canonical_hash() == entry["hash"]
        assert (entry["attempts"], entry["seconds"] >= 0, entry["step"] in (1, 2)) == (1, True, True)
        assert entry["error"]
    lines = shown.out.splitlines()
    assert f"{len(listed)} candidates were quarantined: {folder / QUARANTINE_NAME}; to try again: " in shown.out
    assert len([line for line in lines if re.match(r"step \d: evaluation of \S{12} ended its process: ", line)]) == 1
    (memory,) = [line for line in lines if re.match(r"step \d: evaluation of \S{12} ran out of memory: ", line)]
    assert r"MemoryError: \x1b[31mtoo large (test_quarantine.py:" in memory
    assert re.search(rf"failed evaluations: {len(listed)} \(\d+ ", shown.out)
    raw = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for status in ("crashed", "out_of_memory"):
        assert raw[-1][f"num_{status}"] == rows.count(status)
    assert len(metric_rows(folder)) == 2
    with RunFolder(folder, resume=False, overwrite=True):
        assert not (folder / QUARANTINE_NAME).exists()


class FillsMemory(RewardsHiddenNodes):
    """A third of the graphs exceed the memory until there is enough."""

    is_cheap = False
    has_enough = False

    def evaluate(self, graph, *, seed):
        if seed % 3 == 1 and not self.has_enough:
            raise MemoryError
        return super().evaluate(graph, seed=seed)


def test_requeued_failures_are_evaluated_again(tmp_path, monkeypatch):
    """The next run has the same seed and the same store, and first samples the same graphs."""
    location = f"sqlite:///{tmp_path}/all.sqlite"
    options = (f"task={__name__}:FillsMemory", "evaluation.executor=inline", "num_training_steps=1")
    options += (f"evaluation.store_url={location}",)
    assert run(tmp_path / "first", *options) == 0
    failed = {entry["hash"] for entry in entries(tmp_path / "first")}
    assert failed
    monkeypatch.setattr(FillsMemory, "has_enough", True)
    assert requeue(["requeue", location, "--status", "out_of_memory"]) == 0
    assert run(tmp_path / "second", *options) == 0
    with StoreOverview(location) as overview:
        again = [row for row in overview.results() if row["hash"] in failed]
    assert {row["status"] for row in again} == {"ok"}
    assert not (tmp_path / "second" / QUARANTINE_NAME).exists()


def test_list_is_appended_by_a_resumed_run(tmp_path):
    for resume, keys in ((False, "ab"), (True, "c")):
        with RunFolder(tmp_path / "run", resume=resume, overwrite=False) as folder:
            if not resume:
                folder.write_config(config_with())
            quarantine = Quarantine(folder)
            for key in keys:
                quarantine.add(record(key, status=EvaluationStatus.TIMEOUT, error="late"))
            quarantine.add(record("fine"))
            quarantine.add(record("wrong", status=EvaluationStatus.FAILED))
            assert quarantine.num == len(keys)
    assert [entry["hash"] for entry in entries(tmp_path / "run")] == ["hash of a", "hash of b", "hash of c"]
    assert [entry["error"] for entry in entries(tmp_path / "run")] == ["late"] * 3


def test_file_of_another_program_is_refused(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / QUARANTINE_NAME).write_text("mine")
    assert run(tmp_path / "run") == 2
    assert "expected only files that the run wrote" in capsys.readouterr().err
    assert (tmp_path / "run" / QUARANTINE_NAME).read_text() == "mine"


def test_full_disk_leaves_whole_lines(tmp_path):
    with RunFolder(tmp_path / "run", resume=False, overwrite=False) as folder:
        quarantine = Quarantine(folder)
        quarantine.add(record("a", status=EvaluationStatus.CRASHED))
        size = quarantine.path.stat().st_size
        with file_size_limit(size + 20), pytest.raises(UserError, match=r"quarantine\.jsonl: cannot be written"):
            quarantine.add(record("b", status=EvaluationStatus.CRASHED))
        assert quarantine.path.stat().st_size == size
