"""status.json and report.html of real runs that end in every way."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from gflownet.records.status import read_status
from gflownet.report.__main__ import main as report
from tests.small_run import run

PAGE = "report.html"
WITH_PAGE = "report.every=60"


def state_on(page: Path) -> str:
    """Return the state that a page shows."""
    match = re.search(r'<p class="state (\w+)"', page.read_text(encoding="utf-8"))
    assert match is not None
    return match[1]


def state_of(folder: Path) -> tuple[str, str]:
    status = read_status(folder)
    assert status is not None
    return status.state, status.message


def test_completed_run_has_a_page_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(folder, WITH_PAGE, "num_training_steps=1") == 0
    assert capsys.readouterr().out.endswith(f"report: {folder / PAGE}\n")
    assert state_of(folder) == ("completed", "")
    assert state_on(folder / PAGE) == "completed"
    assert run(folder, WITH_PAGE, "num_training_steps=2", "resume=true") == 0
    status = read_status(folder)
    assert status is not None
    assert len(status.sessions) == 2


@pytest.mark.parametrize("task", ["Interrupts", pytest.param("Terminates", marks=pytest.mark.slow)])
def test_interrupted_run_has_a_page(tmp_path: Path, task: str) -> None:
    number = {"Interrupts": 2, "Terminates": 15}[task]
    assert run(tmp_path, WITH_PAGE, f"task=tests.toy_tasks:{task}") == 128 + number
    assert state_of(tmp_path) == ("interrupted", {2: "SIGINT", 15: "SIGTERM"}[number])
    assert state_on(tmp_path / PAGE) == "interrupted"


def test_failed_run_has_a_page_with_the_message(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no reward today"):
        run(tmp_path, WITH_PAGE, "task=tests.toy_tasks:BreaksItsReward")
    assert state_of(tmp_path) == ("failed", "RuntimeError: no reward today")
    assert state_on(tmp_path / PAGE) == "failed"


def test_second_interrupt_ends_without_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gflownet.run.final_stage.final_stage", interrupt)
    assert run(tmp_path, WITH_PAGE, "num_training_steps=1") == 130
    assert state_of(tmp_path) == ("interrupted", "SIGINT")
    assert not (tmp_path / PAGE).exists()


@pytest.mark.parametrize("is_rich", [True, False])
def test_closed_output_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rich: bool) -> None:
    """As in `gflownet train ... | head`: rich raises SystemExit, print a BrokenPipeError."""

    def write(*_: object, **__: object) -> None:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            if is_rich:
                Console().on_broken_pipe()
            raise

    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr("gflownet.run.final_stage.final_stage", write)
        assert run(tmp_path, WITH_PAGE, "num_training_steps=1", "console=quiet") == 128 + 13
    assert state_of(tmp_path) == ("interrupted", "SIGPIPE")
    assert state_on(tmp_path / PAGE) == "interrupted"


def test_page_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gflownet.report.page.page_of", lambda _: 1 / 0)
    assert run(tmp_path, WITH_PAGE, "num_training_steps=1") == 0
    assert f"{tmp_path / PAGE} was not written: division by zero" in caplog.text


def test_foreign_page_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / PAGE).write_text("mine")
    assert run(tmp_path, WITH_PAGE) == 2
    assert f"expected only files that the run wrote, got {tmp_path / PAGE}" in capsys.readouterr().err
    assert (tmp_path / PAGE).read_text() == "mine"


def test_page_is_rewritten_at_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second interrupt leaves out the last page; the command writes it."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gflownet.run.final_stage.final_stage", interrupt)
    assert run(tmp_path, "report.every=0.001", "num_training_steps=2", "checkpoint_every=1") == 130
    assert f"report: {tmp_path / PAGE}, rewritten at checkpoints\n" in capsys.readouterr().out
    assert state_on(tmp_path / PAGE) == "running"
    assert report([str(tmp_path)]) == 0
    assert state_on(tmp_path / PAGE) == "interrupted"
