"""CPU seconds of tests, and their limits: of a test that is not marked slow, and of the whole suite.

User and system time of the process and of its finished children. Limits are multiples of `import torch` on the machine.
`make test ARGS="--cpu-seconds=FILE.json"` writes the CPU seconds of every file, fixture and test.
"""

from __future__ import annotations

import collections
import functools
import json
import resource
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REFERENCE_S = 2.4  # of `import torch` where the limit of a test was set
LIMIT_S = 3.0
# A busy machine takes a fifth more, and a test may pay what later ones share: imports, first files of a cache, the
# processes of a pool, whose seconds count when they end. The budget of the whole suite is the tight limit.
MARGIN = 4.2
BUDGET = 400  # times `import torch`; the goal is 250, the suite takes 320 to 370: to be lowered with it
MODULE_S = 0.003  # of a module that a test is the first of its process to import
_KEY = "cpu seconds"
_shared = [0.0, 0]  # seconds of work that tests share, and the depth of calls that measure them


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="write CPU seconds of tests, files and fixtures as JSON")
    parser.addoption("--import-torch", type=float, metavar="SECONDS", help="CPU seconds of `import torch`; measured")


def register(config: pytest.Config, *, limit_s: float = LIMIT_S, budget: float = BUDGET) -> None:
    """Measure all tests of a session; processes of pytest-xdist get the options of the first one."""
    is_worker = hasattr(config, "workerinput")
    if getattr(config.option, "numprocesses", None) and not is_worker and config.option.import_torch is None:
        config.option.import_torch = import_seconds()
    config.pluginmanager.register(_Meter(config, limit_s))
    if not is_worker:
        config.pluginmanager.register(_Suite(config, budget))


@contextmanager
def shared() -> Iterator[None]:
    """Charge the work of a block to all tests, not to the first that needs it."""
    start = _seconds()
    _shared[1] += 1
    try:
        yield
    finally:
        _shared[1] -= 1
        if not _shared[1]:
            _shared[0] += _seconds() - start


@functools.cache
def import_seconds() -> float:
    """Return the CPU seconds of `import torch`, the lower of two."""

    def measured() -> float:
        start = _seconds()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        return _seconds() - start

    return min(measured(), measured())


def _seconds() -> float:
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


class _Meter:
    """Records the seconds of each test of a process, and fails those above the limit."""

    def __init__(self, config: pytest.Config, limit_s: float) -> None:
        self._config, self._limit_s = config, limit_s
        self._own = 0.0  # seconds of setup and call of the current test

    def _phase(self, item: pytest.Item, name: str) -> Generator[None, Any, Any]:
        start, before, num_modules = _seconds(), _shared[0], len(sys.modules)
        try:
            return (yield)
        finally:
            seconds = _seconds() - start
            item.user_properties.append((_KEY, (name, seconds)))
            imports = MODULE_S * (len(sys.modules) - num_modules)
            self._own += seconds - (_shared[0] - before) - imports

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._own = 0.0
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "teardown"))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        start = _seconds()
        try:
            if fixturedef.scope == "function":
                return (yield)
            with shared():
                return (yield)
        finally:
            if isinstance(item := getattr(request, "_pyfuncitem", None), pytest.Item):
                name = f"fixture {fixturedef.baseid.split('::')[0]}::{fixturedef.argname}"
                item.user_properties.append((_KEY, (name, _seconds() - start)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        is_measured = call.when == "call" and report.passed and item.get_closest_marker("slow") is None
        if is_measured and self._own > self._limit_s / 4:
            marker = item.get_closest_marker("cpu_seconds")
            limit = (
                (marker.args[0] if marker else self._limit_s)
                * (self._config.option.import_torch or import_seconds())
                / REFERENCE_S
            )
            if self._own > MARGIN * limit:
                report.outcome = "failed"
                report.longrepr = (
                    f"expected at most {limit:.2g} CPU seconds, got {self._own:.2g}; shrink it or mark it slow"
                )
        return report

    def pytest_sessionfinish(self) -> None:
        getattr(self._config, "workeroutput", {})[_KEY] = _seconds()


class _Suite:
    """Adds the seconds of all processes; a complete run above the budget fails."""

    def __init__(self, config: pytest.Config, budget: float) -> None:
        self._config, self._budget = config, budget
        self._tables: dict[str, dict[str, float]] = {
            name: collections.defaultdict(float) for name in ("files", "fixtures", "tests", "wall")
        }
        self._workers_s = 0.0
        self._line = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tables["wall"][report.nodeid] += report.duration
        if report.when != "teardown":
            return
        for key, value in report.user_properties:
            if key == _KEY:
                name, seconds = value  # type: ignore[misc]
                if name.startswith("fixture "):
                    self._tables["fixtures"][name.removeprefix("fixture ")] += seconds
                else:
                    self._tables["tests"][report.nodeid] += seconds
                    self._tables["files"][report.nodeid.split("::")[0]] += seconds

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers_s += getattr(node, "workeroutput", {}).get(_KEY, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        result = yield  # of pytest-xdist: all processes have ended
        total = self._workers_s + resource_seconds(has_children=not self._workers_s)
        option, path = self._config.option, self._config.option.cpu_seconds
        is_whole = (
            not option.collectonly
            and self._config.args_source is pytest.Config.ArgsSource.TESTPATHS
            and not option.keyword
        )
        if is_whole and option.markexpr == "not slow":
            limit = self._budget * (option.import_torch or import_seconds())
            self._line = f"{total:.0f} CPU seconds of {limit:.0f}, {self._budget} times `import torch`"
            if total > limit and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            if total > limit:
                self._line = f"FAILED: {self._line}"
        if path:
            ordered = {
                name: dict(sorted(table.items(), key=lambda row: -row[1])) for name, table in self._tables.items()
            }
            Path(path).write_text(json.dumps(ordered, indent=1))
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._line:
            terminalreporter.write_line(self._line)


def resource_seconds(*, has_children: bool) -> float:
    """Return the seconds of this process, with its finished children or, where they were added by report, without."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    return _seconds() if has_children else use.ru_utime + use.ru_stime
