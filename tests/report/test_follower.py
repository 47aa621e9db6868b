"""The process that rewrites report.html: rewriting, end with the run, a killed run, cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gflownet.files import write_whole
from gflownet.records.status import STATUS_NAME, StatusLog
from gflownet.report import follower
from gflownet.report.follower import MAX_CPU_SHARE, Follower, follow
from tests.finished_runs import CopiedRun
from tests.test_run_record import state_on
from tests.test_trainer import wait_until

# Starts a follower for the folder argv[1], then ends as argv[2] says.
_RUN = """
import os, signal, sys
from pathlib import Path
from gflownet.files import write_whole
from gflownet.report.follower import Follower
from gflownet.records.status import StatusLog

StatusLog(Path(sys.argv[1]), resumed=False, write=write_whole)
follower = Follower(Path(sys.argv[1]), every=0)
if sys.argv[2] == "fork" and not (child := os.fork()):
    signal.pause()  # holds the pipe
print(follower._process.pid, child if sys.argv[2] == "fork" else 0, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(copied_run: CopiedRun) -> Path:
    """Return a copy of a finished run without its page, in the state of a run of this process."""
    folder = copied_run("toy")
    (folder / "report.html").unlink()
    StatusLog(folder, resumed=False, write=write_whole)
    return folder


@pytest.fixture
def page(folder: Path) -> Path:
    return folder / "report.html"


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def process_of(started: Follower) -> psutil.Process:
    assert started._process is not None
    return psutil.Process(started._process.pid)


@pytest.fixture
def running(folder: Path) -> Iterator[Follower]:
    started = Follower(folder, every=0.05)
    yield started
    started.stop()


def test_follower_rewrites_changed_folder_and_stops(folder: Path, page: Path, running: Follower) -> None:
    wait_until(page.exists, seconds=120)
    assert state_on(page) == "running"
    process = process_of(running)
    assert process.nice() == follower._LOWEST_PRIORITY
    assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
    before = page.stat().st_mtime_ns
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 9, "loss": 1.0}) + "\n")
    wait_until(lambda: page.stat().st_mtime_ns != before, seconds=120)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    assert process.is_running()
    running.stop()
    running.stop()
    assert is_gone(process.pid)


@pytest.mark.parametrize("end", ["kill", pytest.param("fork", marks=pytest.mark.slow)])
def test_killed_run_leaves_its_page(folder: Path, page: Path, end: str) -> None:
    """A forked child that holds the pipe delays the page by _CHECK_EVERY_S."""
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(folder), end], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    assert run.stdin is not None
    pid, child = map(int, run.stdout.readline().split())
    assert not page.exists()
    run.kill()
    run.wait()
    run.stdin.close()
    run.stdout.close()
    wait_until(page.exists, seconds=120)
    assert state_on(page) == "killed"
    wait_until(lambda: is_gone(pid), seconds=120)
    if child:
        os.kill(child, signal.SIGKILL)


def test_folder_of_another_process_is_left_alone(folder: Path, page: Path) -> None:
    """A new run has taken the folder between the kill and the last page."""
    follow_once(folder, os.getpid() + 1)
    assert not page.exists()
    follow_once(folder, os.getpid())
    assert page.exists()


def follow_once(folder: Path, run_process: int) -> None:
    follower._write_page(folder, run_process)


def test_pauses_follow_changes_and_cost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float | None] = []
    costs = iter([4.0, 1.0])
    num_pages = [0]

    def ends_within(seconds: float | None, _: int) -> bool:
        pauses.append(seconds)
        if len(pauses) == 4:
            later = follower._last_change(folder) + 1  # the clock of file times may stand still in this test
            os.utime(folder / STATUS_NAME, ns=(later, later))
        return len(pauses) == 6

    def write_page(*_: object) -> None:
        num_pages[0] += 1

    def cpu_seconds(call) -> float:
        call()
        return next(costs)

    monkeypatch.setattr(follower, "_ends_within", ends_within)
    monkeypatch.setattr(follower, "_write_page", write_page)
    monkeypatch.setattr(follower, "_cpu_seconds", cpu_seconds)
    follow(folder, every=60, run_process=-1)
    assert pauses == [follower.FIRST_PAGE_S, 4.0 / MAX_CPU_SHARE, 60, 60, 60, 60]
    assert num_pages == [3], "two changes and the end"


def test_follow_without_interval_writes_only_at_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float | None] = []
    monkeypatch.setattr(follower, "_ends_within", lambda seconds, _: pauses.append(seconds) or True)
    monkeypatch.setattr(follower, "_write_page", lambda *_: pauses.append(-1))
    follow(folder, every=0, run_process=-1)
    assert pauses == [None, -1]


def test_own_page_is_no_change(folder: Path, page: Path) -> None:
    before = follower._last_change(folder)
    page.write_text("")
    assert follower._last_change(folder) == before
    os.utime(folder / STATUS_NAME, ns=(before + 1, before + 1))
    assert follower._last_change(folder) == before + 1


def test_follower_that_cannot_start_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(folder / "missing"))
    started = Follower(folder, every=60)
    started.stop()
    assert "no report during the run" in caplog.text
