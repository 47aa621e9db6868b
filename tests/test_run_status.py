"""State of a run whose process was on another host, read from status.json and the lock of the run folder."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from pathlib import Path

import pytest

from gflownet.records.marker import LOCK_NAME
from gflownet.records.status import STATUS_NAME, read_status
from gflownet.report.__main__ import main
from gflownet.run.checkpoint import RunLock
from tests import small_run
from tests.finished_runs import copy_finished
from tests.report.page.folders import status_of

finished = small_run.finished_toy


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """Return a run that an earlier container has left."""
    folder = tmp_path / "run"
    copy_finished(finished, folder)
    status = status_of("running")
    status["sessions"][0]["host"] = "an-earlier-container"
    (folder / STATUS_NAME).write_text(json.dumps(status))
    written_at(folder, seconds_ago=3600.0)
    return folder


def written_at(folder: Path, *, seconds_ago: float) -> None:
    moment = time.time() - seconds_ago
    os.utime(folder / STATUS_NAME, (moment, moment))


def state_of(folder: Path) -> str:
    status = read_status(folder)
    assert status is not None
    return status.state


def test_run_killed_with_its_container_is_killed(folder: Path) -> None:
    assert state_of(folder) == "killed"
    (folder / LOCK_NAME).unlink()
    names = sorted(folder.iterdir())
    assert state_of(folder) == "killed"
    assert sorted(folder.iterdir()) == names
    assert main([str(folder)]) == 0
    assert 'class="state killed"' in (folder / "report.html").read_text()


def test_run_on_another_host_is_running_while_its_folder_is_locked(folder: Path) -> None:
    with RunLock(folder):
        assert state_of(folder) == "running"  # no steps for an hour
    assert state_of(folder) == "killed"


def test_recent_run_on_another_host_is_running(folder: Path) -> None:
    written_at(folder, seconds_ago=20.0)
    assert state_of(folder) == "running"


def test_run_starts_while_its_state_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the lock, here a thousand times as long as usual, does not refuse a run."""
    monkeypatch.setattr("gflownet.run.checkpoint._LOCK_WAIT_S", 20.0)
    with (folder / LOCK_NAME).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        release = threading.Timer(0.02, lambda: fcntl.flock(file, fcntl.LOCK_UN))
        release.start()
        RunLock(folder).release()
        release.join()
