"""Fixtures of all tests."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflownet.terminal import interrupts
from tests import cpu_seconds
from tests.finished_runs import CopiedRun, FinishedRuns, copy_finished
from tests.postgres_server import missing_server, new_database, running_server

# The key of this user's run folders and the measured choices, the same for all processes of pytest-xdist.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gflownet-tests-")
# A test that sends SIGTERM to this process ends neither it nor, with a slow step, the fork server, whose next
# user would get an EOFError, also on a busy machine.
interrupts.ABANDON_S, interrupts.END_S = 600.0, 1_200.0
# Background processes of a shell ignore SIGINT, and so do their children; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOT = Path(__file__).resolve().parent.parent
# Written by Python, pytest and the installation, in folders that git ignores.
_CACHES = (".venv", ".pytest_cache", ".coverage*", "**/__pycache__/**")
_BEFORE, _CHANGES = pytest.StashKey[set[str]](), pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the root of the source tree."""
    return _ROOT


@pytest.fixture(scope="session", autouse=True)
def folders_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Return new working folders; fixtures of modules and of the session work in the one above them."""
    parent = tmp_path_factory.mktemp("working")
    with contextlib.chdir(parent):
        yield (parent / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def working_folder(folders_of_tests: Iterator[Path]) -> Iterator[Path]:
    """Run a test in an empty folder, and let it end the threads that renew claims of evaluations.

    The folder stays: processes of later tests may have been started in it.
    """
    folder = next(folders_of_tests)
    folder.mkdir()
    before = set(threading.enumerate())
    with contextlib.chdir(folder):
        yield folder
    for thread in set(threading.enumerate()) - before:
        if thread.name == "evaluation leases":
            thread.join(1.0)
            assert not thread.is_alive(), "a dispatcher with claims was not closed"


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


def pytest_addoption(parser: pytest.Parser) -> None:
    cpu_seconds.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    cpu_seconds.register(config)
    gc.disable()  # until all modules are imported


def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collections, which take 0.3 s each with them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def checkout_status() -> set[str]:
    """Return a line per file of the checkout that is changed, new or ignored by git; none outside of a clone."""
    command = ["git", "status", "--porcelain", "--ignored", "--untracked-files=all", "--", "."]
    excluded = [f":(exclude,glob){name}" for name in _CACHES]
    with contextlib.suppress(OSError):
        return set(subprocess.run([*command, *excluded], cwd=_ROOT, capture_output=True, text=True).stdout.splitlines())
    return set()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Look at the checkout before the tests, in the process that starts all others."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.stash[_BEFORE] = checkout_status()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let the session fail if files of the checkout were written."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        changes = sorted(checkout_status() ^ session.config.stash[_BEFORE])
        session.config.stash[_CHANGES] = changes
        if changes and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List files of the checkout that the tests have changed, and rows of scripts/ that were skipped or do not hold."""
    changes = terminalreporter.config.stash.get(_CHANGES, [])
    if changes:
        terminalreporter.section("FAILED: files of the checkout that changed during the tests", red=True)
    for line in changes:
        terminalreporter.write_line(line)
    reports = terminalreporter.getreports("passed")
    lines = [value for report in reports for key, value in report.user_properties if key == "quick run"]
    if lines:
        terminalreporter.section("scripts/: skipped, and rows that do not hold")
        for line in sorted(lines):
            terminalreporter.write_line(line)
