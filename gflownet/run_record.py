"""The record of a run while it goes on: status.json, and report.html at its end, also after an error."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gflownet.config import ReportConfig
from gflownet.errors import UserError
from gflownet.interrupts import StopRequest
from gflownet.run.folder import RunFolder
from gflownet.run_status import RunState, StatusLog

_log = logging.getLogger(__name__)


@contextmanager
def recorded(
    folder: RunFolder, config: ReportConfig, *, stop: StopRequest, report_line: Callable[[str], None]
) -> Iterator[StatusLog]:
    """Record the state of the run in the block, and write its report page at the end.

    Args:
        folder: of the run.
        config: options of the page.
        stop: signal that stops the run.
        report_line: prints the path of the page.
    """
    status = StatusLog(folder.path, resumed=folder.resumed, write=folder.write)
    try:
        yield status
    except BaseException as error:
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        status.end(RunState.FAILED, " ".join(text.split()))
        _write_page(folder, config)
        raise
    if stop.signal is None:
        status.end(RunState.COMPLETED)
    else:
        status.end(RunState.INTERRUPTED, signal.Signals(stop.signal).name)
    if _write_page(folder, config):
        from gflownet.report.page import PAGE_NAME

        report_line(f"report: {folder.path / PAGE_NAME}")


def _write_page(folder: RunFolder, config: ReportConfig) -> bool:
    """Write the report page; return whether it was written. An error is logged and never ends the run."""
    if config.every is None:
        return False
    from gflownet.report.page import PAGE_NAME, page_of, read_run  # jinja2 is not needed before

    try:
        folder.write(folder.path / PAGE_NAME, page_of(read_run(folder.path)))
    except Exception as error:
        _log.warning("%s was not written: %s", folder.path / PAGE_NAME, " ".join(str(error).split()))
        return False
    return True
