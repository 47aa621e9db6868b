"""The executor that runs jobs in a pool of processes of this machine (pebble)."""

from __future__ import annotations

import ast
import pickle
import pickletools
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
from pebble import ProcessExpired, ProcessFuture, ProcessPool

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.execution import capped, describe, lost_job
from gflownet.evaluation.executors import child, parent, server
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.descendants import end_descendants
from gflownet.evaluation.executors.devices import DEVICES, Devices, Slot, SlotFolder, slots_of
from gflownet.evaluation.executors.forkserver import IndependentContext
from gflownet.evaluation.executors.machine import memory_per_process
from gflownet.evaluation.executors.sources import TaskSources
from gflownet.evaluation.executors.worker import ReplyKind, WorkerSettings, split_reply
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.task import GFNTask

# The monitor of a worker keeps the deadline; pebble ends a monitor that does not answer this much later, seconds.
_GRACE_S = child.START_LIMIT_S + 30.0
# Pools in a row that may break before a job is done.
_MAX_BROKEN_POOLS = 3
_ADVICE = "move it to a module that other processes can import, or set evaluation.executor=inline"
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})  # of every environment, a user's own included
# The first optimiser of torch.optim in a process imports this module: a second or more, so the fork server does.
_OPTIMISER_MODULE = "torch._dynamo"
_OPTIMISER = re.compile(r"\btorch\.optim\b|\bfrom torch import .*\boptim\b")


@dataclass(frozen=True)
class PickledTask:
    """A task as bytes that another process can load."""

    content: bytes
    sources: TaskSources
    modules: tuple[str, ...]  # to import once per machine: those of the task that start no threads

    @classmethod
    def of(cls, task: GFNTask) -> PickledTask:
        """Pickle a task.

        Raises:
            UserError: it cannot be pickled, its source files cannot be read, or its class is in a main script that
                every process would run again.
        """
        content = pickled_task(task)
        return cls(content, TaskSources.of(type(task)), tuple(_preloaded(content)))

    @property
    def is_of_main_script(self) -> bool:
        """Whether its class is defined in the main script."""
        return b"__main__" in self.content


@dataclass
class _Submission:
    """A job in a pool."""

    job: bytes  # pickled
    deadline: float | None
    pool: ProcessPool
    future: ProcessFuture


