"""Processes that produce messages for the main process, for ever: started, watched, restarted, ended."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Literal

import torch

from gflownet.utils.channel import Channel
from gflownet.utils.failures import Failure
from gflownet.utils.multiprocessing_proxy import Endpoint, ProxyServer, set_main_device
from gflownet.utils.packing import MessageError
from gflownet.utils.transport import CPU, remove_remains

StartMethod = Literal["auto", "fork", "forkserver", "spawn"]


class WorkerError(RuntimeError):
    """A worker failed for good."""


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this is."""

    id: int
    num_workers: int
    generation: int  # how often it was restarted
    num_taken: int = 0  # messages that its predecessors have given: a restarted worker goes on from there


_DEATH_S = 1.0  # between the moment a dying process closes its pipes and the moment it is gone
Produce = Callable[[WorkerInfo, Endpoint], Iterator[Any]]


@dataclass(frozen=True)
class _Worker:
    info: WorkerInfo
    process: Any
    channel: Channel

    def __str__(self) -> str:
        return f"worker {self.info.id} (pid {self.process.pid})"

    def bury(self) -> None:
        """Wait for the end of a process that was killed, and tidy up after it."""
        self.process.join()
        remove_remains(self.process.pid)
        self.process.close()
        self.channel.close()


class WorkerPool:
    """Workers that produce messages, taken in turn; each prepares one ahead, and no more. A context manager.

    Args:
        produce: called in each worker; yields messages for ever, and may call what the server serves.
        server: whom workers call, by the transport that messages take, too; it must outlive the pool.
        num_workers: how many, at least 1.
        start_method: fork (refused where it is not safe), forkserver or spawn; auto is forkserver.
        deadline_s: how long to wait for one message at most; None: for ever.
        max_restarts: how many dead workers are replaced in the life of the pool.

    Raises:
        MessageError: `produce` cannot be pickled.
        ValueError: forking is not safe here, or there is no worker.
    """

    def __init__(
        self,
        produce: Produce,
        server: ProxyServer,
        *,
        num_workers: int,
        start_method: StartMethod = "auto",
        deadline_s: float | None = None,
        max_restarts: int = 0,
    ) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers: expected at least 1, got {num_workers}")
        self._method = "forkserver" if start_method == "auto" else start_method
        if self._method == "fork":
            _refuse_unsafe_fork(server)
        self._context: Any = multiprocessing.get_context(self._method)
        self._context.set_forkserver_preload(["__main__", __name__, produce.__module__])
        self._server, self._deadline_s, self._max_restarts = server, deadline_s, max_restarts
        self._payload = _pickled(produce)
        self._num_restarts = self._num_taken = 0
        self._workers: list[_Worker] = []
        try:
            for worker_id in range(num_workers):
                self._workers.append(self._start(WorkerInfo(worker_id, num_workers, generation=0)))
        except BaseException:
            self.close()
            raise

    def next(self) -> Any:
        """Return the next message; its worker begins another.

        Raises:
            WorkerError: the worker failed, died too often, or kept silent for too long.
        """
        message = self._message_of(self._num_taken % len(self._workers))
        self._num_taken += 1
        return message

    def close(self) -> None:
        """End all workers at once, whatever they do; they hold nothing that others need."""
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            self._workers.pop().bury()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, info: WorkerInfo) -> _Worker:
        endpoint, (near, far) = self._server.connect(), self._server.transport.pair()
        process = self._context.Process(
            target=_work, args=(self._payload, info, endpoint, far), name=f"worker {info.id}", daemon=True
        )
        try:
            with _one_thread_only(self._server) if self._method == "fork" else nullcontext():
                process.start()
        finally:
            endpoint.detach()
            far.detach()
        return _Worker(info, process, near)

    def _message_of(self, position: int) -> Any:
        while True:
            worker = self._workers[position]
            try:
                message = self._received(worker)
            except (EOFError, OSError):
                self._workers[position] = self._successor(worker)
                continue
            with suppress(OSError):  # it may have died since
                worker.channel.connection.send_bytes(b"")  # begin the next one
            if isinstance(message, Failure):
                raise WorkerError(f"{worker} failed: {message.summary}") from message.error()
            return message

    def _received(self, worker: _Worker) -> Any:
        """Return what the worker has to say.

        Raises:
            EOFError, OSError: it died.
            WorkerError: it says nothing, or what nobody can read.
        """
        if not wait([worker.channel.connection, worker.process.sentinel], self._deadline_s):
            worker.process.kill()
            raise WorkerError(
                f"{worker}: expected a message within {self._deadline_s} s, got none; it was killed; if it was only "
                "slow, set a longer deadline"
            )
        if not worker.channel.connection.poll():
            raise EOFError
        try:
            return worker.channel.receive()
        except MessageError as error:
            worker.process.join(_DEATH_S)
            if worker.process.exitcode is not None:  # it died before its tensors could be fetched
                raise EOFError from error
            raise WorkerError(f"{worker}: {error}") from error

    def _successor(self, dead: _Worker) -> _Worker:
        """Return a new worker in the place of a dead one.

        Raises:
            WorkerError: that was done too often.
        """
        dead.process.join(_DEATH_S)
        dead.process.kill()  # if it only hung up
        dead.process.join()
        how = f"{dead} {_cause_of_death(dead.process.exitcode)}"
        if self._num_restarts == self._max_restarts:
            raise WorkerError(f"{how}, after {self._num_restarts} restarts; more are not allowed")
        self._num_restarts += 1
        warnings.warn(f"{how}; it is restarted, {self._num_restarts} of {self._max_restarts} times", stacklevel=4)
        info = dead.info  # it was its turn: it has given one message in each full round
        num_taken = self._num_taken // info.num_workers
        successor = self._start(WorkerInfo(info.id, info.num_workers, info.generation + 1, num_taken))
        dead.bury()
        return successor


