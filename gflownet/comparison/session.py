"""The runs of a comparison, one after the other or in several processes, with their progress."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from multiprocessing import connection
from typing import TextIO

from rich.console import Console

from gflownet.cli.console import duration, print_line
from gflownet.cli.interrupts import StopRequest
from gflownet.comparison.plan import OUTPUT_HEADER, OUTPUT_NAME, Job, Plan, run
from gflownet.errors import UserError

# Maximum seconds until a stop request is passed on to the processes.
_CHECK_EVERY_S = 0.5


def run_plan(plan: Plan, *, num_processes: int, console: Console, stop: StopRequest) -> bool:
    """Run what is not finished; return whether all is, False after a stop request.

    Raises:
        UserError: a run that cannot be started or resumed, or a folder with a run of other options.
    """
    jobs, start = plan.jobs(), time.monotonic()
    open_jobs = [job for job in jobs if not job.is_finished()]
    num_before = num_finished = len(jobs) - len(open_jobs)
    in_processes = num_processes > 1 and len(open_jobs) > 1
    for job in _in_parallel(open_jobs, num_processes, stop) if in_processes else _in_turn(open_jobs, stop):
        num_finished += 1
        elapsed = time.monotonic() - start
        left = elapsed / (num_finished - num_before) * (len(jobs) - num_finished)
        text = f"{num_finished}/{len(jobs)} runs | {duration(elapsed)} | left {duration(left)} | {job.name}"
        print_line(console, text)
    if num_finished < len(jobs):
        print_line(console, f"{num_finished} of {len(jobs)} runs are finished; repeat the command to continue")
    return num_finished == len(jobs)


def _in_turn(jobs: Sequence[Job], stop: StopRequest) -> Iterator[Job]:
    """Run jobs in this process and yield each when it is finished, until a stop request."""
    for job in jobs:
        if stop.signal is not None or not _run(job):
            return
        yield job


def _in_parallel(jobs: Sequence[Job], num_processes: int, stop: StopRequest) -> Iterator[Job]:
    """Run jobs in processes and yield each when it is finished, until a stop request or an error.

    A stop request interrupts the running jobs, which write their checkpoints.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gflownet.run.trainer"])
    waiting, running, errors, is_passed_on = deque(jobs), dict[Future[bool], Job](), list[UserError](), False
    with ProcessPoolExecutor(min(num_processes, len(jobs)), context, _end_with_parent) as pool:
        while True:
            is_ending = stop.signal is not None or bool(errors)
            while waiting and len(running) < num_processes and not is_ending:
                job = waiting.popleft()
                running[pool.submit(_run, job)] = job
            if not running:
                break
            if is_ending and not is_passed_on:
                is_passed_on = True
                for process in multiprocessing.active_children():
                    os.kill(process.pid or 0, signal.SIGINT)
            for future in wait(running, timeout=_CHECK_EVERY_S, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                try:
                    if future.result():
                        yield job
                except BrokenProcessPool:
                    errors.append(UserError(f"{job.name}: its process was killed; repeat the command to continue"))
                except UserError as error:
                    errors.append(error)
    if errors:
        raise errors[0]


def _end_with_parent() -> None:
    """Prepare a process: interrupts are only for its runs, and it ends with its parent; its run can be resumed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        connection.wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()


def _run(job: Job) -> bool:
    """Run a job, its printed lines and warnings into a file of its folder; return whether it is finished."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / OUTPUT_NAME).open("a", encoding="utf-8") as file, _output_to(file):
        if not file.tell():
            file.write(f"{OUTPUT_HEADER}{job.name}\n")
        try:
            return run(job)
        except ValueError as error:
            raise UserError(f"{job.name}: {error}") from None


@contextmanager
def _output_to(file: TextIO) -> Iterator[None]:
    """Print into a file, warnings too."""
    root, handlers = logging.getLogger(), logging.getLogger().handlers
    root.handlers = [logging.StreamHandler(file)]
    try:
        with redirect_stdout(file), redirect_stderr(file):
            yield
    finally:
        root.handlers = handlers
        sys.stdout.flush()
