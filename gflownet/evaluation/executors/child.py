"""The monitor: pebble's child process. It runs no candidate but a worker process, and survives every end of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import NoReturn

import psutil

from gflownet.evaluation.execution import capped
from gflownet.evaluation.executors.descendants import adopt_orphans, end_descendants, end_with_parent
from gflownet.evaluation.executors.devices import SlotFolder
from gflownet.evaluation.executors.machine import num_kills_without_memory
from gflownet.evaluation.executors.worker import ReplyKind, WorkerSettings, reply, split_reply, work
from gflownet.evaluation.job import EvaluationStatus

# Time for a worker to load the task, seconds; it is not part of a deadline.
START_LIMIT_S = 120.0
# Processes that may end while they load the task, before that counts as the task's fault.
_MAX_LOST_STARTS = 3
# Bytes of output kept for the error text of a crash.
_MAX_TAIL = 3_500
_READ_SIZE = 1 << 16
# Time between two checks where the end of a process cannot be waited for together with pipes, seconds.
_CHECK_EVERY_S = 0.02
# Time between two looks at the memory of a worker without a limit of the system, seconds.
_WATCH_EVERY_S = 0.2
# Exit status of a monitor whose device is lost.
LOST_STATUS = 71


@dataclass(frozen=True)
class Loss:
    """The end of a worker during a job, instead of its outcomes."""

    status: EvaluationStatus
    seconds: float
    error: str
    finished: tuple[bytes, ...] = ()  # pickled outcomes of the first candidates, which were done before


class StartError(Exception):
    """A worker cannot load the task."""


class _LostWorkerError(Exception):
    """The worker has ended, or was ended over a limit."""

    def __init__(self, status: EvaluationStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _LostDeviceError(Exception):
    """The worker's device does not answer."""


def start_monitor(settings: WorkerSettings, slots: SlotFolder | None) -> None:
    """Make this process a monitor and start its worker. The initializer of the pool's processes.

    Args:
        settings: of the worker.
        slots: one of which this process owns until it ends; None: all are equal, on the cores.
    """
    global _monitor
    end_with_parent(signal.SIGTERM)
    adopt_orphans()
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    number = -1
    if slots is not None:
        number, slot = slots.own()
        settings = replace(settings, slot=slot)
    _monitor = Monitor(settings)
    _monitor.lose_slot = lambda reason: None if slots is None else slots.lose(number, reason)
    _monitor.start()


def evaluate(job: bytes, deadline: float | None) -> bytes | Loss:
    """Return the reply of the worker to a pickled job, or the loss of the worker."""
    assert _monitor is not None
    try:
        return _monitor.evaluate(job, deadline)
    except _LostDeviceError as error:
        _monitor.lose_slot(str(error))
        _leave(LOST_STATUS)


def end_of(code: int) -> str:
    """Return an exit status, negative for a signal, in words."""
    return f"exited with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def _leave(status: int = 0) -> NoReturn:
    """End this process with all its descendants."""
    end_descendants()
    os._exit(status)


