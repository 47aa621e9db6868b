"""The process in which candidates run, forked by the owner of a pool: one per job on cores, a lasting one per slot of a
device."""

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
from typing import NoReturn

import psutil

from gflownet.errors import UserError
from gflownet.evaluation.execution import attempt, describe, is_device_error, is_out_of_memory
from gflownet.evaluation.executors.devices import Devices, Slot
from gflownet.evaluation.executors.torch_state import TorchState
from gflownet.evaluation.job import EvaluationStatus, Outcome
from gflownet.evaluation.task import GFNTask

# Options of prctl(2).
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
# Longest time for all descendants to end after SIGKILL, seconds.
_END_TIMEOUT_S = 5.0


class MessageKind(StrEnum):
    """Kind of a message of a worker or of the owner, and its content."""

    READY = "ready"  # for a job: None
    STARTED = "started"  # from the owner: None
    OUTCOME = "outcome"  # of the next candidate of a job, pickled
    DONE = "done"  # outcomes of the candidates of a job that had none, pickled
    LOSS = "loss"  # the outcome of the candidates that had none when the worker ended, pickled
    REFUSED = "refused"  # the text of a UserError
    DEVICE_LOST = "device lost"  # the text of its error; from the owner: the number of the slot, and the text


@dataclass(frozen=True)
class PoolSettings:
    """The task of a pool and its places."""

    task: bytes  # pickled
    source: str  # digest of its code in the main process
    memory_limit: int  # bytes per worker
    slots: tuple[Slot, ...]
    devices: Devices

    @property
    def warms_up_once(self) -> bool:
        """Whether the owner warms the task up for all processes: none of them moves it to a device before."""
        return not any(slot.is_accelerator for slot in self.slots)


def work(task: GFNTask, settings: PoolSettings, slot: Slot, connection: Connection, output: int) -> NoReturn:
    """Evaluate a job in a connection, on a device one after the other until it closes or one fails, then exit.

    Called in a new process. The task is in the state in which the owner has loaded it; `output` is the descriptor for
    stdout and stderr.
    """
    status = 1
    try:
        _become_worker(output)
        devices = settings.devices if slot.is_accelerator else None
        if devices is None:  # the address space of CUDA counts too: there the owner looks
            _limit_memory(settings.memory_limit)
        if settings.warms_up_once or _prepare(task, devices, slot, connection):
            while _evaluate_job(task, devices, connection):
                pass
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
    return True


def _evaluate_job(task: GFNTask, devices: Devices | None, connection: Connection) -> bool:
    """Evaluate the next job; return whether the process takes another one: on a device, unless a candidate failed."""
    connection.send((MessageKind.READY, None))
    job, state, num_sent = pickle.loads(connection.recv_bytes()), TorchState(), 0

    def report(outcome: Outcome) -> None:
        nonlocal num_sent
        state.restore()
        connection.send((MessageKind.OUTCOME, pickle.dumps(outcome)))
        num_sent += 1

    try:
        outcomes, _ = attempt(task, job, report=report)
    except UserError as error:
        connection.send((MessageKind.REFUSED, str(error)))
        return False
    lost = next((each.error for each in outcomes if devices is not None and devices.is_lost(each.error)), None)
    if lost is not None:
        connection.send((MessageKind.DEVICE_LOST, lost))
        return False
    end_descendants()
    connection.send((MessageKind.DONE, pickle.dumps(outcomes[num_sent:])))
    if devices is None or any(each.status is not EvaluationStatus.OK for each in outcomes):
        return False
    devices.give_back()
    return True


def memory_of(pid: int) -> int:
    """Return the bytes of a process's own pages, without those of the libraries of CUDA."""
    with suppress(psutil.Error):
        used = psutil.Process(pid).memory_info()
        return used.rss - getattr(used, "shared", 0)
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
