"""Progress of a comparison: a line that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from gflownet.comparison.runs import Job
from gflownet.console import duration, print_line

_METRICS_NAME = "metrics.jsonl"
_TAIL_BYTES = 4_096
# Seconds between two plain lines.
_LINE_EVERY_S = 30.0


class RunProgress:
    """Shows finished runs, evaluations and the time left. A context manager that restores the terminal."""

    def __init__(
        self, jobs: Sequence[Job], *, num_before: int, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the clock.

        Args:
            jobs: to run.
            num_before: runs that were finished before.
            console: prints.
            now: clock, seconds.
        """
        self._num_evaluations = sum(job.num_evaluations for job in jobs)
        self._size = jobs[0].num_evaluations if jobs else 0
        self._num_runs, self._num_before = len(jobs) + num_before, num_before
        self._console, self._now, self._start, self._shown = console, now, now(), now()
        self._done_before = sum(_num_evaluated(job.folder) for job in jobs)
        self._status = Status("", console=console) if console.is_terminal else None

    def update(self, running: Sequence[Job], num_finished: int) -> None:
        """Show the state: the running jobs, and the number of jobs that are finished."""
        num = num_finished * self._size + sum(min(_num_evaluated(job.folder), self._size) for job in running)
        elapsed = self._now() - self._start
        new = num - self._done_before
        left = duration(elapsed / new * (self._num_evaluations - num)) if new > 0 else "-"
        names = f" | {', '.join(job.name for job in running)}" if running else ""
        text = f"{num_finished + self._num_before}/{self._num_runs} runs | {duration(elapsed)} | left {left}{names}"
        if self._status is not None:
            self._status.update(text)
        elif self._now() - self._shown >= _LINE_EVERY_S or num_finished + self._num_before == self._num_runs:
            self._shown = self._now()
            print_line(self._console, text)

    def __enter__(self) -> RunProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


def _num_evaluated(folder: Path) -> int:
    """Return the number of new evaluations in the last row of a run's metrics, 0 without one."""
    try:
        with (folder / _METRICS_NAME).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        return int(json.loads(lines[-1])["num_distinct"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return 0
