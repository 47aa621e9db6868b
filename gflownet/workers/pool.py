"""Workers of torch's DataLoader that produce messages for the main process: started, monitored, killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from gflownet.files import Closing
from gflownet.workers.packing import MessageError
from gflownet.workers.process import WorkerInfo, exit_with_parent, get_worker_info
from gflownet.workers.proxy import Endpoint, Failure
from gflownet.workers.server import ProxyServer
from gflownet.workers.transport import Address, Channel, Listener

Produce = Callable[[WorkerInfo, Endpoint], Iterator[Any]]
_EXIT_TIMEOUT_S = 1.0  # between the moment a dying process closes its pipes and its end

_SHARED_MEMORY = "/dev/shm"


class WorkerError(RuntimeError):
    """A worker failed, died or missed its deadline."""


class MessageStream(IterableDataset):
    """Messages of a `Produce`, one stream per DataLoader worker.

    The loader's queue, shared by all workers, carries only the worker's id: a few bytes in one write. The message
    precedes it in the worker's own channel, so that a dying worker cannot leave half a message in the shared queue, and
    the main process notices its death at once.
    """

    def __init__(self, payload: bytes, endpoint: Endpoint, address: Address) -> None:
        """Keep the pickled `Produce`, the server's endpoint and the address of the pool."""
        self._payload, self._endpoint, self._address = payload, endpoint, address

    def __iter__(self) -> Iterator[int]:
        """Prepare this worker and return its stream."""
        info = get_worker_info()
        assert info is not None, "called in a worker"
        # A terminal or a scheduler sends them to all; the main process kills workers.
        for kind in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(kind, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        exit_with_parent()
        torch.set_num_threads(1)
        try:
            channel = self._address.connect()
            channel.send((info.id, os.getpid()))
        except OSError as error:
            raise SystemExit(f"worker {info.id}: cannot connect to the main process: {error}") from error
        return self._stream(info, channel)

    def _stream(self, info: WorkerInfo, channel: Channel) -> Iterator[int]:
        try:
            for frame in self._frames(info, channel):
                channel.connection.send_bytes(frame)
                yield info.id
        except (BrokenPipeError, ConnectionResetError):
            return  # the main process closed the pipe

    def _frames(self, info: WorkerInfo, channel: Channel) -> Iterator[bytes]:
        """Yield every message, encoded for the channel; the last is a `Failure`."""
        try:
            for message in pickle.loads(self._payload)(info, self._endpoint):
                yield channel.encode(message)
            raise RuntimeError("expected messages without end, got the end of the stream")
        except Exception as error:
            yield channel.encode(Failure.of(error))


@dataclass(frozen=True)
class _Worker:
    id: int
    process: Any
    channel: Channel

    def __str__(self) -> str:
        return f"worker {self.id} (pid {self.process.pid})"


class WorkerPool(Closing):
    """Workers that produce messages, taken in turn; each prepares one message ahead. A context manager.

    A worker that dies or misses its deadline ends the pool with a `WorkerError`: a DataLoader replaces none.

    Args:
        produce: called in each worker; yields messages without end, and may call the served objects.
        server: runs the calls; messages use its transport; it must outlive the pool.
        num_workers: at least 1.
        deadline_s: maximum seconds for one message of a worker, and for the start of one; None: no deadline.
        seed: of torch's base seed for the workers' global generators.

    Raises:
        MessageError: `produce` cannot be pickled.
        ValueError: there is no worker.
        WorkerError: a worker could not be started.
    """

    def __init__(
        self, produce: Produce, server: ProxyServer, *, num_workers: int, deadline_s: float | None = None, seed: int = 0
    ) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers: expected at least 1, got {num_workers}")
        try:
            payload = pickle.dumps(produce)
        except Exception as error:
            raise MessageError(f"worker function: expected a picklable object: {error!r}") from error
        self._deadline_s, self._num_taken = deadline_s, 0
        self._stream: Any = None
        self._processes: dict[int, Any] = {}
        self._workers: dict[int, _Worker] = {}
        self._listener = Listener(server.transport)
        stream = MessageStream(payload, server.endpoint, self._listener.address)
        try:
            self._start(stream, _context(produce), num_workers, seed)
            while len(self._workers) < num_workers:
                self._accept()
        except BaseException:
            self.close()
            raise

    def next(self) -> Any:
        """Return the next message; its worker starts on another.

        Raises:
            WorkerError: the worker failed, died, or exceeded its deadline.
        """
        worker = self._workers[self._num_taken % len(self._workers)]
        self._num_taken += 1
        if not wait([worker.channel.connection], self._deadline_s):
            raise self._missed(str(worker))
        try:
            message = worker.channel.receive()
            next(self._stream)  # the worker continues
        except MessageError as error:
            if not _ends(worker.process):
                raise WorkerError(f"{worker}: {error}") from error
            raise WorkerError(f"{worker} {_cause_of_death(worker.process)}") from None  # before its tensors were read
        except (EOFError, OSError, RuntimeError, StopIteration):
            raise WorkerError(f"{worker} {_cause_of_death(worker.process)}") from None
        if isinstance(message, Failure):
            raise WorkerError(f"{worker} failed: {message.summary}") from message.error()
        return message

    def close(self) -> None:
        """Kill all workers at once, busy or not; they hold nothing that other processes need."""
        self._kill()
        self._release()
        for worker in self._workers.values():
            worker.channel.close()
        self._listener.close()

    def _release(self) -> None:
        """Let torch close its queues.

        It also sets an event, and waits for ever where a worker was killed that held the lock of this event.
        """
        held, self._stream = [self._stream], None
        release = threading.Thread(target=held.clear, daemon=True)
        release.start()
        release.join(_EXIT_TIMEOUT_S)

    def _start(self, stream: MessageStream, context: Any, num_workers: int, seed: int) -> None:
        """Start the loader's workers.

        Raises:
            WorkerError: a worker died during its start, or the system has no resources for it.
        """
        earlier = set(multiprocessing.active_children())
        with _restored_hooks():
            try:
                loader = DataLoader(
                    stream,
                    batch_size=None,
                    num_workers=num_workers,
                    prefetch_factor=1,
                    multiprocessing_context=context,
                    generator=torch.Generator().manual_seed(seed),
                )
                self._stream = iter(loader)
                return
            except (EOFError, OSError) as error:
                reason = repr(error)
                if not os.access(_SHARED_MEMORY, os.W_OK):
                    reason = f"expected a writable {_SHARED_MEMORY}, in which workers share semaphores, got {error}"
                    reason += "; set num_workers=0, or mount it writable"
            finally:
                started = set(multiprocessing.active_children()) - earlier
                self._processes = {process.pid or 0: process for process in started}
        raise WorkerError(f"a worker died during its start: {reason}")

    def _accept(self) -> None:
        """Wait until one more worker is ready."""
        by_sentinel = {process.sentinel: process for process in self._processes.values()}
        ready = wait([self._listener.socket, *by_sentinel], self._deadline_s)
        if not ready:
            raise self._missed("a worker")
        if self._listener.socket not in ready:
            process = by_sentinel[ready[0]]
            raise WorkerError(f"a worker (pid {process.pid}) {_cause_of_death(process)} during its start")
        try:
            channel = self._listener.accept()
            worker_id, pid = channel.receive()
        except (EOFError, OSError, RuntimeError) as error:
            raise WorkerError(f"a worker died during its start: {error!r}") from None
        self._workers[worker_id] = _Worker(worker_id, self._processes[pid], channel)

    def _missed(self, name: str) -> WorkerError:
        """Kill the workers and return the reason."""
        self._kill()
        failure = f"{name}: expected a message within {self._deadline_s} s, got none"
        return WorkerError(f"{failure}; it was killed (if it was only slow, set a longer deadline)")

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()


def _context(produce: Produce) -> Any:
    """Return the context that starts workers from Python's fork server, which imports modules once for all of them."""
    context: Any = multiprocessing.get_context("forkserver")
    loaded = (name for name in list(sys.modules) if name == "torch_geometric" or name.startswith("gflownet."))
    context.set_forkserver_preload(["__main__", __name__, produce.__module__, *loaded])
    return context


def _ends(process: Any) -> bool:
    """Return whether a process has ended or ends soon."""
    process.join(_EXIT_TIMEOUT_S)
    return process.exitcode is not None


def _cause_of_death(process: Any) -> str:
    """Return how a process ended."""
    if not _ends(process):
        return "closed its pipe"
    if process.exitcode >= 0:
        return f"exited with status {process.exitcode}"
    killer = signal.Signals(-process.exitcode).name
    return f"was killed by {killer}" + (" (out of memory?)" if killer == "SIGKILL" else "")


@contextmanager
def _restored_hooks() -> Iterator[None]:
    """Undo torch's side effects of starting workers.

    Its handler of SIGCHLD would raise in the middle of a training step; `next` notices deaths by the pipes. The
    destructor of an iterator whose start has failed raises. More workers than processors are no reason to warn.
    """
    is_main = threading.current_thread() is threading.main_thread()
    on_child, on_unraisable = signal.getsignal(signal.SIGCHLD), sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            yield
    finally:
        sys.unraisablehook = on_unraisable
        if is_main:
            signal.signal(signal.SIGCHLD, on_child)
