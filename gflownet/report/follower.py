"""Name and mark of report.html, and the process that rewrites it while a run goes on, and once more after a kill.

`Follower` starts it from the process of the run; `main` is the process. It waits with the standard library alone, takes
the lowest priority, and ends with the run: its stdin is a pipe whose other end only the run holds.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PAGE_NAME = "report.html"
# In the first bytes of every page, see templates/base.html.j2.
GENERATOR = b'<meta name="generator" content="gflownet">'
_HEAD_BYTES = 4_096


def is_own_page(path: Path) -> bool:
    """Return whether a file is a page that gflownet has written."""
    with path.open("rb") as file:
        return GENERATOR in file.read(_HEAD_BYTES)


# Time until the first page, seconds: shorter runs render only at their end.
FIRST_PAGE_S = 5.0
# Maximum share of one CPU core: a page that takes long to render is written less often.
MAX_CPU_SHARE = 0.05
# Interval in seconds of the check for the end of the run's process; forked children may keep its end of the pipe open.
_CHECK_EVERY_S = 2.0
# Maximum wait in seconds between the end of the pipe and of the process.
_EXIT_WAIT_S = 10.0
_LOWEST_PRIORITY = 19
_log = logging.getLogger(__name__)


class Follower:
    """The process that rewrites the page of a run, seen from the run."""

    def __init__(self, folder: Path, *, every: float) -> None:
        """Start the process.

        Args:
            folder: run folder.
            every: seconds between two pages; 0: only after a kill.
        """
        self._process: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-P", "-m", __name__, str(folder.resolve()), str(every), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # no signals of the terminal
            )
        except OSError as error:
            _log.warning("%s: no report during the run (%s)", folder, error.strerror or error)

    def stop(self) -> None:
        """End the process without a last page."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the page until the run ends; return the exit status.

    Arguments: run folder, seconds between two pages, process id of the run.
    """
    name, every, run_process = sys.argv[1:] if argv is None else argv
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the end of the run is the only reason to end
        signal.signal(kind, signal.SIG_IGN)
    os.nice(_LOWEST_PRIORITY)
    follow(Path(name), every=float(every), run_process=int(run_process))
    return 0


def follow(folder: Path, *, every: float, run_process: int) -> None:
    """Write the page every `every` seconds if the folder has changed, and when the process of the run has ended."""
    pause, last_change = min(every, FIRST_PAGE_S), None
    while not _ends_within(pause if every else None, run_process):
        pause, change = every, _last_change(folder)
        if change != last_change:
            pause = max(every, _cpu_seconds(lambda: _write_page(folder, run_process)) / MAX_CPU_SHARE)
            last_change = change
    deadline = time.monotonic() + _EXIT_WAIT_S
    while os.getppid() == run_process and time.monotonic() < deadline:  # the state of the run is that of its process
        time.sleep(0.01)
    _write_page(folder, run_process)


def _ends_within(seconds: float | None, run_process: int) -> bool:
    """Wait, and return early with True if the process of the run ends; None: wait until then."""
    start = time.monotonic()
    while True:
        left = _CHECK_EVERY_S if seconds is None else start + seconds - time.monotonic()
        if select.select([sys.stdin], [], [], max(0.0, min(left, _CHECK_EVERY_S)))[0] or os.getppid() != run_process:
            return True
        if left <= 0:
            return False


def _last_change(folder: Path) -> int:
    """Return the time of the last change of a file of the run, in nanoseconds."""
    times = [0]
    for entry in os.scandir(folder):
        if entry.is_file() and not entry.name.startswith(PAGE_NAME):
            with suppress(OSError):  # a temporary file
                times.append(entry.stat().st_mtime_ns)
    return max(times)


def _write_page(folder: Path, run_process: int) -> None:
    """Write the page, unless another process has taken the folder.

    An error leaves the earlier page; the run meets the same error at its end and reports it.
    """
    from gflownet.files import locked_folder, write_whole
    from gflownet.records.status import read_status
    from gflownet.report.page import page_of, read_run

    with suppress(Exception):
        page = page_of(read_run(folder))
        status = read_status(folder)
        if status is not None and status.sessions[-1].pid == run_process:
            with locked_folder(folder):
                write_whole(folder / PAGE_NAME, page)


def _cpu_seconds(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
