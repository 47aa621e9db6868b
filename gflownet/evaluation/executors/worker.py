"""The worker process of a pool: the only one in which candidates run."""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import NoReturn

import threadpoolctl
import torch

from gflownet.errors import UserError
from gflownet.evaluation.execution import attempt, describe, is_device_error, is_out_of_memory
from gflownet.evaluation.executors.descendants import adopt_orphans, end_descendants, end_with_parent, has_descendants
from gflownet.evaluation.executors.devices import CORE, DEVICES, Devices, Slot
from gflownet.evaluation.executors.forkserver import THREAD_LIMITS
from gflownet.evaluation.executors.process_state import OwnNames, ProcessState
from gflownet.evaluation.executors.server import loaded_sources
from gflownet.evaluation.executors.sources import TaskSources
from gflownet.evaluation.job import EvaluationStatus, Outcome
from gflownet.evaluation.task import GFNTask

_FILES = "/proc/self/fd"
# The state of a process after these is unknown.
_LEAVES_AFTER = (EvaluationStatus.CRASHED, EvaluationStatus.OUT_OF_MEMORY)


class ChangedNameError(BaseException):
    """A candidate has changed a name of this package: the others of its job need another process."""


@dataclass(frozen=True)
class WorkerSettings:
    """The task of a worker and its limits."""

    task: bytes  # pickled
    sources: TaskSources
    memory_limit: int  # bytes
    slot: Slot = CORE
    devices: Devices = DEVICES


class ReplyKind(StrEnum):
    """First character of a worker's message."""

    READY = "r"
    ONE_DONE = "o"  # a pickled outcome, of the next candidate of a job
    DONE = "d"  # a pickled tuple of outcomes, and how many of them are of candidates that were done
    DONE_AND_LEAVING = "l"  # the same; the worker cannot take another job
    REFUSED = "u"  # the text of a UserError
    LOST = "x"  # the text of the error of a device that is lost


def reply(kind: ReplyKind, content: bytes = b"") -> bytes:
    """Return a message of a worker."""
    return kind.value.encode() + content


def split_reply(message: bytes) -> tuple[ReplyKind, bytes]:
    """Return kind and content of a message."""
    return ReplyKind(message[:1].decode()), message[1:]


def work(settings: WorkerSettings, connection: Connection, output: int) -> NoReturn:
    """Evaluate the jobs in a connection until it closes, then exit. Called in a new process.

    Args:
        settings: task and limits.
        connection: of jobs and replies.
        output: descriptor for stdout and stderr.
    """
    status = 1
    try:
        _become_worker(connection, output)
        if not settings.slot.is_accelerator:  # the address space of CUDA counts too: there the monitor looks
            _limit_memory(settings.memory_limit)
        task = _load(settings, connection)
        if task is not None:
            connection.send_bytes(reply(ReplyKind.READY))
            _serve(task, connection, settings.devices if settings.slot.is_accelerator else None)
        status = 0
    except (EOFError, OSError):
        status = 0  # the monitor has ended
    finally:
        end_descendants()
        os._exit(status)


def _become_worker(connection: Connection, output: int) -> None:
    end_with_parent(signal.SIGKILL)
    adopt_orphans()
    os.setsid()
    for kind in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all; the main process ends its workers
        signal.signal(kind, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _redirect(output)
    _close_files(kept={0, 1, 2, connection.fileno(), resource_tracker.getfd()})
    faulthandler.enable(sys.stderr)
    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))
    threadpoolctl.threadpool_limits(1)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_memory(memory_limit: int) -> None:
    _, maximum = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_limit if maximum == resource.RLIM_INFINITY else min(memory_limit, maximum)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, maximum))


def _redirect(output: int) -> None:
    """Close stdin, and send stdout and stderr to a descriptor, line by line: the last lines before a crash count."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115, for the life of the process
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )


def _close_files(*, kept: set[int | None]) -> None:
    """Close all other open files: a candidate must not reach the pool's pipes, nor keep them open."""
    if os.path.isdir(_FILES):
        for name in os.listdir(_FILES):
            if int(name) not in kept:
                with suppress(OSError):
                    os.close(int(name))


def _load(settings: WorkerSettings, connection: Connection) -> GFNTask | None:
    """Return the task; None after a reply if that fails, or if its code is not that of the start of the run."""
    task, reason, kind = None, "", ReplyKind.REFUSED
    try:
        device = settings.devices.take(settings.slot) if settings.slot.is_accelerator else None
    except Exception as error:
        connection.send_bytes(reply(ReplyKind.LOST, describe(error).encode(errors="replace")))
        return None
    try:
        task = pickle.loads(settings.task)
    except Exception as error:
        reason = describe(error)
    try:
        settings.sources.check(None if task is None else type(task), loaded=loaded_sources())
    except UserError as error:
        task, reason = None, str(error)
    step = "to_device"
    try:
        if task is not None and device is not None:
            task.to_device(device)
        step = "warm_up"
        if task is not None:
            task.warm_up()
    except Exception as error:
        if step == "to_device" and (is_out_of_memory(error) or is_device_error(error)):
            kind = ReplyKind.LOST  # another start may find the memory of an ended process free
        task, reason = None, f"{type(task).__name__}.{step}: {describe(error)}"
    if task is None:
        connection.send_bytes(reply(kind, reason.encode(errors="replace")))
    return task


def _serve(task: GFNTask, connection: Connection, devices: Devices | None) -> None:
    state, names = ProcessState(), OwnNames()
    is_leaving = False

    def report(outcome: Outcome) -> None:
        state.restore()
        connection.send_bytes(reply(ReplyKind.ONE_DONE, pickle.dumps(outcome)))
        if name := names.changed():
            raise ChangedNameError(f"another candidate of its job has changed {name}")

    while not is_leaving:
        message = connection.recv_bytes()
        try:
            job = pickle.loads(message)
            outcomes, num_finished = attempt(task, job, report=report)
        except UserError as error:
            connection.send_bytes(reply(ReplyKind.REFUSED, str(error).encode(errors="replace")))
            continue
        lost = next((each.error for each in outcomes if devices is not None and devices.is_lost(each.error)), None)
        if lost is not None:
            connection.send_bytes(reply(ReplyKind.LOST, lost.encode(errors="replace")))
            return
        state.restore()
        if has_descendants():
            end_descendants()
        is_leaving = any(outcome.status in _LEAVES_AFTER for outcome in outcomes) or not state.is_clean()
        is_leaving |= num_finished < len(outcomes) or bool(names.first_changed)
        if devices is not None and not is_leaving:
            devices.give_back()
        kind = ReplyKind.DONE_AND_LEAVING if is_leaving else ReplyKind.DONE
        connection.send_bytes(reply(kind, pickle.dumps((outcomes, num_finished))))