class Monitor:
    """Sends jobs to a worker, ends it at the deadline, and starts another one when it has ended."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Keep the settings."""
        self._settings = settings
        self.lose_slot: Callable[[str], None] = lambda reason: None
        self._pid = self._descriptor = self._output = -1
        self._connection: Connection | None = None
        self._is_ready = False
        self._tail, self._num_kills = b"", 0
        main = multiprocessing.parent_process()
        assert main is not None
        self._main = main.sentinel

    def start(self) -> None:
        """Start a worker; it loads the task while this process goes on."""
        self._connection, theirs = multiprocessing.Pipe()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        sys.stdout.flush()
        sys.stderr.flush()
        self._tail = b""
        self._pid = os.fork()
        if self._pid == 0:
            work(self._settings, theirs, output)
        theirs.close()
        os.close(output)
        self._descriptor = os.pidfd_open(self._pid) if hasattr(os, "pidfd_open") else -1

    def evaluate(self, job: bytes, deadline: float | None) -> bytes | Loss:
        """Return the worker's reply, or its loss.

        Raises:
            _LostDeviceError: the worker's device is lost.
        """
        try:
            self._await_start()
        except StartError as error:
            return reply(ReplyKind.REFUSED, str(error).encode())
        assert self._connection is not None
        finished: list[bytes] = []
        while self._drain():  # of the previous job
            pass
        self._tail, start = b"", time.monotonic()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send_bytes(job)
            message = self._receive(deadline, finished)
        except _LostWorkerError as lost:
            return Loss(lost.status, time.monotonic() - start, str(lost), tuple(finished))
        kind, content = split_reply(message)
        if kind in (ReplyKind.DONE_AND_LEAVING, ReplyKind.LOST):
            self._end_worker()
        if kind is ReplyKind.LOST:
            raise _LostDeviceError(content.decode(errors="replace"))
        return message

    def _await_start(self) -> None:
        """Wait for a worker with a loaded task.

        Raises:
            StartError: with the reason.
            _LostDeviceError: the device does not answer.
        """
        for is_last in (False,) * (_MAX_LOST_STARTS - 1) + (True,):
            if self._is_ready and self._has_ended():  # between two jobs, for example killed by a user
                self._end_worker()
            if self._connection is None:
                self.start()
            if self._is_ready:
                return
            try:
                kind, content = split_reply(self._receive(START_LIMIT_S, []))
            except _LostWorkerError as lost:
                if lost.status is EvaluationStatus.TIMEOUT:
                    raise StartError(f"expected to load the task within {START_LIMIT_S:g} s") from None
                if is_last:
                    raise StartError(f"{_MAX_LOST_STARTS} processes ended while they loaded it: {lost}") from None
                continue
            if kind is ReplyKind.LOST:  # or has no memory, before that of an earlier worker is free
                self._end_worker()
                if is_last:
                    raise _LostDeviceError(content.decode(errors="replace"))
                continue
            if kind is ReplyKind.REFUSED:
                self._end_worker()
                raise StartError(content.decode(errors="replace"))
            self._is_ready = True
            if not self._has_ended():
                return

    def _receive(self, limit: float | None, finished: list[bytes]) -> bytes:
        """Return the next message of the worker, and read its output and finished outcomes meanwhile.

        Raises:
            _LostWorkerError: the worker ended, sent none within the limit (seconds), or holds too much memory.
        """
        assert self._connection is not None
        self._num_kills = num_kills_without_memory()
        end = None if limit is None else time.monotonic() + limit
        sources: list = [self._connection, self._output, self._main]
        if self._descriptor >= 0:
            sources.append(self._descriptor)
        while True:
            ready = self._wait(sources, end)
            if self._main in ready:
                _leave()
            if self._output in ready and not self._read_output():
                sources.remove(self._output)
            if self._connection in ready:
                try:
                    message = self._connection.recv_bytes()
                except (EOFError, OSError):
                    raise self._lost() from None
                kind, content = split_reply(message)
                if kind is not ReplyKind.ONE_DONE:
                    return message
                finished.append(content)
                end = None if limit is None else time.monotonic() + limit
                continue
            if self._descriptor in ready or (self._descriptor < 0 and self._has_ended()):
                raise self._lost()
            if end is not None and time.monotonic() >= end:
                raise self._lost(EvaluationStatus.TIMEOUT, f"expected a result within {limit:g} s")
            if self._settings.slot.is_accelerator and (size := self._memory()) > self._settings.memory_limit:
                most = f"expected at most {self._settings.memory_limit / 1e9:.3g} GB of memory"
                raise self._lost(EvaluationStatus.OUT_OF_MEMORY, f"{most}, got {size / 1e9:.3g} GB")

    def _memory(self) -> int:
        """Return the bytes of the worker, without the libraries of CUDA."""
        with suppress(psutil.Error):
            used = psutil.Process(self._pid).memory_info()
            return used.rss - getattr(used, "shared", 0)
        return 0

    def _wait(self, sources: Sequence, end: float | None) -> list:
        """Return the sources that can be read, as soon as there is one or the time is over."""
        remaining = None if end is None else max(0.0, end - time.monotonic())
        if self._descriptor < 0:
            remaining = _CHECK_EVERY_S if remaining is None else min(remaining, _CHECK_EVERY_S)
        if self._settings.slot.is_accelerator:
            remaining = _WATCH_EVERY_S if remaining is None else min(remaining, _WATCH_EVERY_S)
        return wait(sources, remaining)

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read_output(self) -> bool:
        """Keep the last output of the worker; return whether more may come."""
        try:
            text = os.read(self._output, _READ_SIZE)
        except BlockingIOError:
            return True
        self._tail = (self._tail + text)[-_MAX_TAIL:]
        return bool(text)

    def _end_worker(self) -> int:
        """End the worker and all its descendants, and return its exit status, negative for a signal."""
        assert self._connection is not None
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # no effect if it has ended
        _, status = os.waitpid(self._pid, 0)
        end_descendants()
        while self._drain():
            pass
        self._connection.close()
        os.close(self._output)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._connection, self._is_ready = None, False
        return os.waitstatus_to_exitcode(status)

    def _drain(self) -> bool:
        """Read the remaining output; return whether there was any."""
        before = self._tail
        return self._read_output() and self._tail != before

    def _lost(self, status: EvaluationStatus | None = None, text: str = "") -> _LostWorkerError:
        """End the worker, and return the error; without a status, from its exit status and its last output."""
        code, tail = self._end_worker(), self._tail.decode(errors="replace")
        if status is not None:
            return _LostWorkerError(status, text)
        name, has_no_memory = end_of(code), "std::bad_alloc" in tail
        if code == -signal.SIGKILL and num_kills_without_memory() > self._num_kills:
            has_no_memory, name = True, f"{name} for lack of memory"
        status = EvaluationStatus.OUT_OF_MEMORY if has_no_memory else EvaluationStatus.CRASHED
        output = f"; it printed last: {tail}" if tail.strip() else ""
        return _LostWorkerError(status, capped(f"its process {name}{output}"))


_monitor: Monitor | None = None
