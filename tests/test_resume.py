"""Resumed runs: refused changes, missing files; equality to uninterrupted ones: tests/run/test_stages.py."""

import importlib
import itertools
import json
import shutil
import sys

import pytest

from gflownet.evaluation.task import GFNTask
from gflownet.run.checkpoint import save
from gflownet.run.folder import last_checkpoint
from gflownet.train import main
from tests import small_run
from tests.finished_runs import SEARCHES
from tests.small_run import run
from tests.tiny_run import metric_rows
from tests.toy_tasks import RewardsHiddenNodes

finished = small_run.finished_toy
FINISHED = SEARCHES["toy"]


def test_resume_before_first_checkpoint_from_step_0(finished, tmp_path, monkeypatch):
    calls, evaluate = itertools.count(1), RewardsHiddenNodes.evaluate

    def dies(self, graph, *, seed):
        if next(calls) == 7:
            raise KeyboardInterrupt
        return evaluate(self, graph, seed=seed)

    monkeypatch.setattr(RewardsHiddenNodes, "evaluate", dies)
    monkeypatch.setattr(RewardsHiddenNodes, "test", GFNTask.test)  # no further evaluations for the report
    options = ("checkpoint_every=100", "num_training_steps=4")
    assert run(tmp_path / "run", *options, "resume=auto") == 130
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_00000000.pt"]
    assert run(tmp_path / "run", *options) == 2
    assert run(tmp_path / "run", *options, "resume=auto") == 0
    rows = metric_rows(finished)[:4]
    assert metric_rows(tmp_path / "run") == rows
    assert next(calls) - 8 < rows[-1]["num_distinct"], "what was evaluated before is known"


def test_resume_without_store_warns(copied_run, caplog):
    """What the report knows is restored, and best architectures are not replaced by fewer."""
    folder = copied_run("toy")
    before = json.loads((folder / "top_architectures.json").read_text())
    (folder / "evaluations.sqlite").unlink()
    assert run(folder, *FINISHED, "resume=true") == 0
    (line,) = [record.getMessage() for record in caplog.records]
    end = "got no file; 10 results restored from top_architectures.json, other graphs are evaluated again"
    assert line.endswith(f"evaluations.sqlite: expected the evaluations of the run, {end}")
    after = json.loads((folder / "top_architectures.json").read_text())
    assert [entry["graph"] for entry in after] == [entry["graph"] for entry in before]
    assert [entry["validation_score"] for entry in after] == [entry["validation_score"] for entry in before]


def test_resume_with_other_state_raises(copied_run, capsys):
    folder = copied_run("toy")
    checkpoint = last_checkpoint(folder, option="run")
    for state in (checkpoint.state | {"policy": {}}, checkpoint.state | {"replay": None, "random_state": 3}):
        save(checkpoint.path, state, run=checkpoint.state["run_id"])
        capsys.readouterr()
        assert run(folder, *FINISHED, "resume=true") == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {checkpoint.path}: expected a state of this version, got another (")
        assert error.count("\n") == 1


def test_resume_reads_options_and_refuses_changes(finished, copied_run, capsys):
    folder = copied_run("toy")
    for change in ("opt.warmup=2", "task=digits"):
        before = (folder / "config.yaml").read_text()
        assert main([f"log_dir={folder}", "resume=true", change]) == 2
        assert capsys.readouterr().err.startswith(f"error: {change.partition('=')[0]}: expected ")
        assert (folder / "config.yaml").read_text() == before
    assert main([f"log_dir={folder}", "resume=true", "num_training_steps=9", "workers.deadline=900"]) == 0
    *before, last = metric_rows(folder)
    assert before == metric_rows(finished)
    assert last["step"] == 9


def test_resume_after_an_edited_task_forgets_its_scores(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # valid for a source of one size written in the same second
    module = tmp_path / "edited_task.py"
    source = "from tests.toy_tasks import RewardsHiddenNodes\nfrom gflownet.evaluation.task import Score\n\n\n"
    source += (
        "class Edited(RewardsHiddenNodes):\n    def evaluate(self, graph, *, seed):\n        return Score({score})\n"
    )
    options = ("task=edited_task:Edited", "replay.use=true", "replay.warmup=1")
    module.write_text(source.format(score=0.9))
    assert run(tmp_path / "run", *options, "num_training_steps=3") == 0
    module.write_text(source.format(score=0.2))
    monkeypatch.delitem(sys.modules, "edited_task")
    importlib.invalidate_caches()
    assert run(tmp_path / "run", *options, "num_training_steps=4", "resume=true") == 0
    before, after = metric_rows(tmp_path / "run")[2:]
    assert (before["score_best"], after["score_best"]) == (0.9, 0.2)
    assert after["replay_size"] <= 4 < before["replay_size"]


def test_resume_after_damaged_checkpoints(finished, copied_run, tmp_path, capsys):
    """The last checkpoint is empty, then both: the previous one, and the evaluations in a new run."""
    folder = copied_run("toy")
    earlier, last = sorted((folder / "checkpoints").iterdir())
    last.write_bytes(b"")
    assert run(folder, *FINISHED, "resume=true") == 0
    assert metric_rows(folder) == metric_rows(finished)
    assert last.stat().st_size
    for path in (earlier, last):
        path.write_bytes(path.read_bytes()[:20])
    capsys.readouterr()
    assert run(folder, *FINISHED, "resume=true") == 2
    (line,) = capsys.readouterr().err.splitlines()
    store = line.partition("evaluation.store_url=")[2].partition(",")[0]
    assert run(tmp_path / "new", *FINISHED, "num_training_steps=2", f"evaluation.store_url={store}") == 0
    assert {row["cached_share"] for row in metric_rows(tmp_path / "new")} == {1.0}


@pytest.mark.parametrize("options", [(), ("final.top=1", "final.num_seeds=1")])
def test_deleted_run_folder_ends_the_run(options, tmp_path, monkeypatch, capsys):
    """A candidate of the search, or of the final stage, deletes the folder: one line, and no file appears."""
    calls, evaluate = itertools.count(1), RewardsHiddenNodes.evaluate

    def deletes(self, graph, *, seed):
        if seed if options else next(calls) == 7:  # only the final stage has other seeds
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return evaluate(self, graph, seed=seed)

    monkeypatch.setattr(RewardsHiddenNodes, "evaluate", deletes)
    assert run(tmp_path / "run", "num_training_steps=3", "report.every=0", *options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"error: {tmp_path}/run: expected the folder of this run, which was deleted or moved meanwhile"
    )
    assert list(tmp_path.iterdir()) == []
