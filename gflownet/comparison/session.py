"""Run or read all runs of a comparison."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from gflownet.comparison.plan import Plan
from gflownet.comparison.processes import run_in_parallel, run_in_turn
from gflownet.comparison.record import RunRecord
from gflownet.comparison.result import Comparison
from gflownet.comparison.runs import Job
from gflownet.errors import UserError
from gflownet.terminal.console import duration, print_line
from gflownet.terminal.interrupts import StopRequest

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


def run_plan(plan: Plan, *, num_processes: int, console: Console, stop: StopRequest) -> Comparison | None:
    """Run what is not finished, and return the comparison; None after a stop request.

    Raises:
        UserError: a run that cannot be started or resumed, or a folder with a run of other options.
    """
    jobs = [job for seed_jobs in zip(*plan.jobs().values(), strict=True) for job in seed_jobs]
    open_jobs = [job for job in jobs if job.record() is None]
    if not _run(open_jobs, len(jobs), num_processes=num_processes, console=console, stop=stop):
        num_left = sum(job.record() is None for job in open_jobs)
        print_line(console, f"{len(jobs) - num_left} of {len(jobs)} runs are finished; repeat the command to continue")
        return None
    return Comparison(
        title=Path(plan.config).stem if plan.config else "defaults",
        num_evaluations=plan.num_evaluations,
        seeds=plan.seeds,
        records={label: [_finished(job) for job in seed_jobs] for label, seed_jobs in plan.jobs().items()},
        checkpoints=plan.checkpoints,
    )


def _run(jobs: Sequence[Job], num_jobs: int, *, num_processes: int, console: Console, stop: StopRequest) -> bool:
    """Run the jobs; return whether all are finished."""
    if not jobs:
        return True
    with RunProgress(jobs, num_before=num_jobs - len(jobs), console=console) as progress:
        if num_processes == 1 or len(jobs) == 1:
            return run_in_turn(jobs, stop=stop, update=progress.update)
        return run_in_parallel(jobs, num_processes=num_processes, stop=stop, update=progress.update)


def _finished(job: Job) -> RunRecord:
    record = job.record()
    if record is None:
        raise UserError(f"{job.folder}: expected the record of a finished run, got none")
    return record
