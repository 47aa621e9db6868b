"""The runs of a comparison, one after the other or in several processes, with their progress."""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from gflownet.cli.console import duration, print_line
from gflownet.cli.interrupts import StopRequest
from gflownet.comparison.plan import OUTPUT_HEADER, OUTPUT_NAME, Job, Plan, run
from gflownet.errors import UserError
from gflownet.files import parse_sealed
from gflownet.report.compared.record import RunRecord
from gflownet.report.compared.searches import Searches

_PRELOADED = ("gflownet.comparison.extraction",)
# Longest wait between two updates of the progress, seconds.
_UPDATE_EVERY_S = 0.5


@dataclass(frozen=True)
class _Result:
    is_finished: bool
    error: str | None = None  # of the user


@dataclass
class _Worker:
    """A process with the job that it runs."""

    process: BaseProcess
    connection: Connection
    job: Job | None = None

    def start(self, job: Job) -> None:
        """Send a job."""
        self.job = job
        self.connection.send(job)

    def result(self) -> _Result:
        """Return the result of the job; an error if the process has ended."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            return _Result(False, f"its process ended with exit status {code}; repeat the command to continue")


def run_in_turn(jobs: Sequence[Job], *, stop: StopRequest, update: Callable[[Sequence[Job], int], None]) -> bool:
    """Run the jobs in this process; return whether all are finished, False after a stop request.

    Args:
        jobs: in order.
        stop: checked before each job; a run stops by its own handler of signals.
        update: called with the running jobs and the number of finished ones.

    Raises:
        UserError: the first job that cannot be run.
    """
    for num_finished, job in enumerate(jobs):
        if stop.signal is not None:
            return False
        update([job], num_finished)
        with _naming(job), _output_of(job):
            is_finished = run(job)
        if not is_finished:
            return False
    update([], len(jobs))
    return True


def run_in_parallel(
    jobs: Sequence[Job], *, num_processes: int, stop: StopRequest, update: Callable[[Sequence[Job], int], None]
) -> bool:
    """Run the jobs in processes, each with one job at a time; arguments, result and errors as for `run_in_turn`."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    workers = [_start_worker(context) for _ in range(min(num_processes, len(jobs)))]
    try:
        return _distribute(deque(jobs), workers, stop=stop, update=update)
    finally:
        for worker in workers:
            worker.connection.close()  # ends the process
            worker.process.join()


def _distribute(
    waiting: deque[Job], workers: Sequence[_Worker], *, stop: StopRequest, update: Callable[[Sequence[Job], int], None]
) -> bool:
    """Give the waiting jobs to the workers until all are done, one failed, or after a stop request."""
    num_finished, errors, is_forwarded = 0, list[str](), False
    while True:
        is_ending = stop.signal is not None or bool(errors)
        for worker in workers:
            if worker.job is None and waiting and not is_ending:
                worker.start(waiting.popleft())
        running = [worker for worker in workers if worker.job is not None]
        update([worker.job for worker in running if worker.job is not None], num_finished)
        if not running:
            break
        if is_ending and not is_forwarded:
            is_forwarded = True
            for worker in running:
                os.kill(worker.process.pid or 0, signal.SIGINT)  # writes a checkpoint
        ready = connection.wait([worker.connection for worker in running], timeout=_UPDATE_EVERY_S)
        for worker in running:
            if worker.connection in ready and worker.job is not None:
                result, job, worker.job = worker.result(), worker.job, None
                num_finished += result.is_finished
                errors += [] if result.error is None else [f"{job.name}: {result.error}"]
    if errors:
        raise UserError(errors[0])
    return not waiting and stop.signal is None


def _start_worker(context: Any) -> _Worker:
    own_end, end = context.Pipe()
    process = context.Process(target=_serve, args=(end,))
    process.start()
    end.close()
    return _Worker(process, own_end)


def _serve(end: Connection) -> None:
    """Run jobs until the parent process closes the connection or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between two runs, and for the second signal
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(end, jobs), daemon=True).start()
    while True:
        job = jobs.get()
        try:
            with _output_of(job):
                result = _Result(run(job))
        except ValueError as error:
            result = _Result(False, str(error))
        end.send(result)


def _receive(end: Connection, jobs: queue.SimpleQueue[Job]) -> None:
    """Queue the jobs; end this process, whose run can be resumed, when the parent has ended."""
    try:
        while True:
            jobs.put(end.recv())
    except (EOFError, OSError):
        os._exit(0)


@contextmanager
def _output_of(job: Job) -> Iterator[None]:
    """Write the printed lines of a run, warnings included, to a file in its folder."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / OUTPUT_NAME).open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        if not file.tell():
            file.write(f"{OUTPUT_HEADER}{job.name}\n")
        root, handlers = logging.getLogger(), logging.getLogger().handlers
        root.handlers = [logging.StreamHandler(file)]
        try:
            yield
        finally:
            root.handlers = handlers
            sys.stdout.flush()


@contextmanager
def _naming(job: Job) -> Iterator[None]:
    """Add the name of the job to the errors of the user."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{job.name}: {error}") from None


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
    try:
        with (folder / _METRICS_NAME).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        return int(parse_sealed(lines[-1])["num_distinct"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return 0


def run_plan(plan: Plan, *, num_processes: int, console: Console, stop: StopRequest) -> Searches | None:
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
    return Searches(
        title=Path(plan.config).stem if plan.config else "defaults",
        num_evaluations=plan.num_evaluations,
        seeds=plan.seeds,
        records={label: [_finished(job) for job in seed_jobs] for label, seed_jobs in plan.jobs().items()},
        checkpoints=plan.checkpoints,
    )


def _run(jobs: Sequence[Job], num_jobs: int, *, num_processes: int, console: Console, stop: StopRequest) -> bool:
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
