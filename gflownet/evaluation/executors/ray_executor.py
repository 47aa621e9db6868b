"""The executor that runs jobs on a Ray cluster, as stateless tasks that reserve CPUs, GPUs and memory."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.execution import capped, lost_job
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.pool import PickledTask, pickled
from gflownet.evaluation.executors.ray_worker import Failed, evaluate_job
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.task import GFNTask

# Seconds for which the resources of the cluster are not requested again.
_CAPACITY_AGE_S = 1.0
_ADVICE = "or set evaluation.executor=inline"
_GIGABYTE = 10**9
# Seconds until an address must accept a connection, and until Ray must have connected: 2 s measured.
_CONNECT_TIMEOUT_S, _START_TIMEOUT_S = 5.0, 120.0
_ADDRESS_VARIABLE = "RAY_ADDRESS"  # read by Ray's own commands too
_CPU, _GPU, _MEMORY = "CPU", "GPU", "memory"  # Ray's names


@dataclass(frozen=True)
class JobResources:
    """The resources that Ray reserves for a job, on one machine."""

    amounts: Mapping[str, float]  # positive, by Ray's names, memory in bytes

    @classmethod
    def of(cls, config: EvaluationConfig) -> JobResources:
        """Return the resources in `evaluation.ray` and `evaluation.memory_limit`."""
        options = config.ray
        memory = 0 if config.memory_limit is None else int(config.memory_limit * _GIGABYTE)
        amounts = {_CPU: 1, _GPU: options.num_gpus, _MEMORY: memory, **options.resources}
        return cls({name: amount for name, amount in amounts.items() if amount})

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `ray.remote`."""
        amounts = dict(self.amounts)
        named = {"num_cpus": _CPU, "num_gpus": _GPU, "memory": _MEMORY}
        return {key: amounts.pop(name, 0) for key, name in named.items()} | {"resources": amounts}

    def num_places(self, node: Mapping[str, float]) -> int:
        """Return the number of jobs that fit on a machine at the same time."""
        return min(_num_times(amount, node.get(name, 0), name=name) for name, amount in self.amounts.items())

    def description(self, node: Mapping[str, float] | None = None) -> str:
        """Return the amounts in words, or those that a machine has of the same resources."""
        amounts = {name: (self.amounts if node is None else node).get(name, 0) for name in self.amounts}
        return ", ".join(
            f"{amount / _GIGABYTE:.3g} GB memory" if name == _MEMORY else f"{amount:g} {name}"
            for name, amount in amounts.items()
        )