class PoolExecutor(Executor):
    """Runs jobs in worker processes, one per slot: a core, or a share of a GPU; they start with the first job.

    Each worker has a monitor process, which pebble starts and which runs no code of candidates. It ends the worker at
    the deadline, reports how it ended, and ends all its descendants. It owns a slot; the monitor that replaces it gets
    the same one. A lost device costs its slots: their jobs run on the others.
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

        Args:
            task: scores the candidates.
            config: devices, number of processes and their memory.
            devices: of this machine.
            slots: of the workers; empty: those of the config.

        Raises:
            UserError: the task cannot be sent to another process, or a device of the config is not there.
        """
        parts = PickledTask.of(task) if isinstance(task, GFNTask) else task
        self._config, self._devices = config, devices
        self._slots = tuple(slots) or slots_of(config, devices, task=task)
        self._slot_folder: SlotFolder | None = None
        self._lost: dict[int, str] = {}  # reasons by the number of the slot
        limit = memory_per_process(config.memory_limit, capacity=len(self._slots))
        self._settings = WorkerSettings(parts.content, parts.sources, limit, devices=devices)
        self._context = IndependentContext(preload=parts.modules, imports_main=parts.is_of_main_script)
        self._pool: ProcessPool | None = None
        self._num_broken_pools = 0
        self._submissions: dict[Handle, _Submission] = {}
        self._finished: set[Handle] = set()  # with a finished future
        self._changed = threading.Condition()

    @property
    def capacity(self) -> int:
        return len(self._slots) - len(self._lost)

    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        handle = Handle(job)
        self._schedule(handle, pickled(job, "candidates: expected graphs"), deadline)
        return handle

    def wait(self, handles: Collection[Handle], *, timeout: float | None) -> list[Handle]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            remaining = None if end is None else max(0.0, end - time.monotonic())
            with self._changed:
                self._changed.wait_for(lambda: any(self._is_finished(handle) for handle in handles), remaining)
                finished = [handle for handle in handles if handle in self._finished]
                self._finished.difference_update(finished)
            for handle in finished:
                self._collect(handle)
            done = [handle for handle in handles if handle.outcomes is not None]
            if done or remaining == 0:
                return done

    def cancel(self, handle: Handle) -> None:
        submission = self._submissions.pop(handle, None)
        if submission is not None:
            submission.future.cancel()
        self._finished.discard(handle)

    def close(self) -> None:
        for handle in list(self._submissions):
            self.cancel(handle)
        self._end_pool()
        self._context.stop()
        self._remove_slot_folder()

    def _is_finished(self, handle: Handle) -> bool:
        return handle.outcomes is not None or handle in self._finished

    def _schedule(self, handle: Handle, message: bytes, deadline: float | None) -> None:
        """Send a job to the pool, which starts with its first job.

        Raises:
            UserError: no process can be started.
        """
        limit = None if deadline is None else deadline + _GRACE_S
        while True:
            pool = self._pool = self._pool or self._new_pool()
            try:
                future = pool.schedule(child.evaluate, args=(message, deadline), timeout=limit)
                break
            except (BrokenProcessPool, RuntimeError, OSError) as error:  # it broke before this job
                self._replace(pool, describe(error))
        self._submissions[handle] = _Submission(message, deadline, pool, future)
        future.add_done_callback(lambda _: self._notify(handle, future))

    def _new_pool(self) -> ProcessPool:
        if self._slot_folder is None and any(slot.is_accelerator for slot in self._slots):
            self._slot_folder = SlotFolder(Path(tempfile.mkdtemp(prefix="gflownet-slots-")), self._slots)
        return ProcessPool(
            len(self._slots),
            initializer=child.start_monitor,
            initargs=(self._settings, self._slot_folder),
            context=self._context,  # type: ignore[arg-type]
        )

    def _notify(self, handle: Handle, future: ProcessFuture) -> None:
        """Wake `wait`. Called by pebble's threads, and by `cancel`."""
        with self._changed:
            if not future.cancelled():
                self._finished.add(handle)
                self._changed.notify_all()

    def _collect(self, handle: Handle) -> None:
        """Set the outcomes of a handle with a finished future, or run its job again if the whole pool broke.

        Raises:
            UserError: the workers cannot load the task, or the pool breaks again and again.
        """
        submission = self._submissions.pop(handle, None)
        if submission is None:
            return
        try:
            reply = submission.future.result()
        except (BrokenProcessPool, CancelledError) as error:
            self._replace(submission.pool, describe(error))
            self._schedule(handle, submission.job, submission.deadline)
            return
        except ProcessExpired as error:
            if error.exitcode == child.LOST_STATUS and self._slot_folder is not None:
                self._lose_slots(self._slot_folder)
                self._schedule(handle, submission.job, submission.deadline)
                return
            end = child.end_of(error.exitcode or 0)
            reply = child.Loss(EvaluationStatus.CRASHED, 0.0, f"its monitor process {end}")
        except TimeoutError:
            reply = child.Loss(EvaluationStatus.TIMEOUT, 0.0, "its monitor process did not answer")
        except Exception as error:  # raised by the monitor: no further process, no further file
            reply = child.Loss(EvaluationStatus.CRASHED, 0.0, capped(describe(error)))
        self._num_broken_pools = 0
        self._set_outcomes(handle, reply)

    def _set_outcomes(self, handle: Handle, reply: bytes | child.Loss) -> None:
        if isinstance(reply, child.Loss):
            outcome = Outcome(reply.status, reply.seconds, error=reply.error, is_transient=True)
            finished = tuple(map(pickle.loads, reply.finished))
            handle.outcomes = lost_job(handle.job, outcome, finished=finished)
            handle.num_finished, handle.process_ended = len(finished), True
            return
        kind, content = split_reply(reply)
        if kind is ReplyKind.REFUSED:
            raise UserError(content.decode(errors="replace"))
        handle.outcomes, handle.num_finished = pickle.loads(content)
        handle.process_ended = handle.num_finished < len(handle.job.candidates)

    def _remove_slot_folder(self) -> None:
        if self._slot_folder is not None:
            shutil.rmtree(self._slot_folder.folder, ignore_errors=True)
            self._slot_folder = None

    def _lose_slots(self, folder: SlotFolder) -> None:
        """Count the slots of lost devices.

        Raises:
            UserError: none is left.
        """
        before, self._lost = {self._slots[number].device for number in self._lost}, folder.lost()
        for number, reason in self._lost.items():
            device = self._slots[number].device
            if not self.capacity:
                raise UserError(f"evaluation.device: expected a device that answers, lost {device}, the last: {reason}")
            if device not in before:
                self.notify(f"evaluation.device: lost {device}, its candidates go to the other slots: {reason}")
                before.add(device)

    def _replace(self, pool: ProcessPool, reason: str) -> None:
        """End a broken pool, once for all its jobs; the next job starts another one."""
        if pool is not self._pool:
            return
        self._end_pool()
        self._num_broken_pools += 1
        if self._num_broken_pools == _MAX_BROKEN_POOLS:
            raise self._start_error(reason)

    def _end_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        server = self._context.pid()
        if server is not None:
            with suppress(psutil.Error):
                for monitor in psutil.Process(server).children():
                    with suppress(psutil.Error):
                        monitor.send_signal(signal.SIGTERM)  # all at once; pebble ends them one by one
        pool.stop()
        pool.join()
        if server is not None:
            end_descendants(server)  # of monitors that were killed

    def _start_error(self, reason: str) -> UserError:
        script = (
            f" (the main script needs `if __name__ == '__main__':`; {_ADVICE})" if self._context.imports_main else ""
        )
        return UserError(f"evaluation.executor=pool: cannot start processes: {reason}{script}")


