"""Run or read all runs of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gflownet.comparison.plan import Plan
from gflownet.comparison.processes import run_in_parallel, run_in_turn
from gflownet.comparison.progress import RunProgress
from gflownet.comparison.record import RunRecord
from gflownet.comparison.result import Comparison
from gflownet.comparison.runs import Job
from gflownet.console import print_line
from gflownet.errors import UserError
from gflownet.interrupts import StopRequest


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
