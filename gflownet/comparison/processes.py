"""The runs of a comparison, one after the other or in several processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from gflownet.comparison.runs import OUTPUT_HEADER, OUTPUT_NAME, Job, run
from gflownet.errors import UserError
from gflownet.terminal.interrupts import StopRequest

_PRELOADED = ("gflownet.comparison.extraction",)
# Longest wait between two updates of the progress, seconds.
_UPDATE_EVERY_S = 0.5


@dataclass(frozen=True)
class _Result:
    """The end of a job in a process."""

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
