"""Shared runs are built once and never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import finished_runs
from tests.finished_runs import FinishedRuns, copy_finished


def test_finished_runs_are_built_once_and_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def build(kind: str, folder: Path) -> None:
        built.append(folder)
        (folder / "run").mkdir()
        (folder / "run" / "config.yaml").write_text(kind)

    monkeypatch.setattr(finished_runs, "_build", build)
    runs = FinishedRuns(tmp_path)
    assert [FinishedRuns(tmp_path)("toy"), runs("toy")] == [tmp_path / "toy" / "run"] * 2
    assert len(built) == 1
    assert runs.changed() == []
    (tmp_path / "toy" / "run" / "config.yaml").write_text("other")
    (tmp_path / "toy" / "run" / "more").touch()
    assert runs.changed() == ["toy/run/config.yaml", "toy/run/more"]


def test_copy_of_a_run_leaves_out_files_of_readers(tmp_path: Path) -> None:
    names = {"evaluations.sqlite", "run.lock"}
    for name in (*names, "evaluations.sqlite-wal", "evaluations.sqlite-shm"):
        (tmp_path / "run" / "store").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "store" / name).touch()
    copied = copy_finished(tmp_path / "run", tmp_path / "copied")
    assert {path.name for path in (copied / "store").iterdir()} == names