def _cause_of_death(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exited with status {exit_code}"
    killer = signal.Signals(-exit_code).name
    return f"was killed by {killer}" + (" (was memory short?)" if killer == "SIGKILL" else "")


def _pickled(produce: Produce) -> bytes:
    try:
        return pickle.dumps(produce)
    except Exception as error:
        raise MessageError(f"what workers do: expected something that can be pickled: {error!r}") from error


def _refuse_unsafe_fork(server: ProxyServer) -> None:
    """Refuse to fork a process whose locks or threads a child would inherit in the middle of something.

    Raises:
        ValueError: with the reason.
    """
    known = (threading.current_thread(), server.thread)
    others = [thread.name for thread in threading.enumerate() if thread not in known]
    reasons = {
        f"torch computes in {torch.get_num_threads()} threads": torch.get_num_threads() > 1,
        "CUDA is in use": torch.cuda.is_initialized(),
        "slow objects are served, in threads": server.has_slow,
        f"other threads run ({', '.join(others)})": bool(others),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"start method: expected auto, forkserver or spawn, got fork, which is unsafe: {reason}")


@contextmanager
def _one_thread_only(server: ProxyServer) -> Iterator[None]:
    """Let a process fork beside the server's thread, which sleeps as long; the interpreter cannot know and warns."""
    with server.between_calls(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _work(payload: bytes, info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> None:
    """Be a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the main process ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker has inherited the main process's way of stopping
    threading.Thread(target=_die_with_main, daemon=True).start()
    torch.set_num_threads(1)
    set_main_device(CPU)
    try:
        _produce(payload, info, endpoint, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process hung up


def _produce(payload: bytes, info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> None:
    try:
        for message in pickle.loads(payload)(info, endpoint):
            channel.send(message)
            channel.connection.recv_bytes()  # until the main process has taken it
        raise RuntimeError("expected messages for ever, got the end of the stream")
    except Exception as error:
        channel.send(Failure.of(error))


def _die_with_main() -> None:
    main = multiprocessing.parent_process()
    assert main is not None, "called in a worker"
    main.join()
    os._exit(1)
