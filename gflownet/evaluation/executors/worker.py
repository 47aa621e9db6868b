"""The worker process of a pool: the only one in which candidates run, forked by the owner of the pool."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import NamedTuple, NoReturn

import psutil

from gflownet.errors import UserError
from gflownet.evaluation.execution import attempt, describe, is_device_error, is_out_of_memory
from gflownet.evaluation.executors.devices import Devices, Slot
from gflownet.evaluation.executors.process_state import ProcessState
from gflownet.evaluation.job import EvaluationStatus, Outcome
from gflownet.evaluation.task import GFNTask

# The state of a process after these is unknown.
_LEAVES_AFTER = (EvaluationStatus.CRASHED, EvaluationStatus.OUT_OF_MEMORY)

# Options of prctl(2).
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
# Longest time for all descendants to end after SIGKILL, seconds.
_END_TIMEOUT_S = 5.0


class ChangedProcessError(BaseException):
    """A candidate has changed its process: the others of its job need another one."""


class MessageKind(StrEnum):
    """Kind of a message of a worker or of the owner, and its content."""

    READY = "ready"  # None
    STARTED = "started"  # from the owner: None
    OUTCOME = "outcome"  # of the next candidate of a job, pickled
    DONE = "done"  # Done
    LOSS = "loss"  # the outcome of the candidates that had none when the worker ended, pickled
    REFUSED = "refused"  # the text of a UserError
    DEVICE_LOST = "device lost"  # the text of its error; from the owner: the number of the slot, and the text


class Done(NamedTuple):
    """The end of a job."""

    others: bytes  # outcomes of the candidates that had none, pickled
    changed: str  # the name of what a candidate has changed in the process; empty: nothing
    is_leaving: bool  # the worker takes no other job


@dataclass(frozen=True)
class PoolSettings:
    """The task of a pool and its places."""

    task: bytes  # pickled
    source: str  # digest of its code in the main process
    memory_limit: int  # bytes per worker
    slots: tuple[Slot, ...]
    devices: Devices


def work(task: GFNTask, settings: PoolSettings, slot: Slot, connection: Connection, output: int) -> NoReturn:
    """Evaluate the jobs in a connection until it closes, then exit. Called in a new process.

    The task is in the state in which the owner has loaded it; `output` is the descriptor for stdout and stderr.
    """
    status = 1
    try:
        _become_worker(output)
        devices = settings.devices if slot.is_accelerator else None
        if devices is None:  # the address space of CUDA counts too: there the owner looks
            _limit_memory(settings.memory_limit)
        if _prepare(task, devices, slot, connection):
            _serve(task, devices, connection, memory_limit=settings.memory_limit)
        status = 0
    except (EOFError, OSError):
        status = 0  # the owner has ended
    except BaseException:
        traceback.print_exc()
    finally:
        end_descendants()
        os._exit(status)


def _become_worker(output: int) -> None:
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    adopt_orphans()
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for kind in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all; the main process ends its workers
        signal.signal(kind, signal.SIG_IGN)
    for number in (1, 2):
        os.dup2(output, number)
    # Line by line: the last lines before a crash count.
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )
    faulthandler.enable(sys.stderr)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_memory(memory_limit: int) -> None:
    _, maximum = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_limit if maximum == resource.RLIM_INFINITY else min(memory_limit, maximum)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, maximum))


def _prepare(task: GFNTask, devices: Devices | None, slot: Slot, connection: Connection) -> bool:
    """Return whether the task is ready; else after a message."""
    step = "take"
    try:
        if devices is not None:
            device = devices.take(slot)
            step = "to_device"
            task.to_device(device)
        step = "warm_up"
        task.warm_up()
    except Exception as error:
        has_no_memory = step == "to_device" and (is_out_of_memory(error) or is_device_error(error))
        if step == "take" or has_no_memory:  # another start may find the memory of an ended process free
            connection.send((MessageKind.DEVICE_LOST, describe(error)))
        else:
            connection.send((MessageKind.REFUSED, f"{type(task).__name__}.{step}: {describe(error)}"))
        return False
    connection.send((MessageKind.READY, None))
    return True


def _serve(task: GFNTask, devices: Devices | None, connection: Connection, *, memory_limit: int) -> None:
    state, changed = ProcessState(), ""
    num_sent, is_leaving = 0, False
    memory = memory_of(os.getpid(), counts_pages=devices is not None)

    def report(outcome: Outcome) -> None:
        nonlocal changed, num_sent
        connection.send((MessageKind.OUTCOME, pickle.dumps(outcome)))
        num_sent += 1
        changed = state.changed()
        if changed:
            raise ChangedProcessError(f"another candidate of its job has changed {changed}")

    while not is_leaving:
        job, num_sent = pickle.loads(connection.recv_bytes()), 0
        try:
            outcomes, num_finished = attempt(task, job, report=report)
        except UserError as error:
            connection.send((MessageKind.REFUSED, str(error)))
            continue
        lost = next((each.error for each in outcomes if devices is not None and devices.is_lost(each.error)), None)
        if lost is not None:
            connection.send((MessageKind.DEVICE_LOST, lost))
            return
        end_descendants()
        changed = changed or state.changed()
        is_leaving = (
            bool(changed) or num_finished < len(outcomes) or any(each.status in _LEAVES_AFTER for each in outcomes)
        )
        if devices is not None and not is_leaving:
            devices.give_back()
        # What earlier candidates have left is not charged to the next one.
        growth = memory_of(os.getpid(), counts_pages=devices is not None) - memory
        is_leaving = is_leaving or growth > (memory_limit - memory) / 2
        connection.send((MessageKind.DONE, Done(pickle.dumps(outcomes[num_sent:]), changed, is_leaving)))


def memory_of(pid: int, *, counts_pages: bool) -> int:
    """Return the bytes of a process that count against its limit: private address space, or own pages."""
    with suppress(psutil.Error):
        used = psutil.Process(pid).memory_info()
        pages = used.rss - getattr(used, "shared", 0)  # without the libraries of CUDA
        return pages if counts_pages else getattr(used, "data", pages)
    return 0


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parent ends; Linux only."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_descendants(*, spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process, which adopts orphans, and wait for their end.

    Children in `spared` go on, with their descendants.
    """
    end = time.monotonic() + _END_TIMEOUT_S
    with suppress(ChildProcessError):  # there is no child
        while time.monotonic() < end:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            children = [child for child in psutil.Process().children() if child.pid not in spared]
            if not children:
                return
            with suppress(psutil.Error):
                children += [each for child in children for each in child.children(recursive=True)]
            for process in children:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(children, timeout=_END_TIMEOUT_S)  # reaps those of this process


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
