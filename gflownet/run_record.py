"""The record of a run: status.json and report.html, during the run, at its end and after an error."""

from __future__ import annotations

import logging
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gflownet.command_line import program
from gflownet.config import ReportConfig
from gflownet.console import duration
from gflownet.errors import UserError
from gflownet.files import locked_folder, write_whole
from gflownet.interrupts import StopRequest, discard_output_without_reader
from gflownet.report.follower import Follower
from gflownet.report.page import PAGE_NAME
from gflownet.run.folder import RunFolder
from gflownet.run_status import Phase, RunState, StatusLog

_log = logging.getLogger(__name__)


class RunRecord:
    """status.json and report.html of one session."""

    def __init__(
        self,
        folder: RunFolder,
        config: ReportConfig,
        *,
        report_line: Callable[[str], None],
        report_detail: Callable[[str], None] = lambda text: None,
        plan: Mapping[str, Any] | None = None,
        start_seconds: float = 0.0,
    ) -> None:
        """Write status.json, and start the process that rewrites the page.

        Args:
            folder: of the run.
            config: options of the page.
            report_line: prints the path of the page.
            report_detail: prints the phases of a verbose run.
            plan: of the run, for status.json.
            start_seconds: of the session so far.
        """
        self._folder, self._report_line, self._report_detail = folder, report_line, report_detail
        self._status = StatusLog(
            folder.path, resumed=folder.resumed, write=folder.write, plan=plan, start_seconds=start_seconds
        )
        self._page = None if config.every is None else folder.path / PAGE_NAME
        self._follower: Follower | None = None
        self._is_announced = not config.every  # without pages during the run there is nothing to name
        if self._page is not None and config.every is not None:
            folder.claim(PAGE_NAME)
            self._every = config.every
            self._version = _version(self._page)
            self._follower = Follower(folder.path, every=config.every)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Add the time of the block to a phase."""
        self._report_detail(f"{phase} begins")
        with self._status.phase(phase):
            yield
        self._report_detail(f"{phase} took {duration(self._status.seconds[phase])}")

    def refresh(self) -> None:
        """Save the times so far now and then, and print the path of the page once it exists; cheap."""
        self._status.refresh()
        if not self._is_announced and self._page is not None and _version(self._page) != self._version:
            self._is_announced = True
            self._report_line(f"report: {self._page}, rewritten every {self._every:g} s")

    def mark_interrupted(self, number: int) -> None:
        """Write that a signal has ended the run, before it has ended; called by signal handlers."""
        self._status.mark_interrupted(signal.Signals(number).name)

    def end(self, state: RunState, message: str = "", *, writes_page: bool = True) -> None:
        """Write the final state and the final page; their errors never end the run."""
        with self._status.phase(Phase.REPORT):
            self._status.end(state, " ".join(message.split()))
            is_written = writes_page and self._writes_page()
        self._report_line(_time_line(self._status.seconds))
        if state is not RunState.COMPLETED:
            self._report_line(f"resume: {program('train')} log_dir={shlex.quote(str(self._folder.path))} resume=true")
        if is_written:
            self._report_line(f"report: {self._page}")

    def _writes_page(self) -> bool:
        """Write the final page; return whether it is there."""
        if self._page is None:
            return False
        from gflownet.report.page import page_of, read_run  # the templates are not needed before

        try:
            page = page_of(read_run(self._folder.path))
            self.close()  # as late as possible: a kill before would leave an old page
            with locked_folder(self._folder.path):
                write_whole(self._page, page)
        except Exception as error:
            _log.warning("%s was not written: %s", self._page, " ".join(str(error).split()))
            return False
        return True

    def close(self) -> None:
        """End the process that rewrites the page."""
        if self._follower is not None:
            self._follower.stop()


@contextmanager
def recorded(
    folder: RunFolder,
    config: ReportConfig,
    *,
    stop: StopRequest,
    report_line: Callable[[str], None],
    report_detail: Callable[[str], None] = lambda text: None,
    plan: Mapping[str, Any] | None = None,
    start_seconds: float = 0.0,
) -> Iterator[RunRecord]:
    """Record the run in the block; `stop` is the signal that ends it. See RunRecord for the other arguments."""
    record = RunRecord(
        folder, config, report_line=report_line, report_detail=report_detail, plan=plan, start_seconds=start_seconds
    )
    stop.mark = record.mark_interrupted
    if stop.signal is not None:  # since the start of the run
        record.mark_interrupted(stop.signal)
    try:
        try:
            yield record
        except KeyboardInterrupt:  # a second Ctrl-C
            record.end(RunState.INTERRUPTED, signal.SIGINT.name, writes_page=False)
            raise
        except BaseException as error:
            if _is_closed_output(error):  # as in `gflownet train ... | head`
                record.end(RunState.INTERRUPTED, signal.SIGPIPE.name)
                raise
            record.end(RunState.FAILED, str(error) if isinstance(error, UserError) else _line(error))
            raise
        if stop.signal is None:
            record.end(RunState.COMPLETED)
        else:
            record.end(RunState.INTERRUPTED, signal.Signals(stop.signal).name)
    finally:
        record.close()


def _is_closed_output(error: BaseException) -> bool:
    """Return whether the reader of stdout has closed it; further output is discarded."""
    if isinstance(error, SystemExit):  # of rich, which discards the output
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, BrokenPipeError) and discard_output_without_reader()


def _time_line(seconds: Mapping[str, float]) -> str:
    """Return the seconds of a session, whole and by phase."""
    phases = [f"{phase} {duration(value)}" for phase, value in seconds.items() if value >= 0.5]
    return f"time: {duration(sum(seconds.values()))}" + (f" ({', '.join(phases)})" if len(phases) > 1 else "")


def _version(path: Path) -> int | None:
    """Return the time of the last write of a file, None without one."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
