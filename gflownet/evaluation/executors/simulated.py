"""The executor of simulated time: candidates are evaluated at once, and their results wait for a simulated clock.

A discrete-event simulation of a pool: jobs start in the order of their submission on the first free worker, a candidate
takes `GFNTask.simulated_seconds`, and results arrive in the order of their simulated ends. Nothing depends on the speed
of the machine, so that two runs of one seed are equal, asynchronous ones too. Searching and learning take no simulated
time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import starmap

from gflownet.errors import UserError
from gflownet.evaluation.execution import failure, lost_job, restored
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.task import GFNTask


@dataclass(eq=False)
class _Run:
    """A job on a simulated worker, or in the queue."""

    handle: Handle
    durations: tuple[float | Exception, ...]  # simulated seconds of each candidate, or the reason why there are none
    deadline: float  # seconds per candidate, inf without one
    end: float = math.inf  # simulated time

    @property
    def num_in_time(self) -> int:
        """Return the number of candidates before the first one that exceeds the deadline."""
        return next((i for i, each in enumerate(self.seconds) if each > self.deadline), len(self.durations))

    @property
    def seconds(self) -> tuple[float, ...]:
        """Return the simulated seconds of each candidate, 0 where there are none."""
        return tuple(0.0 if isinstance(each, Exception) else each for each in self.durations)

    @property
    def total(self) -> float:
        """Return the simulated seconds of the job, which ends with the first candidate over the deadline."""
        late = self.deadline if self.num_in_time < len(self.durations) else 0.0
        return math.fsum(self.seconds[: self.num_in_time]) + late


class SimulatedExecutor(Executor):
    """Simulates `capacity` workers in which a training takes the seconds that the task declares.

    Timeouts of `wait` are simulated seconds, too: they pass at once.
    """

    isolates = False

    def __init__(self, task: GFNTask, *, capacity: int) -> None:
        """Keep the task. Raises UserError for a task without `simulated_seconds`."""
        if type(task).simulated_seconds is GFNTask.simulated_seconds:
            raise UserError(
                "evaluation.executor=simulated: expected a task with simulated_seconds, such as cells or catalogue, "
                f"got {type(task).__name__}"
            )
        self._task, self._capacity = task, capacity
        self._inline = InlineExecutor(task)
        self._time = 0.0
        self._running: list[_Run] = []  # in the order of their starts
        self._queue: deque[_Run] = deque()

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def simulated_clock(self) -> Callable[[], float]:
        return self.now

    def now(self) -> float:
        """Return the simulated time in seconds, 0 at first."""
        return self._time

    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        handle = Handle(job)
        handle.backend = _Run(handle, self._durations(job), math.inf if deadline is None else deadline)
        self._queue.append(handle.backend)
        self._start_queued()
        return handle

    def wait(self, handles: Collection[Handle], *, timeout: float | None) -> list[Handle]:
        limit = math.inf if timeout is None else self._time + timeout
        while not (done := [handle for handle in handles if handle.outcomes is not None]):
            run = min(self._running, key=lambda run: run.end, default=None)
            if run is None or run.end > limit:
                if math.isfinite(limit):
                    self._time = max(self._time, limit)
                return []
            self._time = max(self._time, run.end)
            self._finish(run)
        return done

    def cancel(self, handle: Handle) -> None:
        self._running = [run for run in self._running if run.handle is not handle]
        self._queue = deque(run for run in self._queue if run.handle is not handle)
        self._start_queued()

    def interrupt(self) -> None:
        self._inline.interrupt()

    def close(self) -> None:
        self._running, self._queue = [], deque()

    def _start_queued(self) -> None:
        while self._queue and len(self._running) < self._capacity:
            run = self._queue.popleft()
            run.end = self._time + run.total
            self._running.append(run)

    def _finish(self, run: _Run) -> None:
        """Evaluate the candidates of a job whose simulated end has come; its worker starts the next job."""
        self._running.remove(run)
        handle, job, num = run.handle, run.handle.job, run.num_in_time
        outcomes = list[Outcome]()
        if num:
            first = {name: getattr(job, name)[:num] for name in ("candidates", "seeds", "trainings")}
            parts = Handle(replace(job, **first))
            try:
                self._inline.wait([parts], timeout=None)
            finally:  # an interrupted job has the outcomes of its first candidates
                outcomes += starmap(_with_duration, zip(parts.outcomes or (), run.durations, strict=False))
                handle.outcomes, handle.num_finished = tuple(outcomes), parts.num_finished
        if handle.num_finished < len(job.candidates):
            error = f"expected a result within {run.deadline:g} s"
            late = Outcome(EvaluationStatus.TIMEOUT, run.total, error=error, is_transient=False)
            lost = outcomes[-1] if handle.num_finished < num else late
            handle.outcomes = lost_job(job, lost, finished=outcomes[: handle.num_finished])
            handle.process_ended = True
        self._start_queued()

    def _durations(self, job: Job) -> tuple[float | Exception, ...]:
        """Return the simulated seconds of each candidate, or the exception that its task raised."""
        durations: list[float | Exception] = []
        for candidate, training in zip(job.candidates, job.trainings or (None,) * len(job.candidates), strict=True):
            try:
                seconds = self._task.simulated_seconds(candidate, fidelity=job.fidelity, state=restored(training))
                if not (math.isfinite(seconds) and seconds >= 0):
                    raise ValueError(f"simulated_seconds: expected a finite number >= 0, got {seconds}")
                durations.append(float(seconds))
            except Exception as error:  # raised by the user's task
                durations.append(error)
        return tuple(durations)


def _with_duration(outcome: Outcome, duration: float | Exception) -> Outcome:
    """Return an outcome with its simulated seconds; a candidate without any has failed."""
    if not isinstance(duration, Exception):
        return replace(outcome, seconds=duration)
    is_ok = outcome.status is EvaluationStatus.OK
    return failure(duration, 0.0) if is_ok else replace(outcome, seconds=0.0)