def pickled(value: object, expectation: str) -> bytes:
    """Return an object of the user as bytes. Raises UserError, a line that starts with the expectation."""
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise UserError(f"{expectation} that can be pickled: {describe(error)}; {_ADVICE}") from None


def pickled_task(task: GFNTask) -> bytes:
    """Return a task as bytes that another process can load.

    Raises:
        UserError: it cannot be pickled, or its class is in a main script that every process would run again.
    """
    name = type(task).__name__
    payload = pickled(task, f"task {name}: expected a task")
    if b"__main__" in payload and not _has_main_guard():
        raise UserError(
            f"task {name}: defined in the main script, which has no `if __name__ == '__main__':` and would run again "
            f"in every process; {_ADVICE}"
        )
    return payload


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


def _preloaded(payload: bytes) -> list[str]:
    """Return the modules that the fork server imports: those of a pickled task and of the user's modules behind it.

    The user's own modules are imported by the workers: importing them may start threads, which do not survive a fork.
    """
    texts = {argument for _, argument, _ in pickletools.genops(payload) if isinstance(argument, str)}
    open_names = {name for text in texts for name in (text, text.partition(" ")[0]) if _is_imported(name)}
    names: set[str] = set()
    while open_names:
        names |= open_names
        users = [sys.modules[name] for name in open_names if not _is_installed(name)]
        names |= {_OPTIMISER_MODULE for module in users if _has_optimiser(module)}
        values = (value for module in users for value in list(vars(module).values()))
        sources = {value.__name__ if isinstance(value, ModuleType) else _module_of(value) for value in values}
        open_names = {name for name in sources if _is_imported(name)} - names
    installed = {name for name in names if name == _OPTIMISER_MODULE or _is_installed(name)}
    return [parent.__name__, child.__name__, *sorted(installed), server.__name__]


def _has_optimiser(module: ModuleType) -> bool:
    """Return whether the source of a module names torch.optim."""
    try:
        return _OPTIMISER.search(Path(module.__file__ or "").read_text(errors="replace")) is not None
    except (AttributeError, OSError):  # an interactive session, a built-in module
        return False


def _is_imported(module: str) -> bool:
    return sys.modules.get(module) is not None  # None: an import that is blocked


def _module_of(value: object) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _is_installed(module: str) -> bool:
    """Return whether a module belongs to this package or to an installed one."""
    if module.startswith(("gflownet.", "tasks.")):
        return True
    file = getattr(sys.modules[module], "__file__", None) or ""
    return not _PACKAGE_FOLDERS.isdisjoint(Path(file).parts)
