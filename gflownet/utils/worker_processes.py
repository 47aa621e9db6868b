"""Processes that produce messages for the main process, for ever: started, watched, restarted, ended."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, Literal

import torch

from gflownet.utils.channel import Channel
from gflownet.utils.failures import Failure
from gflownet.utils.packing import MessageError
from gflownet.utils.proxy import Endpoint
from gflownet.utils.proxy_server import ProxyServer
from gflownet.utils.random_state import seed_all, stream_seed
from gflownet.utils.transport import remove_remains
from gflownet.utils.worker import Produce, become_worker, frames
from gflownet.utils.worker_context import WorkerInfo

StartMethod = Literal["auto", "fork", "forkserver", "spawn"]
DEATH_S = 1.0  # between the moment a dying process closes its pipes and the moment it is gone


class WorkerError(RuntimeError):
    """A worker failed for good."""


class _LostError(Exception):
    """A worker died, or was killed at its deadline; the text has the cause."""


@dataclass(frozen=True)
class _Worker:
    info: WorkerInfo
    process: Any
    channel: Channel

    def __str__(self) -> str:
        return f"worker {self.info.id} (pid {self.process.pid})"

    def bury(self) -> None:
        """Wait for the end of a process that was killed, and release its resources."""
        self.process.join()
        remove_remains(self.process.pid)
        self.process.close()
        self.channel.close()


class WorkerPool:
    """Workers that produce messages, taken in turn; each prepares one ahead, and no more. A context manager.

    Args:
        produce: called in each worker; yields messages for ever, and may call the served objects.
        server: answers calls; messages take its transport; it must outlive the pool.
        num_workers: how many, at least 1.
        start_method: fork (refused where it is not safe), forkserver or spawn; auto is forkserver.
        deadline_s: a worker that takes longer for one message, its start included, is killed; None: no deadline.
        max_restarts: how many dead workers are replaced in the life of the pool.
        seed: the global generators of each worker are seeded from it and the worker's id.

    Raises:
        MessageError: `produce` cannot be pickled.
        ValueError: forking is not safe here, or there is no worker.
        WorkerError: a worker could not be started.
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
        seed: int = 0,
    ) -> None:
        self._context = start_context(server, produce, num_workers=num_workers, start_method=start_method)
        self._server, self._deadline_s, self._max_restarts = server, deadline_s, max_restarts
        self._seed, self._payload = seed, pickled(produce)
        self._num_restarts = self._num_taken = 0
        self._workers: list[_Worker] = []
        try:
            for worker_id in range(num_workers):
                self._workers.append(self._started(WorkerInfo(worker_id, num_workers)))
            for worker in self._workers:
                self._instruct(worker)
        except BaseException:
            self.close()
            raise

    def next(self) -> Any:
        """Return the next message; its worker begins another.

        Raises:
            WorkerError: the worker failed, or workers died or exceeded their deadline too often.
        """
        message = self._message_of(self._num_taken % len(self._workers))
        self._num_taken += 1
        return message

    def close(self) -> None:
        """End all workers at once, busy or not; they hold nothing that others need."""
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            self._workers.pop().bury()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self, info: WorkerInfo) -> _Worker:
        """Return a new worker; one that dies while it starts is replaced.

        Raises:
            WorkerError: that happened too often, or the system has no resources for a process.
        """
        while True:
            try:
                return self._start(info)
            except (EOFError, ConnectionError) as error:  # it died before it had read its arguments
                reason = f"worker {info.id} died while it was started: {error!r}"
            except OSError as error:
                raise WorkerError(f"worker {info.id} cannot be started: {error}") from error
            info = self._successor_of(info, reason)

    def _start(self, info: WorkerInfo) -> _Worker:
        endpoint, (near, far) = self._server.connect(), self._server.transport.pair()
        info = replace(info, seed=stream_seed(self._seed, info.id, info.generation))
        process = self._context.Process(target=_work, args=(info, endpoint, far), name=f"worker {info.id}", daemon=True)
        try:
            with forking(self._server) if self._context.get_start_method() == "fork" else nullcontext():
                process.start()
        except BaseException:
            near.close()
            raise
        finally:
            endpoint.detach()
            far.detach()
        return _Worker(info, process, near)

    def _instruct(self, worker: _Worker) -> None:
        """Send the worker its task; one that has died by now is replaced when it is its turn."""
        with suppress(OSError):
            worker.channel.connection.send_bytes(self._payload)

    def _message_of(self, position: int) -> Any:
        while True:
            worker = self._workers[position]
            try:
                message = self._received(worker)
            except _LostError as loss:
                self._workers[position] = self._started(self._successor_of(worker.info, str(loss)))
                worker.bury()
                self._instruct(self._workers[position])
                continue
            with suppress(OSError):  # it may have died since
                worker.channel.connection.send_bytes(b"")  # begin the next one
            if isinstance(message, Failure):
                raise WorkerError(f"{worker} failed: {message.summary}") from message.error()
            return message

    def _received(self, worker: _Worker) -> Any:
        """Return the next message of the worker.

        Raises:
            _LostError: it died, or was killed at its deadline; it is dead.
            WorkerError: its message cannot be read.
        """
        if not wait([worker.channel.connection, worker.process.sentinel], self._deadline_s):
            _end(worker.process)
            raise _LostError(f"{worker}: {missed(self._deadline_s)}")
        try:
            if worker.channel.connection.poll():
                return worker.channel.receive()
        except (EOFError, OSError):
            pass
        except MessageError as error:
            worker.process.join(DEATH_S)
            if worker.process.exitcode is None:
                raise WorkerError(f"{worker}: {error}") from error
            # It died before its tensors could be fetched.
        worker.process.join(DEATH_S)
        _end(worker.process)  # if it only hung up
        raise _LostError(f"{worker} {cause_of_death(worker.process.exitcode)}")

    def _successor_of(self, info: WorkerInfo, loss: str) -> WorkerInfo:
        """Return the identity of the worker that takes the place of a lost one.

        Raises:
            WorkerError: there were too many losses.
        """
        if self._num_restarts == self._max_restarts:
            raise WorkerError(f"{loss}, after {self._num_restarts} restarts; more are not allowed")
        self._num_restarts += 1
        warnings.warn(f"{loss}; it is restarted, {self._num_restarts} of {self._max_restarts} times", stacklevel=4)
        # It was its turn: it has given one message in each full round.
        return replace(info, generation=info.generation + 1, num_taken=self._num_taken // info.num_workers)


def start_context(server: ProxyServer, produce: Produce, *, num_workers: int, start_method: StartMethod) -> Any:
    """Return the multiprocessing context for workers that run `produce`.

    Raises:
        ValueError: forking is not safe here, or there is no worker.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers: expected at least 1, got {num_workers}")
    method = "forkserver" if start_method == "auto" else start_method
    if method == "fork":
        _refuse_unsafe_fork(server)
    context: Any = multiprocessing.get_context(method)
    context.set_forkserver_preload(["__main__", __name__, produce.__module__, *_loaded_modules()])
    return context


def _loaded_modules() -> list[str]:
    """Return imported modules that most workers need; the forkserver imports them once for all workers."""
    return [name for name in sys.modules if name == "torch_geometric" or name.startswith("gflownet.")]


def missed(deadline_s: float | None) -> str:
    """Return the reason why a worker was killed at its deadline."""
    how = f"expected a message within {deadline_s} s, got none"
    return f"{how}; it was killed (if it was only slow, set a longer deadline)"


def cause_of_death(exit_code: int) -> str:
    """Return how a process ended."""
    if exit_code >= 0:
        return f"exited with status {exit_code}"
    killer = signal.Signals(-exit_code).name
    return f"was killed by {killer}" + (" (was memory short?)" if killer == "SIGKILL" else "")


def pickled(produce: Produce) -> bytes:
    """Return the pickle of a `Produce`; MessageError where it cannot be pickled."""
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
def forking(server: ProxyServer) -> Iterator[None]:
    """Let a process fork while the server's thread sleeps; the interpreter cannot know and warns."""
    with server.between_calls(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _end(process: Any) -> None:
    process.kill()
    process.join()


def _work(info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> None:
    """Be a worker."""
    become_worker(info)
    seed_all(info.seed)
    try:
        for frame in frames(info, endpoint, channel):
            channel.connection.send_bytes(frame)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process hung up
