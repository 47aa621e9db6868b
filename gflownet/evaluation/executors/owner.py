"""The owner of a pool's workers: a process that loads the task once, forks a worker per job on a core and a lasting one
per slot of a device, and ends them at their limits.

No candidate runs in it, so it survives every end of a worker; it adopts and ends what candidates leave behind.
"""

from __future__ import annotations

import gc
import importlib
import io
import math
import os
import pickle
import re
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy.random  # noqa: F401, otherwise imported by every fork: 12 ms
import threadpoolctl
import torch

from gflownet.errors import UserError
from gflownet.evaluation.execution import capped, describe
from gflownet.evaluation.executors.machine import num_kills_without_memory
from gflownet.evaluation.executors.worker import (
    MessageKind,
    PoolSettings,
    adopt_orphans,
    end_descendants,
    memory_of,
    work,
)
from gflownet.evaluation.job import EvaluationStatus, Outcome
from gflownet.evaluation.store.fingerprint import code_digest, modules_of, project_modules
from gflownet.evaluation.task import GFNTask

# Time for a worker to be ready, or to end after its job, seconds; it is not part of a deadline.
START_LIMIT_S = 120.0
# Processes in a row that may end, or lose their device, before they are ready.
MAX_LOST_STARTS = 3
# Bytes of output kept for the error text of a crash.
MAX_TAIL = 3_500
_READ_SIZE = 1 << 16
# Time between two looks at limits, and at ends that a connection does not show: a candidate's program may hold it open.
_LOOK_EVERY_S = 0.1
# Longest wait for the rest of a message, seconds and microseconds: a candidate may write into any open file.
_MESSAGE_LIMIT = struct.pack("ll", 5, 0)
# The first optimiser of torch.optim in a process imports this module: a second or more.
_OPTIMISER_MODULE = "torch._dynamo"
_OPTIMISER = re.compile(r"\boptim\b")


class Order(NamedTuple):
    """A job for the pool, or the end of one."""

    number: int
    job: bytes | None  # pickled; None: end the job of this number
    deadline: float | None = None  # seconds per outcome


