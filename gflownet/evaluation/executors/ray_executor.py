"""The executor that runs jobs on a Ray cluster, as stateless tasks of one CPU each."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import sys
import time
from collections.abc import Collection
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.execution import capped, describe, lost_job
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.pool import PickledTask
from gflownet.evaluation.executors.ray_cluster import RayCluster, check_address, import_ray
from gflownet.evaluation.executors.ray_worker import Evaluated, Lost, evaluate_job
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.task import GFNTask

# Seconds for which the number of CPUs is not asked again.
_CAPACITY_AGE_S = 1.0
_ADVICE = "or set evaluation.executor=inline"


class RayExecutor(Executor):
    """Runs each job in a worker process of Ray, on this machine or another one."""

    def __init__(self, task: GFNTask, config: EvaluationConfig, *, num_cpus: int) -> None:
        """Pickle the task and check the address; Ray starts with the first job.

        Args:
            task: scores the candidates.
            config: address of the cluster, memory limit.
            num_cpus: of a cluster that is started on this machine.

        Raises:
            UserError: the task cannot be sent to another process, or Ray is not installed or does not answer.
        """
        self._ray = import_ray()
        self._task = PickledTask.of(task)
        if self._task.is_of_main_script:
            raise UserError(
                f"task {type(task).__name__}: expected a class that Ray's workers can import, got one of the main "
                f"script; move it to a module, {_ADVICE}"
            )
        self._address, self._num_cpus = config.ray.address, num_cpus
        check_address(self._address)
        self._constants = {"memory_limit": config.memory_limit, "paths": _module_folders()}
        self._task_id = hashlib.sha256(self._task.content).hexdigest()
        self._cluster: RayCluster | None = None
        self._reference: Any = None  # of the task, in Ray's store
        self._evaluate: Any = None
        self._running: dict[Handle, Any] = {}  # references to results
        self._capacity, self._capacity_time = 0, -math.inf

    @property
    def capacity(self) -> int:
        """The number of CPUs of the cluster: it changes when machines join or leave."""
        cluster, now = self._connected(), time.monotonic()
        if now - self._capacity_time > _CAPACITY_AGE_S:
            self._capacity, self._capacity_time = max(1, cluster.num_cpus), now
        return self._capacity

    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        try:
            pickled = pickle.dumps(job)
        except Exception as error:
            raise UserError(
                f"candidates: expected graphs that can be pickled: {describe(error)}; {_ADVICE[3:]}"
            ) from None
        self._connected()
        handle = Handle(job)
        self._running[handle] = self._evaluate.remote(
            [self._reference], self._task_id, pickled, deadline=deadline, **self._constants
        )
        return handle

    def wait(self, handles: Collection[Handle], *, timeout: float | None) -> list[Handle]:
        done = [handle for handle in handles if handle.outcomes is not None]
        running = {self._running[handle]: handle for handle in handles if handle in self._running}
        if not running:
            return done
        references = list(running)
        ready, rest = self._ray.wait(references, num_returns=1, timeout=0 if done else timeout)
        if ready and rest:
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ready:
            self._collect(running[reference])
        return [handle for handle in handles if handle.outcomes is not None]

    def cancel(self, handle: Handle) -> None:
        reference = self._running.pop(handle, None)
        if reference is not None:
            self._ray.cancel(reference, force=True)

    def close(self) -> None:
        for handle in list(self._running):
            self.cancel(handle)
        if self._cluster is not None:
            self._reference = self._evaluate = None
            self._cluster.close()

    def _connected(self) -> RayCluster:
        """Return the cluster, after starting or connecting to it and sending it the task.

        Raises:
            UserError: Ray does not start or answer.
        """
        if self._cluster is None:
            self._cluster = RayCluster(self._address, num_cpus=self._num_cpus)
            # Retries are the dispatcher's.
            self._evaluate = self._ray.remote(num_cpus=1, max_retries=0)(evaluate_job)
        if self._reference is None:
            self._reference = self._ray.put(self._task)
        return self._cluster

    def _collect(self, handle: Handle) -> None:
        """Set the outcomes of a finished job.

        Raises:
            UserError: a machine of the cluster cannot load this program or the task.
        """
        reference, exceptions = self._running.pop(handle), self._ray.exceptions
        try:
            reply = self._ray.get(reference)
        except exceptions.OutOfMemoryError as error:
            return _lose(handle, EvaluationStatus.OUT_OF_MEMORY, error)
        except (exceptions.RayTaskError, exceptions.RuntimeEnvSetupError) as error:  # not raised by the task's code
            if isinstance(getattr(error, "cause", None), exceptions.RayError):
                return _lose(handle, EvaluationStatus.CRASHED, error.cause)
            raise UserError(f"evaluation.executor=ray: {_last_line(error)}") from None
        except exceptions.RayError as error:
            return _lose(handle, EvaluationStatus.CRASHED, error)
        if isinstance(reply, Lost):
            self._reference = None  # sent again with the next job
            return _lose(handle, EvaluationStatus.CRASHED, RuntimeError(reply.error))
        if not isinstance(reply, Evaluated):
            raise UserError(reply.error)
        handle.outcomes, handle.num_finished = reply.outcomes, reply.num_finished
        handle.process_ended = reply.process_ended
        return None


def _lose(handle: Handle, status: EvaluationStatus, error: Exception) -> None:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    outcome = Outcome(status, 0.0, error=f"its Ray worker was lost: {capped(lines[0], 500)}", is_transient=True)
    handle.outcomes, handle.process_ended = lost_job(handle.job, outcome), True


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return capped(lines[-1], 500)


def _module_folders() -> list[str]:
    """Return the folders of sys.path that belong to the user, not to the Python installation."""
    return [os.path.abspath(path) for path in sys.path if not path.startswith((sys.prefix, sys.base_prefix))]
