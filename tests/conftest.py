"""Fixtures of all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# Background processes of a shell ignore SIGINT, and so do their children; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).resolve().parent.parent


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what quick runs of scripts/ (tests/test_scripts.py) skipped and which of their rows do not hold."""
    reports = terminalreporter.getreports("passed")
    lines = [value for report in reports for key, value in report.user_properties if key == "quick run"]
    if lines:
        terminalreporter.section("scripts/: skipped, and rows that do not hold")
        for line in sorted(lines):
            terminalreporter.write_line(line)
