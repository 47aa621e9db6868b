"""The executor that runs jobs on a Ray cluster, as stateless tasks of one CPU each."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.execution import capped, describe
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.ray_cluster import RayCluster, import_ray
from gflownet.evaluation.executors.ray_worker import Refused, Started, evaluate_job
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.task import GFNTask

# Seconds for which the number of CPUs is not asked again.
_CAPACITY_AGE_S = 1.0


@dataclass
class _Running:
    """A job at Ray."""

    stream: Any  # of the messages of its worker
    deadline: float  # seconds from its start, infinity for none
    started: Started | None = None
    start: float = math.nan  # time.monotonic() of the report of its start

    @property
    def end(self) -> float:
        """The time.monotonic() of its deadline, infinity before its start."""
        return math.inf if self.started is None else self.start + self.deadline


class RayExecutor(Executor):
    """Runs each job in a worker process of Ray, on this machine or another one.

    A deadline counts from the worker's report of its start; it is enforced while `wait` runs.
    """

    def __init__(self, task: GFNTask, config: EvaluationConfig, *, num_cpus: int) -> None:
        """Start or connect to Ray, and send it the task.

        Args:
            task: scores the candidates.
            config: address of the cluster.
            num_cpus: of a cluster that is started on this machine.

        Raises:
            UserError: the task cannot be pickled, or Ray is not installed or does not start or answer.
        """
        pickled = _pickled(task, f"task {type(task).__name__}")
        self._ray = import_ray()
        self._cluster = RayCluster(config.ray.address, num_cpus=num_cpus)
        self._task = self._ray.put(pickled)
        self._task_id = hashlib.sha256(pickled).hexdigest()
        options = {"num_cpus": 1, "max_retries": 0, "num_returns": "streaming"}
        self._evaluate = self._ray.remote(**options)(evaluate_job)
        self._paths = [os.path.abspath(path) for path in sys.path if not path.startswith((sys.prefix, sys.base_prefix))]
        self._running: dict[Handle, _Running] = {}
        self._capacity, self._capacity_time = 0, -math.inf

    @property
    def capacity(self) -> int:
        """The number of CPUs of the cluster: it changes when machines join or leave."""
        now = time.monotonic()
        if now - self._capacity_time > _CAPACITY_AGE_S:
            self._capacity, self._capacity_time = max(1, self._cluster.num_cpus), now
        return self._capacity

    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        pickled = _pickled(job, "candidates")
        stream = self._evaluate.remote([self._task], self._task_id, pickled, paths=self._paths)
        handle = Handle(job)
        self._running[handle] = _Running(stream, math.inf if deadline is None else deadline)
        return handle

    def wait(self, handles: Collection[Handle], *, timeout: float | None) -> list[Handle]:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            done = [handle for handle in handles if handle.outcomes is not None]
            remaining = end - time.monotonic()
            if done or (remaining <= 0 and timeout != 0):
                return done
            self._advance(max(0.0, remaining))
            if timeout == 0:
                return [handle for handle in handles if handle.outcomes is not None]

    def cancel(self, handle: Handle) -> None:
        running = self._running.pop(handle, None)
        if running is not None:
            self._ray.cancel(running.stream, force=True)

    def close(self) -> None:
        for handle in list(self._running):
            self.cancel(handle)
        self._cluster.close()

    def _advance(self, timeout: float) -> None:
        """Read the messages of workers, waiting for one until the timeout or the next deadline; end late jobs."""
        if not self._running:
            time.sleep(min(timeout, _CAPACITY_AGE_S))
            return
        handles = {running.stream: handle for handle, running in self._running.items()}
        streams = list(handles)
        next_deadline = min(running.end for running in self._running.values()) - time.monotonic()
        timeout = max(0.0, min(timeout, next_deadline))
        ready, _ = self._ray.wait(streams, num_returns=1, timeout=None if math.isinf(timeout) else timeout)
        if ready:
            ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0)
        for stream in ready:
            self._read(handles[stream])
        now = time.monotonic()
        for handle, running in list(self._running.items()):
            if now >= running.end and running.stream not in ready:
                self._expire(handle)

    def _read(self, handle: Handle) -> None:
        """Read the next message of a job's worker."""
        running = self._running[handle]
        exceptions = self._ray.exceptions
        try:
            message = self._ray.get(next(running.stream))
        except exceptions.OutOfMemoryError as error:
            return self._end(handle, EvaluationStatus.OUT_OF_MEMORY, _first_line(error))
        except exceptions.RayTaskError as error:  # raised in the worker, outside of the task's code
            self.cancel(handle)
            raise UserError(f"Ray worker: {_first_line(error.cause or error)}") from None
        except (exceptions.RayError, StopIteration) as error:
            return self._end(handle, EvaluationStatus.CRASHED, _first_line(error))
        if isinstance(message, Started):
            running.started, running.start = message, time.monotonic()
        elif isinstance(message, Refused):
            del self._running[handle]
            raise UserError(f"task: cannot be loaded by a Ray worker: {message.error}")
        else:
            del self._running[handle]
            handle.outcomes = message
        return None

    def _expire(self, handle: Handle) -> None:
        """End a job that runs for longer than its deadline."""
        running = self._running[handle]
        self._ray.cancel(running.stream, force=True)
        self._end(handle, EvaluationStatus.TIMEOUT, f"ended at the deadline of {running.deadline:g} s")

    def _end(self, handle: Handle, status: EvaluationStatus, reason: str) -> None:
        """Give all candidates of a job the same outcome: their process is lost."""
        running = self._running.pop(handle)
        seconds = 0.0 if math.isnan(running.start) else time.monotonic() - running.start
        place = "" if running.started is None else f" (process {running.started.pid} on {running.started.host})"
        outcome = Outcome(status, seconds, error=f"{reason}{place}", is_transient=True)
        handle.outcomes = (outcome,) * len(handle.job.candidates)
        handle.process_ended = True


def _pickled(value: Any, name: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise UserError(f"{name}: cannot be sent to a Ray worker: {describe(error)}") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return capped(lines[0], 500)
