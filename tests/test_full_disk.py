"""Runs on a full disk: one-line error, earlier files unchanged, resume."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gflownet.errors import UserError
from gflownet.files import write_whole
from gflownet.run.logging import MetricsFile
from gflownet.train import main
from tests.disk_limits import file_size_limit, small_file_system
from tests.tiny_run import metric_rows

SETTINGS = (
    "task=tests.toy_tasks:RewardsNodesOrEdges",
    "evaluation.objectives=[nodes,edges]",
    "wandb.mode=disabled",
    "num_training_steps=3",
    "algo.num_from_policy=4",
    "replay.use=false",
    "model.num_emb=8",
    "model.num_layers=1",
    "model.num_heads=1",
    "env.max_hidden_nodes=2",
    "env.max_edges=4",
    "checkpoint_every=1",
    "report.every=null",
)


def run(folder: Path, *overrides: str) -> int:
    return main([*SETTINGS, f"log_dir={folder}", *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert run(folder) == 0
    return folder


def test_write_whole_full_disk_keeps_old_file(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "old")
    with file_size_limit(10), pytest.raises(UserError, match=r"^.*/file: cannot be written \(File too large\)$"):
        write_whole(path, "new content")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "old")]


def test_metrics_file_full_disk_keeps_rows(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write(1, {"loss": 0.5})
    before = file.path.read_bytes()
    with file_size_limit(len(before) + 9), pytest.raises(UserError, match=r"metrics.jsonl: cannot be written \("):
        file.write(2, {"loss": 0.5})
    assert file.path.read_bytes() == before
    file.write(2, {"loss": 0.25})
    file.close()
    assert len(metric_rows(tmp_path)) == 2


# Bytes that a file may have: too few for run.json, too few for the store.
@pytest.mark.parametrize("limit", [900, pytest.param(33_000, marks=pytest.mark.slow)])
def test_run_with_file_size_limit_resumes(finished, tmp_path, capsys, limit):
    folder = tmp_path / "run"
    assert run(folder, "num_training_steps=1") == 0
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    with file_size_limit(limit):
        assert run(folder, "resume=true") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "cannot be " in error
    assert error.count("\n") == 1
    assert list(folder.rglob("*.tmp")) == []
    assert (folder / "checkpoints" / "step_00000001.pt").read_bytes() == before["step_00000001.pt"]
    assert (folder / "metrics.jsonl").read_bytes().startswith(before["metrics.jsonl"])
    assert run(folder, "resume=true") == 0
    assert metric_rows(folder) == metric_rows(finished)


# Kilobytes that are free: too few for the first checkpoint, the store, the third checkpoint.
@pytest.mark.slow
@pytest.mark.parametrize("num_free", [4, 100, 500])
def test_run_on_full_disk_resumes(finished, tmp_path, capsys, num_free):
    with small_file_system(tmp_path / "disk", 4_000_000) as disk:
        filler = disk / "filler"
        filler.write_bytes(b"x" * (4_000_000 // 4096 * 4096 - 1_024 * num_free))
        assert run(disk / "run") == 2
        shown = capsys.readouterr()
        assert shown.err.startswith("error: ")
        assert re.search(r"cannot be (written \(No space left|opened as an evaluation store \(disk I/O)", shown.err)
        assert shown.err.count("\n") == 1
        assert ("best architectures" in shown.out) == ("are on the front" in shown.out) == (num_free == 500)
        assert list(disk.rglob("*.tmp")) == []
        filler.unlink()
        assert run(disk / "run", "resume=auto") == 0
        assert metric_rows(disk / "run") == metric_rows(finished)


def test_metrics_on_full_disk_raise(finished, tmp_path, capsys, monkeypatch):
    for arguments in ([*SETTINGS, f"log_dir={tmp_path / 'run'}", "print_every=2"], ["--help"]):
        with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            assert main(arguments) == 2
        assert capsys.readouterr().err == "error: stdout: cannot be written (No space left on device)\n"
    assert run(tmp_path / "run", "resume=auto") == 0
    assert metric_rows(tmp_path / "run") == metric_rows(finished)
