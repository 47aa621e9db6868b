"""Fixtures of all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import missing_server, new_database, running_server

# Background processes of a shell ignore SIGINT, and so do their children; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """Start one PostgreSQL server for all tests of a process."""
    reason = missing_server()
    if reason is not None:
        pytest.skip(reason)
    with running_server() as folder:
        yield folder


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what quick runs of scripts/ (tests/test_scripts.py) skipped and which of their rows do not hold."""
    reports = terminalreporter.getreports("passed")
    lines = [value for report in reports for key, value in report.user_properties if key == "quick run"]
    if lines:
        terminalreporter.section("scripts/: skipped, and rows that do not hold")
        for line in sorted(lines):
            terminalreporter.write_line(line)
