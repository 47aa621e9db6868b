"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflownet.terminal import interrupts
from tests.finished_runs import CopiedRun, FinishedRuns, copy_finished
from tests.postgres_server import missing_server, new_database, running_server

# The key of this user's run folders and the measured choices, the same for all processes of pytest-xdist.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gflownet-tests-")
# A test that sends SIGTERM to this process never ends it, also on a busy machine.
interrupts.END_S = 600.0
# Background processes of a shell ignore SIGINT, and so do their children; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for all processes of the session, those of pytest-xdist included."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def finished_runs(shared_folder: Path) -> Iterator[FinishedRuns]:
    """Return the finished runs of the session, by kind; tests only read them."""
    folder = shared_folder / "finished_runs"
    folder.mkdir(exist_ok=True)
    runs = FinishedRuns(folder)
    yield runs
    assert runs.changed() == [], "a test has changed a shared run; use copied_run"


@pytest.fixture
def copied_run(finished_runs: FinishedRuns, tmp_path: Path) -> CopiedRun:
    """Return a function that copies the finished run of a kind into the folder of the test."""

    def copy(kind: str) -> Path:
        source = finished_runs(kind).parent
        return copy_finished(source, tmp_path / kind) / "run"

    return copy


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """Start one PostgreSQL server for all tests of a process."""
    reason = missing_server()
    if reason is not None:
        pytest.skip(reason)
    with running_server() as server:
        yield server.folder


@pytest.fixture
def postgres(postgres_server: Path) -> str:
    """Return the URL of an empty PostgreSQL database."""
    return new_database(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'evaluations.sqlite'}"
    return request.getfixturevalue("postgres")


def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collections, which take 0.3 s each with them."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what quick runs of scripts/ (tests/test_scripts.py) skipped and which of their rows do not hold."""
    reports = terminalreporter.getreports("passed")
    lines = [value for report in reports for key, value in report.user_properties if key == "quick run"]
    if lines:
        terminalreporter.section("scripts/: skipped, and rows that do not hold")
        for line in sorted(lines):
            terminalreporter.write_line(line)
