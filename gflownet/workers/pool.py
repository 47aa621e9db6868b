"""Worker processes that produce messages for the main process: started, monitored, restarted, killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, Literal

import torch

from gflownet.files import Closing
from gflownet.workers.packing import MessageError
from gflownet.workers.process import WorkerInfo, seed_all, set_worker_info, stream_seed
from gflownet.workers.proxy import Endpoint, Failure
from gflownet.workers.server import ProxyServer
from gflownet.workers.transport import Channel, remove_shared_memory

Produce = Callable[[WorkerInfo, Endpoint], Iterator[Any]]
StartMethod = Literal["auto", "fork", "forkserver", "spawn"]
EXIT_TIMEOUT_S = 1.0  # between the moment a dying process closes its pipes and its end


class WorkerError(RuntimeError):
    """A worker failed and cannot be replaced."""


class _LostError(Exception):
    """A worker died, or was killed at its deadline; the text has the cause."""


class Pool(Closing, ABC):
    """Workers that produce messages, taken in turn; each prepares one message ahead. A context manager.

    Args:
        produce: called in each worker; yields messages without end, and may call the served objects.
        server: runs the calls; messages use its transport; it must outlive the pool.
        num_workers: at least 1.
        start_method: fork (refused where it is not safe), forkserver or spawn; auto is forkserver.
        deadline_s: a worker that takes longer for one message, its start included, is killed; None: no deadline.
        max_restarts: number of dead workers that are replaced; `LoaderPool` replaces none.
        seed: of the workers' global generators, together with each worker's id.

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
        self._server, self._num_workers, self._deadline_s = server, num_workers, deadline_s
        self._max_restarts, self._seed, self._num_taken = max_restarts, seed, 0
        try:
            self._payload = pickle.dumps(produce)
        except Exception as error:
            raise MessageError(f"worker function: expected a picklable object: {error!r}") from error
        try:
            self._start_workers()
        except BaseException:
            self.close()
            raise

    def next(self) -> Any:
        """Return the next message; its worker starts on another.

        Raises:
            WorkerError: the worker failed, or workers died or exceeded their deadline too often.
        """
        name, channel, message = self._take(self._num_taken % self._num_workers)
        self._num_taken += 1
        with suppress(OSError):  # it may be dead by now
            channel.connection.send_bytes(b"")  # continue
        if isinstance(message, Failure):
            raise WorkerError(f"{name} failed: {message.summary}") from message.error()
        return message

    @abstractmethod
    def close(self) -> None:
        """Kill all workers at once, busy or not; they hold nothing that other processes need."""

    @abstractmethod
    def _start_workers(self) -> None:
        """Start the workers and send them the payload."""

    @abstractmethod
    def _take(self, worker_id: int) -> tuple[str, Channel, Any]:
        """Return a worker's name, channel and next message."""

    @contextmanager
    def _forking(self) -> Iterator[None]:
        """Let a process fork while the server's thread sleeps; Python cannot check that and would warn."""
        if self._context.get_start_method() != "fork":
            yield
            return
        with self._server.between_calls(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield


@dataclass(frozen=True)
class _Worker:
    info: WorkerInfo
    process: Any
    channel: Channel

    def __str__(self) -> str:
        return f"worker {self.info.id} (pid {self.process.pid})"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def release(self) -> None:
        """Wait for the end of a killed process, and release its resources."""
        self.process.join()
        remove_shared_memory(self.process.pid)
        self.process.close()
        self.channel.close()


class WorkerPool(Pool):
    """Worker processes of our own; dead ones are replaced, `max_restarts` times."""

    def _start_workers(self) -> None:
        self._num_restarts, self._workers = 0, []
        for worker_id in range(self._num_workers):
            self._workers.append(self._started(WorkerInfo(worker_id, self._num_workers)))
        for worker in self._workers:
            self._send_payload(worker)

    def close(self) -> None:
        """Kill all workers at once, busy or not; they hold nothing that other processes need."""
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            self._workers.pop().release()

    def _started(self, info: WorkerInfo) -> _Worker:
        """Return a new worker; one that dies during its start is replaced.

        Raises:
            WorkerError: that happened too often, or the system has no resources for a process.
        """
        while True:
            try:
                return self._start(info)
            except (EOFError, ConnectionError) as error:  # it died before it had read its arguments
                reason = f"worker {info.id} died during its start: {error!r}"
            except OSError as error:
                raise WorkerError(f"worker {info.id} cannot be started: {error}") from error
            info = self._successor(info, reason)

    def _start(self, info: WorkerInfo) -> _Worker:
        endpoint, (channel, worker_channel) = self._server.connect(), self._server.transport.pair()
        info = replace(info, seed=stream_seed(self._seed, info.id, info.generation))
        arguments = (info, endpoint, worker_channel)
        process = self._context.Process(target=_work, args=arguments, name=f"worker {info.id}", daemon=True)
        try:
            with self._forking():
                process.start()
        except BaseException:
            channel.close()
            raise
        finally:
            endpoint.detach()
            worker_channel.detach()
        return _Worker(info, process, channel)

    def _send_payload(self, worker: _Worker) -> None:
        """Send the worker its `Produce`; a dead worker is replaced when its message is due."""
        with suppress(OSError):
            worker.channel.connection.send_bytes(self._payload)

    def _take(self, worker_id: int) -> tuple[str, Channel, Any]:
        while True:
            worker = self._workers[worker_id]
            try:
                return str(worker), worker.channel, self._receive(worker)
            except _LostError as loss:
                self._workers[worker_id] = self._started(self._successor(worker.info, str(loss)))
                worker.release()
                self._send_payload(self._workers[worker_id])

    def _receive(self, worker: _Worker) -> Any:
        """Return the next message of the worker.

        Raises:
            _LostError: it died, or was killed at its deadline; it is dead.
            WorkerError: its message cannot be read.
        """
        if not wait([worker.channel.connection, worker.process.sentinel], self._deadline_s):
            worker.kill()
            raise _LostError(f"{worker}: {missed_deadline(self._deadline_s)}")
        try:
            if worker.channel.connection.poll():
                return worker.channel.receive()
        except (EOFError, OSError):
            pass
        except MessageError as error:
            worker.process.join(EXIT_TIMEOUT_S)
            if worker.process.exitcode is None:
                raise WorkerError(f"{worker}: {error}") from error
            # It died before its tensors could be fetched.
        worker.process.join(EXIT_TIMEOUT_S)
        worker.kill()  # if it only closed its pipe
        raise _LostError(f"{worker} {cause_of_death(worker.process.exitcode)}")

    def _successor(self, info: WorkerInfo, loss: str) -> WorkerInfo:
        """Return the identity of the worker that replaces a lost one.

        Raises:
            WorkerError: there were too many losses.
        """
        if self._num_restarts == self._max_restarts:
            raise WorkerError(f"{loss}, after {self._num_restarts} restarts, the maximum")
        self._num_restarts += 1
        warnings.warn(f"{loss}; restart {self._num_restarts} of {self._max_restarts}", stacklevel=4)
        # Its message was due: it has delivered one message in each full round.
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
    # The forkserver imports modules once for all workers.
    loaded = (name for name in sys.modules if name == "torch_geometric" or name.startswith("gflownet."))
    context.set_forkserver_preload(["__main__", __name__, produce.__module__, *loaded])
    return context


def missed_deadline(deadline_s: float | None) -> str:
    """Return the reason why a worker was killed at its deadline."""
    failure = f"expected a message within {deadline_s} s, got none"
    return f"{failure}; it was killed (if it was only slow, set a longer deadline)"


def cause_of_death(exit_code: int) -> str:
    """Return how a process ended."""
    if exit_code >= 0:
        return f"exited with status {exit_code}"
    killer = signal.Signals(-exit_code).name
    return f"was killed by {killer}" + (" (out of memory?)" if killer == "SIGKILL" else "")


def _refuse_unsafe_fork(server: ProxyServer) -> None:
    """Raise ValueError where a child would inherit locks or threads in an inconsistent state."""
    allowed = (threading.current_thread(), server.thread)
    other_threads = [thread.name for thread in threading.enumerate() if thread not in allowed]
    reasons = {
        f"torch computes in {torch.get_num_threads()} threads": torch.get_num_threads() > 1,
        "CUDA is in use": torch.cuda.is_initialized(),
        "slow objects are served, in threads": server.has_slow,
        f"other threads run ({', '.join(other_threads)})": bool(other_threads),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ValueError(f"start method: expected auto, forkserver or spawn, got fork, which is unsafe: {reason}")


def become_worker(info: WorkerInfo) -> None:
    """Prepare this process: one thread, signals left to the main process, exit when the main process ends."""
    for kind in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all; the main process kills workers
        signal.signal(kind, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker has inherited the main process's handler
    threading.Thread(target=_exit_with_main, daemon=True).start()
    torch.set_num_threads(1)
    set_worker_info(info)


def frames(info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> Iterator[bytes]:
    """Yield every message of a `Produce`, encoded for the channel; the last is a `Failure`.

    The first message in the channel is the pickled `Produce`, not an argument of the process: with spawn, writing more
    arguments than a pipe holds to a dead process would block forever. An empty message follows whenever the main
    process has read a frame.
    """
    try:
        for message in pickle.loads(channel.connection.recv_bytes())(info, endpoint):
            yield channel.encode(message)
            channel.connection.recv_bytes()
        raise RuntimeError("expected messages without end, got the end of the stream")
    except Exception as error:
        yield channel.encode(Failure.of(error))


def _work(info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> None:
    become_worker(info)
    seed_all(info.seed)
    try:
        for frame in frames(info, endpoint, channel):
            channel.connection.send_bytes(frame)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process closed the pipe


def _exit_with_main() -> None:
    main = multiprocessing.parent_process()
    assert main is not None, "called in a worker"
    main.join()
    os._exit(1)
