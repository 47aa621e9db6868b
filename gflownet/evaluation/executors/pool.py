"""The executor that runs jobs in a pool of processes of this machine."""

from __future__ import annotations

import ast
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import spawn
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.execution import capped, describe, lost_job
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.devices import DEVICES, Devices, Slot, slots_of
from gflownet.evaluation.executors.machine import memory_per_process
from gflownet.evaluation.executors.owner import MAX_LOST_STARTS, MAX_TAIL, Order, end_of, own
from gflownet.evaluation.executors.worker import MessageKind, PoolSettings
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.store.fingerprint import source_digest
from gflownet.evaluation.task import GFNTask

_ADVICE = "move it to a module that other processes can import, or set evaluation.executor=inline"
# One thread per process; libraries read these when they are loaded. torch.cuda.is_available makes no context.
_ENVIRONMENT = {
    "KMP_DUPLICATE_LIB_OK": "True",  # both are set by scikit-learn, which references import
    "KMP_INIT_AT_FORK": "FALSE",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Freed memory stays in the process: else each new one returns it to the system, until it knows what it needs.
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
# The owner's program. Its imports take seconds, in which a timer notices the end of the main process; a parent-death
# signal would be sent at the end of the thread that has started it.
_PROGRAM = """
import os, pickle, signal, sys
from multiprocessing.connection import Connection
from multiprocessing.spawn import prepare
descriptor, parent = map(int, sys.argv[1:])
signal.signal(signal.SIGALRM, lambda *_: os.getppid() == parent or os._exit(1))
signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a scheduler sends it to all; the main process ends its workers
prepare(pickle.load(sys.stdin.buffer))
own, settings = pickle.load(sys.stdin.buffer)
own(settings, Connection(descriptor))
"""
_PATHS, _MAIN_SCRIPT = {"sys_path", "sys_argv"}, {"init_main_from_name", "init_main_from_path"}
_END_LIMIT_S = 10.0


@dataclass(frozen=True)
class PickledTask:
    """A task as bytes that another process can load."""

    content: bytes
    source: str  # digest of its code

    @classmethod
    def of(cls, task: GFNTask) -> PickledTask:
        """Pickle a task.

        Raises:
            UserError: it cannot be pickled, its source files cannot be read, or its class is in a main script that
                every process would run again.
        """
        name = type(task).__name__
        content = pickled(task, f"task {name}: expected a task")
        if b"__main__" in content and not _has_main_guard():
            raise UserError(
                f"task {name}: defined in the main script, which has no `if __name__ == '__main__':` and would run "
                f"again in every process; {_ADVICE}"
            )
        try:
            return cls(content, source_digest(type(task)))
        except OSError as error:
            raise UserError(f"task {name}: expected source files that can be read: {describe(error)}") from None

    @property
    def is_of_main_script(self) -> bool:
        """Whether its class is defined in the main script."""
        return b"__main__" in self.content


class _OwnerProcess:
    """The process that owns the workers, and its replies."""

    def __init__(self, settings: PoolSettings, *, imports_main: bool) -> None:
        """Start it. Its session is another one: signals of a terminal are for the main process."""
        self._connection, theirs = multiprocessing.Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115, closed by `end`
        data = spawn.get_preparation_data("owner")
        kept = _PATHS | _MAIN_SCRIPT if imports_main else _PATHS
        with tempfile.TemporaryFile() as file:  # a connection would wait until it is read
            pickle.dump({name: data[name] for name in kept & data.keys()}, file)
            pickle.dump((own, settings), file)
            file.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=file,
                stdout=self._output,
                stderr=self._output,
                env={**os.environ, **_ENVIRONMENT},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        theirs.close()
        self.replies: SimpleQueue[tuple[int, MessageKind, Any] | None] = SimpleQueue()  # None: it has ended
        # Without the thread both processes could wait for the other one to read.
        self._reader = threading.Thread(target=_read, args=(self._connection, self.replies), daemon=True)
        self._reader.start()

    def send(self, order: Order) -> None:
        """Send an order; `replies` show whether the owner has ended."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(order)

    def end(self) -> str:
        """End it with all workers, and return its end and its last output in words."""
        self._process.terminate()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self._reader.join(_END_LIMIT_S)
        self._connection.close()
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - MAX_TAIL))
        tail = self._output.read().decode(errors="replace")
        self._output.close()
        return capped(f"{end_of(code)}{f'; it printed last: {tail}' if tail.strip() else ''}")


def _read(connection: Connection, replies: SimpleQueue[tuple[int, MessageKind, Any] | None]) -> None:
    with suppress(EOFError, OSError):
        while True:
            replies.put(connection.recv())
    replies.put(None)


class PoolExecutor(Executor):
    """Runs each job in a worker process: a new one on a core, on a share of a GPU one for many jobs.

    Another process, which starts with `start` or the first job, owns the workers (`owner`): it loads the task once,
    forks them, ends them at the deadline, and ends all that they leave behind. A lost device costs its slots: their
    jobs run on the others.
    """

    def __init__(
        self,
        task: GFNTask | PickledTask,
        config: EvaluationConfig,
        *,
        devices: Devices = DEVICES,
        slots: Sequence[Slot] = (),
    ) -> None:
        """Pickle the task.

        `devices` are those of this machine; without `slots` the workers have those of the config.

        Raises:
            UserError: the task cannot be sent to another process, or a device of the config is not there.
        """
        parts = PickledTask.of(task) if isinstance(task, GFNTask) else task
        slots = tuple(slots) or slots_of(config, devices, task=task)
        limit = memory_per_process(config.memory_limit, capacity=len(slots))
        self._settings = PoolSettings(parts.content, parts.source, limit, slots, devices)
        self._imports_main = parts.is_of_main_script
        self._owner: _OwnerProcess | None = None
        self._num_lost_starts = 0
        self._lost: dict[int, str] = {}  # reasons by the number of the slot
        self._numbers = count()
        self._waiting: deque[Handle] = deque()
        self._running: dict[int, Handle] = {}  # sent to the owner, by number
        self._suspects: set[int] = set()  # the owner was lost while they ran: these run alone

    @property
    def capacity(self) -> int:
        return len(self._settings.slots) - len(self._lost)

    def start(self) -> None:
        if self._owner is None:
            self._num_lost_starts += 1
            try:
                self._owner = _OwnerProcess(self._settings, imports_main=self._imports_main)
            except OSError as error:
                raise self._start_error(describe(error)) from None

    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        content = pickled(job, "candidates: expected graphs")
        handle = Handle(job, backend=Order(next(self._numbers), content, deadline))
        self._waiting.append(handle)
        self._send()
        return handle

    def wait(self, handles: Collection[Handle], *, timeout: float | None) -> list[Handle]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._owner is not None and not self._owner.replies.empty():
                self._take(self._owner.replies.get())
            self._send()
            done = [handle for handle in handles if handle.outcomes is not None]
            remaining = None if end is None else end - time.monotonic()
            if done or self._owner is None or (remaining is not None and remaining <= 0):
                return done
            with suppress(Empty):
                self._take(self._owner.replies.get(timeout=remaining))

    def cancel(self, handle: Handle) -> None:
        number = handle.backend.number
        self._suspects.discard(number)
        if handle in self._waiting:
            self._waiting.remove(handle)
        elif self._running.pop(number, None) is not None and self._owner is not None:
            self._owner.send(Order(number, None))

    def close(self) -> None:
        self._waiting.clear()
        self._running.clear()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.end()

    def _send(self) -> None:
        """Send the waiting jobs to the owner, which starts with its first one; suspects one by one.

        Raises:
            UserError: no process can be started.
        """
        while self._waiting and not (self._suspects and self._running):
            self.start()
            assert self._owner is not None
            handle = self._waiting.popleft()
            self._running[handle.backend.number] = handle
            self._owner.send(handle.backend)

    def _take(self, reply: tuple[int, MessageKind, Any] | None) -> None:
        """Process a reply of the owner, None: its end.

        Raises:
            UserError: the workers cannot load the task, or no device is left, or the owner ends again and again.
        """
        if reply is None:
            return self._replace_owner()
        number, kind, content = reply
        if kind is MessageKind.READY:
            self._num_lost_starts = 0
        elif kind is MessageKind.REFUSED:
            self._running.pop(number, None)
            raise UserError(content)
        elif kind is MessageKind.DEVICE_LOST:
            self._lose_slot(*content)
        elif (handle := self._running.get(number)) is not None:  # else cancelled
            finished, handle.since = handle.finished, time.monotonic()
            if kind is MessageKind.OUTCOME:
                finished.append(pickle.loads(content))
            elif kind is MessageKind.STARTED:
                finished.clear()  # of a worker that has lost its device
            elif kind is MessageKind.LOSS:
                self._set_outcomes(handle, lost_job(handle.job, pickle.loads(content), finished=finished))
            else:
                self._set_outcomes(handle, (*finished, *pickle.loads(content)))
        return None

    def _set_outcomes(self, handle: Handle, outcomes: tuple[Outcome, ...]) -> None:
        number = handle.backend.number
        self._running.pop(number)
        self._suspects.discard(number)
        handle.outcomes, handle.num_finished = outcomes, len(handle.finished)

    def _lose_slot(self, number: int, reason: str) -> None:
        """Count a slot of a lost device.

        Raises:
            UserError: none is left.
        """
        device = self._settings.slots[number].device
        is_known = device in {self._settings.slots[each].device for each in self._lost}
        self._lost[number] = reason
        if not self.capacity:
            raise UserError(f"evaluation.device: expected a device that answers, lost {device}, the last: {reason}")
        if not is_known:
            self.notify(f"evaluation.device: lost {device}, its candidates go to the other slots: {reason}")

    def _replace_owner(self) -> None:
        """Queue the jobs of an owner that has ended, for another one; a job that was alone is lost.

        Raises:
            UserError: it ends again and again before it is ready.
        """
        assert self._owner is not None
        reason, self._owner = self._owner.end(), None
        was_ready, handles = self._num_lost_starts == 0, list(self._running.values())
        if not was_ready and self._num_lost_starts == MAX_LOST_STARTS:
            raise self._start_error(f"their owner {reason}")
        if was_ready and self._suspects.issuperset(self._running) and len(handles) == 1:
            outcome = Outcome(
                EvaluationStatus.CRASHED, 0.0, error=f"the owner of its process {reason}", is_transient=True
            )
            return self._set_outcomes(handles[0], lost_job(handles[0].job, outcome, finished=handles[0].finished))
        if was_ready:
            self._suspects.update(self._running)
        self._waiting.extendleft(reversed(handles))
        self._running.clear()
        return None

    def _start_error(self, reason: str) -> UserError:
        script = f" (the main script needs `if __name__ == '__main__':`; {_ADVICE})" if self._imports_main else ""
        return UserError(f"evaluation.executor=pool: cannot start processes: {reason}{script}")


def pickled(value: object, expectation: str) -> bytes:
    """Return an object of the user as bytes. Raises UserError, a line that starts with the expectation."""
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise UserError(f"{expectation} that can be pickled: {describe(error)}; {_ADVICE}") from None


def _has_main_guard() -> bool:
    """Return whether the main script can be imported without running."""
    main: Any = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:  # python -m
        return True
    try:
        tree = ast.parse(Path(main.__file__).read_bytes())
    except (AttributeError, OSError, SyntaxError):  # an interactive session
        return False
    return any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body)