class RayExecutor(Executor):
    """Runs each job in a worker process of a running Ray cluster."""

    def __init__(self, task: GFNTask, config: EvaluationConfig) -> None:
        """Pickle the task, and connect.

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
        self._resources = JobResources.of(config)
        self._address = checked_address(config.ray.address)
        own = [os.path.abspath(path) for path in sys.path if not path.startswith((sys.prefix, sys.base_prefix))]
        self._constants = {"memory_limit": config.memory_limit, "paths": own, "num_gpus": config.ray.num_gpus}
        self._task_id = hashlib.sha256(self._task.content).hexdigest()
        self._cluster: RayCluster | None = None
        self._reference: Any = None  # of the task, in Ray's store
        self._evaluate: Any = None
        self._running: dict[Handle, Any] = {}  # references to results
        self._remarks: set[str] = set()  # lines that the user has
        self._capacity, self._capacity_time = 0, -math.inf
        self._connected()

    @property
    def capacity(self) -> int:
        """The number of jobs that the cluster has resources for: it changes when machines join or leave."""
        cluster, now = self._connected(), time.monotonic()
        if now - self._capacity_time > _CAPACITY_AGE_S:
            places = sum(map(self._resources.num_places, cluster.nodes))
            self._capacity, self._capacity_time = max(1, places), now
        return self._capacity

    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        message = pickled(job, "candidates: expected graphs")
        self._connected()
        handle = Handle(job)
        self._running[handle] = self._evaluate.remote(
            [self._reference], self._task_id, message, deadline=deadline, **self._constants
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
        """Return the cluster, after connecting to it and sending it the task.

        Raises:
            UserError: Ray does not answer, or no machine of the cluster has the resources of a job.
        """
        if self._cluster is None:
            cluster = RayCluster(self._address)
            try:
                self._check_resources(cluster.nodes)
                # Retries are the dispatcher's. Ray would end a worker with a GPU after its first job: max_calls.
                options = {"max_retries": 0, "max_calls": 0, **self._resources.arguments}
                self._evaluate = self._ray.remote(**options)(evaluate_job)
            except BaseException:
                cluster.close()
                raise
            self._cluster = cluster
        if self._reference is None:
            self._reference = self._ray.put(self._task)
        return self._cluster

    def _check_resources(self, nodes: Collection[Mapping[str, float]]) -> None:
        """Raise UserError unless a machine of the cluster has the resources of a job, which would wait for ever."""
        if any(map(self._resources.num_places, nodes)):
            return
        offers = "; ".join(sorted({self._resources.description(node) for node in nodes})) or "no machine"
        raise UserError(
            f"evaluation.ray: expected a machine of the cluster with {self._resources.description()} for a candidate, "
            f"got {capped(offers, 500)}"
        )

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
            raise UserError(f"evaluation.executor=ray: {_line(error, -1)}") from None
        except exceptions.RayError as error:
            return _lose(handle, EvaluationStatus.CRASHED, error)
        if isinstance(reply, Failed):
            if not reply.is_lost:
                raise UserError(reply.error)
            self._reference = None  # sent again with the next job
            return _lose(handle, EvaluationStatus.CRASHED, RuntimeError(reply.error))
        if reply.remark and reply.remark not in self._remarks:
            self._remarks.add(reply.remark)
            self.notify(reply.remark)
        handle.outcomes, handle.num_finished = reply.outcomes, reply.num_finished
        return None


def _lose(handle: Handle, status: EvaluationStatus, error: Exception) -> None:
    outcome = Outcome(status, 0.0, error=f"its Ray worker was lost: {_line(error, 0)}", is_transient=True)
    handle.outcomes = lost_job(handle.job, outcome)


def _num_times(amount: float, available: float, *, name: str) -> int:
    """Return how often an amount of a resource is available; a fraction of a GPU lies on one GPU."""
    if name == _GPU and amount < 1:
        return int(available) * _num_times(amount, 1.0, name="")
    return math.floor(available / amount + 1e-6)  # Ray rounds to 1e-4


def _line(error: Exception, number: int) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return capped(lines[number], 500)


def import_ray() -> Any:
    """Return the module ray.

    Raises:
        UserError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"evaluation.executor=ray: expected Ray, got {error}; install it with pip install 'gflownet[ray]'"
        ) from None
    return ray


class RayCluster:
    """The connection of this process to a running Ray cluster."""

    def __init__(self, address: str) -> None:
        """Connect. A connection that this process already has is used, and left open by `close`.

        Raises:
            UserError: Ray is not installed, or the cluster does not answer or refuses this user.
        """
        self._ray = import_ray()
        self._is_ours = not self._ray.is_initialized()
        if not self._is_ours:
            return
        errors: list[Exception] = []

        def connect() -> None:
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                errors.append(error)
                with suppress(Exception):
                    self._ray.shutdown()

        # In the main thread ray.init() would turn a stop signal into an exit.
        thread = threading.Thread(target=connect, name="ray", daemon=True)
        with _kept_signal_handlers():
            thread.start()
            thread.join(_START_TIMEOUT_S)
        if thread.is_alive():
            raise UserError(f"evaluation.ray.address={address}: no answer from Ray within {_START_TIMEOUT_S:g} s")
        for error in errors:
            reason = capped(" ".join(f"{type(error).__name__}: {error}".split()), 500)
            raise UserError(
                f"evaluation.ray.address={address}: {reason}; a cluster with tokens expects its ~/.ray/auth_token here"
            )

    @property
    def nodes(self) -> list[dict[str, float]]:
        """The resources of each machine of the cluster at this time, by Ray's names: CPU, GPU, memory in bytes."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Disconnect; the cluster goes on. May be called twice."""
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()


def checked_address(address: str) -> str:
    """Return the address of an option or of RAY_ADDRESS: auto, or a HOST:PORT that accepts connections.

    Raises:
        UserError: there is none, it has another form, or nothing answers there.
    """
    place = "evaluation.ray.address" if address else _ADDRESS_VARIABLE
    address = address or os.environ.get(_ADDRESS_VARIABLE, "")
    if not address:
        raise UserError(
            "evaluation.executor=ray: expected a running cluster, got no evaluation.ray.address and no RAY_ADDRESS; "
            "start one on this machine with `ray start --head`, then set evaluation.ray.address=auto"
        )
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536 or "/" in host:
        raise UserError(f"{place}: expected HOST:PORT or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise UserError(f"{place}={address}: no Ray cluster answers there ({error})") from None
    return address


@contextmanager
def _kept_signal_handlers() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM afterwards: Ray's library replaces them."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    handlers = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for kind, handler in handlers.items():
                if handler is not None:
                    signal.signal(kind, handler)