class _Loader(pickle.Unpickler):
    """Unpickles an object, and keeps the names of the modules whose classes and functions it refers to."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        self.modules.add(module_name)
        return super().find_class(module_name, global_name)


def own(settings: PoolSettings, main: Connection) -> NoReturn:
    """Serve a pool until its main process ends, or ends this one. The target of a new process.

    A reply is the number of a job, -1 for none, with the kind and the content of a message.
    """
    try:
        task = _loaded(settings)
    except Exception as error:
        main.send((-1, MessageKind.REFUSED, str(error) if isinstance(error, UserError) else describe(error)))
        os._exit(0)
    signal.setitimer(signal.ITIMER_REAL, 0.0)  # from now on the connection shows the end of the main process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    gc.collect()
    gc.freeze()  # a collection in a fork would write into all shared pages
    adopt_orphans()
    try:
        main.send((-1, MessageKind.READY, None))
        Owner(task, settings, main).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the main process has ended
    except Exception:
        traceback.print_exc()
    finally:
        end_descendants()
        os._exit(0)


def _loaded(settings: PoolSettings) -> GFNTask:
    """Return the task, ready to be copied by forks.

    Raises:
        UserError: its code is not that of the main process, or it starts threads or uses a GPU, which a fork lacks.
    """
    loader = _Loader(io.BytesIO(settings.task))
    task = loader.load()
    name = type(task).__name__
    modules = modules_of(type(task))
    if code_digest(modules) != settings.source:
        raise UserError(f"the code of task {name} changed during the run; resume=true scores with the new code")
    if _names_optimisers(modules | project_modules(filter(_is_of_user, loader.modules))):  # also of held functions
        importlib.import_module(_OPTIMISER_MODULE)
    threadpoolctl.threadpool_limits(1)
    torch.set_num_threads(1)
    if settings.warms_up_once:
        try:
            task.warm_up()
        except Exception as error:
            raise UserError(f"{name}.warm_up: {describe(error)}") from None
    if threading.active_count() > 1 or torch.cuda.is_initialized():
        wrong = "CUDA in use" if torch.cuda.is_initialized() else threading.enumerate()[-1].name
        raise UserError(
            f"task {name}: expected imports and a warm_up that start no threads and use no GPU, got {wrong}; start "
            "them in evaluate"
        )
    return task


def _names_optimisers(modules: Mapping[str, Path]) -> bool:
    """Return whether a module of the user names torch.optim."""
    users = [path for module, path in modules.items() if _is_of_user(module)]
    return any(_OPTIMISER.search(path.read_text(errors="replace")) for path in users)


def _is_of_user(module: str) -> bool:
    return not module.startswith(("gflownet.", "tasks."))


def end_of(code: int) -> str:
    """Return an exit status, negative for a signal, in words."""
    return f"exited with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


@dataclass(eq=False)
class _Worker:
    """A worker process: it starts, runs its job or ends; on a device, it may wait for another one."""

    slot: int
    pid: int
    connection: Connection
    output: int
    job: Order | None
    is_ready: bool = False  # for a job, or runs it
    start: float = field(default_factory=time.monotonic)  # of the process, then of the job
    end: float = field(default_factory=lambda: time.monotonic() + START_LIMIT_S)  # of its time for the next message
    tail: bytes = b""
    num_kills: int = 0

    def begin(self, job: Order) -> None:
        """Send a job."""
        while self.read_output():  # of an earlier job
            pass
        self.is_ready, self.job, self.start, self.tail = True, job, time.monotonic(), b""
        self.num_kills = num_kills_without_memory()
        self.renew()
        with suppress(OSError):  # its end, or its deadline, is noticed later
            self.connection.send_bytes(job.job or b"")

    def renew(self) -> None:
        """Start the time for the next message of the job."""
        assert self.job is not None
        self.end = time.monotonic() + (math.inf if self.job.deadline is None else self.job.deadline)

    def read_output(self) -> bool:
        """Keep the last output; return whether there was any."""
        try:
            text = os.read(self.output, _READ_SIZE)
        except BlockingIOError:
            return False
        self.tail = (self.tail + text)[-MAX_TAIL:]
        return bool(text)

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Owner:
    """Gives the jobs of the main process to workers, one per slot, and replaces those that end."""

    def __init__(self, task: GFNTask, settings: PoolSettings, main: Connection) -> None:
        """Start no worker: each starts with a job."""
        self._task, self._settings, self._main = task, settings, main
        self._jobs: deque[Order] = deque()
        self._workers: list[_Worker] = []
        self._lost_starts: Counter[int] = Counter()  # by slot, in a row
        self._lost_slots: set[int] = set()

    def run(self) -> None:
        """Serve until the main process closes its connection. Raises EOFError then."""
        while True:
            self._give_jobs()
            sources = (source for worker in self._workers for source in (worker.connection, worker.output))
            ready = wait([self._main, *sources], _LOOK_EVERY_S if self._workers else None)
            if self._main in ready:
                self._take(self._main.recv())
            for worker in list(self._workers):
                if worker.output in ready:
                    worker.read_output()
                self._receive(worker)
                if worker in self._workers:
                    self._check(worker)

    def _take(self, order: Order) -> None:
        if order.job is not None:
            self._jobs.append(order)
            return
        self._jobs = deque(each for each in self._jobs if each.number != order.number)
        for worker in list(self._workers):
            if worker.job is not None and worker.job.number == order.number:
                self._end(worker)

    def _give_jobs(self) -> None:
        """Give waiting jobs to idle workers, then to new ones on free slots."""
        for worker in self._workers:
            if self._jobs and worker.is_ready and worker.job is None:
                self._begin(worker, self._jobs.popleft())
        used = self._lost_slots | {worker.slot for worker in self._workers}
        for slot in range(len(self._settings.slots)):
            if self._jobs and slot not in used:
                self._start(slot, self._jobs.popleft())

    def _begin(self, worker: _Worker, job: Order) -> None:
        worker.begin(job)
        self._main.send((job.number, MessageKind.STARTED, None))

    def _start(self, slot: int, job: Order) -> None:
        """Fork a worker, which gets its job when it is ready."""
        sockets = socket.socketpair()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sockets[0].setsockopt(socket.SOL_SOCKET, option, _MESSAGE_LIMIT)
        connection, theirs = (Connection(each.detach()) for each in sockets)
        read, output = os.pipe()
        os.set_blocking(read, False)
        try:
            pid = os.fork()
        except OSError as error:
            return self._main.send((job.number, MessageKind.REFUSED, f"cannot start processes: {describe(error)}"))
        if pid == 0:
            for each in (self._main, connection, *(other.connection for other in self._workers)):
                each.close()
            for number in (read, *(other.output for other in self._workers)):
                os.close(number)
            work(self._task, self._settings, self._settings.slots[slot], theirs, output)
        theirs.close()
        os.close(output)
        self._workers.append(_Worker(slot, pid, connection, read, job))
        return None

    def _receive(self, worker: _Worker) -> None:
        """Take the messages of a worker; a closed connection is its end."""
        while worker in self._workers and worker.connection.poll():
            try:
                kind, content = worker.connection.recv()
            except Exception:  # it has ended, or a candidate has written into the connection
                return self._lose(worker)
            if kind is MessageKind.READY:
                self._lost_starts[worker.slot] = 0
                if worker.job is None:
                    worker.is_ready, worker.end = True, math.inf
                else:
                    self._begin(worker, worker.job)
            elif worker.job is None:  # a candidate has written into the connection
                return self._lose(worker)
            elif kind is MessageKind.DEVICE_LOST:
                self._lose_device(worker, content)
            else:
                self._main.send((worker.job.number, kind, content))
                if kind is MessageKind.OUTCOME:
                    worker.renew()
                elif kind is MessageKind.DONE:
                    worker.job, worker.is_ready, worker.end = None, False, time.monotonic() + START_LIMIT_S
                else:
                    self._end(worker)
        return None

    def _check(self, worker: _Worker) -> None:
        """End a worker that has ended by itself, or is over its time or memory."""
        limit = self._settings.memory_limit
        if worker.has_ended():
            self._receive(worker)
            if worker in self._workers:
                self._lose(worker)
        elif time.monotonic() >= worker.end:
            seconds = worker.job.deadline if worker.job is not None and worker.is_ready else START_LIMIT_S
            self._lose(worker, EvaluationStatus.TIMEOUT, f"expected a result within {seconds:g} s")
        elif self._settings.slots[worker.slot].is_accelerator and (size := memory_of(worker.pid)) > limit:
            text = f"expected at most {limit / 1e9:.3g} GB of memory, got {size / 1e9:.3g} GB"
            self._lose(worker, EvaluationStatus.OUT_OF_MEMORY, text)

    def _end(self, worker: _Worker) -> int:
        """End a worker and all its descendants, and return its exit status, negative for a signal."""
        os.kill(worker.pid, signal.SIGKILL)  # no effect if it has ended
        _, status = os.waitpid(worker.pid, 0)
        self._workers.remove(worker)
        if status or worker.job is not None:  # else it has ended them
            end_descendants(spared=[each.pid for each in self._workers])
        while worker.read_output():
            pass
        worker.connection.close()
        os.close(worker.output)
        return os.waitstatus_to_exitcode(status)

    def _lose(self, worker: _Worker, status: EvaluationStatus | None = None, text: str = "") -> None:
        """End a worker that has ended, or is over a limit, and report it; without a status, by its last output."""
        code = self._end(worker)
        if worker.job is None:  # after its last job, or killed between two
            return
        if status is None:
            tail, text = worker.tail.decode(errors="replace"), end_of(code)
            has_no_memory = "std::bad_alloc" in tail or "MemoryError" in tail
            if code == -signal.SIGKILL and num_kills_without_memory() > worker.num_kills:
                has_no_memory, text = True, f"{text} for lack of memory"
            status = EvaluationStatus.OUT_OF_MEMORY if has_no_memory else EvaluationStatus.CRASHED
            text = capped(f"its process {text}{f'; it printed last: {tail}' if tail.strip() else ''}")
        if worker.is_ready:
            outcome = Outcome(status, time.monotonic() - worker.start, error=text, is_transient=True)
            self._main.send((worker.job.number, MessageKind.LOSS, pickle.dumps(outcome)))
        elif status is EvaluationStatus.TIMEOUT or not self._may_start_again(worker):
            reason = f"task {type(self._task).__name__}: expected a process that gets ready: {text}"
            self._main.send((worker.job.number, MessageKind.REFUSED, reason))
        else:
            self._jobs.appendleft(worker.job)

    def _lose_device(self, worker: _Worker, reason: str) -> None:
        """Give the job to another slot, unless another start may find the memory of an ended process free."""
        self._end(worker)
        assert worker.job is not None
        self._jobs.appendleft(worker.job)
        if worker.is_ready or not self._may_start_again(worker):
            self._lost_slots.add(worker.slot)
            self._main.send((worker.job.number, MessageKind.DEVICE_LOST, (worker.slot, reason)))

    def _may_start_again(self, worker: _Worker) -> bool:
        self._lost_starts[worker.slot] += 1
        return self._lost_starts[worker.slot] % MAX_LOST_STARTS > 0
