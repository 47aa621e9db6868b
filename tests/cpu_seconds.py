"""CPU seconds per test file, test and fixture: `make test ARGS="-p tests.cpu_seconds --cpu-seconds FILE.json"`.

User and system time of the process and of its finished children. A process that a test does not wait for is missing.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

_KEY = "cpu seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="write CPU seconds of tests, files and fixtures as JSON")


def _seconds() -> float:
    return sum(os.times()[:4])


def _record(item: pytest.Item, name: str, start: float) -> None:
    item.user_properties.append((_KEY, (name, _seconds() - start)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    start = _seconds()
    try:
        return (yield)
    finally:
        _record(item, "setup", start)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    start = _seconds()
    try:
        return (yield)
    finally:
        _record(item, "call", start)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    start = _seconds()
    try:
        return (yield)
    finally:
        _record(item, "teardown", start)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    start = _seconds()
    try:
        return (yield)
    finally:
        if isinstance(item := getattr(request, "_pyfuncitem", None), pytest.Item):
            _record(item, f"fixture {fixturedef.baseid.split('::')[0]}::{fixturedef.argname}", start)


class _Table:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, float] = collections.defaultdict(float)
        self.wall: dict[str, float] = collections.defaultdict(float)
        self.fixtures: dict[str, float] = collections.defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.wall[report.nodeid] += report.duration
        if report.when != "teardown":
            return
        for key, value in report.user_properties:
            if key == _KEY:
                name, seconds = cast(tuple[str, float], value)
                if name.startswith("fixture "):
                    self.fixtures[name.removeprefix("fixture ")] += seconds
                else:
                    self.tests[report.nodeid] += seconds

    def pytest_sessionfinish(self) -> None:
        files: dict[str, float] = collections.defaultdict(float)
        for name, seconds in self.tests.items():
            files[name.split("::")[0]] += seconds
        tables = {"files": files, "fixtures": self.fixtures, "tests": self.tests, "wall": self.wall}
        ordered = {name: dict(sorted(table.items(), key=lambda row: -row[1])) for name, table in tables.items()}
        self.path.write_text(json.dumps(ordered, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--cpu-seconds")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Table(Path(path)))
