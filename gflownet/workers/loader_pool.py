"""A pool on torch's DataLoader: the same messages in order, without restarts."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import get_worker_info as get_loader_worker_info

from gflownet.workers.packing import MessageError
from gflownet.workers.pool import (
    EXIT_TIMEOUT_S,
    Pool,
    WorkerError,
    become_worker,
    cause_of_death,
    frames,
    missed_deadline,
)
from gflownet.workers.process import WorkerInfo
from gflownet.workers.proxy import Endpoint
from gflownet.workers.transport import Channel, remove_shared_memory


class MessageStream(IterableDataset):
    """Messages of a `Produce`, one stream per DataLoader worker.

    The loader's queue, shared by all workers, carries only the worker's id: a few bytes in one write. The message
    follows by the transport: as fast as with `WorkerPool`, and a dying worker cannot leave half a message in the
    shared queue.
    """

    def __init__(self, ends: Sequence[tuple[Endpoint, Channel]]) -> None:
        """Keep each worker's connection to the server and channel of messages."""
        self._ends = ends

    def __iter__(self) -> Iterator[int]:
        """Prepare this worker and return its stream."""
        loader_info = get_loader_worker_info()
        assert loader_info is not None, "called in a worker"
        info = WorkerInfo(loader_info.id, loader_info.num_workers, seed=loader_info.seed)
        become_worker(info)
        for worker_id, (endpoint, channel) in enumerate(self._ends):
            if worker_id != info.id:  # an open copy would hide the end of its owner
                endpoint.channel.close()
                channel.close()
        return self._stream(info, *self._ends[info.id])

    def _stream(self, info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> Iterator[int]:
        try:
            for frame in frames(info, endpoint, channel):
                channel.connection.send_bytes(b"")  # ready
                yield info.id
                channel.connection.send_bytes(frame)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the main process closed the pipe


class LoaderPool(Pool):
    """Workers of a DataLoader; torch seeds them from a base seed.

    A worker that dies or misses its deadline ends the stream with a `WorkerError`: a DataLoader replaces none.
    """

    def _start_workers(self) -> None:
        self._stream: Any = None
        self._processes, self._channels = [], []
        ends: list[tuple[Endpoint, Channel]] = []
        for _ in range(self._num_workers):
            channel, worker_channel = self._server.transport.pair()
            self._channels.append(channel)
            ends.append((self._server.connect(), worker_channel))
        earlier = set(multiprocessing.active_children())
        try:
            with self._forking():
                self._stream = self._started(MessageStream(ends))
        finally:
            self._processes = [process for process in multiprocessing.active_children() if process not in earlier]
            for endpoint, worker_channel in ends:
                endpoint.detach()
                worker_channel.detach()
        for channel in self._channels:
            with suppress(OSError):  # a dead worker is reported when its message is due
                channel.connection.send_bytes(self._payload)

    def close(self) -> None:
        """Kill all workers at once, busy or not; they hold nothing that other processes need."""
        self._kill()
        for process in self._processes:
            remove_shared_memory(process.pid or 0)
        self._stream = None  # torch closes its queues; its workers are dead
        while self._channels:
            self._channels.pop().close()

    def _started(self, stream: MessageStream) -> Iterator[int]:
        """Start the loader's workers and return its iterator.

        Raises:
            WorkerError: a worker died during its start, or the system has no resources for it.
        """
        with _restored_hooks():
            try:
                loader = DataLoader(
                    stream,
                    batch_size=None,
                    num_workers=self._num_workers,
                    prefetch_factor=1,
                    multiprocessing_context=self._context,
                    generator=torch.Generator().manual_seed(self._seed),
                )
                return iter(loader)
            except (EOFError, OSError) as error:
                reason = repr(error)
        raise WorkerError(f"a worker died during its start: {reason}; workers.backend=processes restarts it")

    def _take(self, worker_id: int) -> tuple[str, Channel, Any]:
        name, channel = f"worker {worker_id}", self._channels[worker_id]
        try:
            if not wait([channel.connection], self._deadline_s):
                self._kill()
                raise WorkerError(f"{name}: {missed_deadline(self._deadline_s)}")
            channel.connection.recv_bytes()
            next(self._stream)
            return name, channel, channel.receive()
        except (EOFError, OSError):
            raise WorkerError(self._death(name)) from None
        except (RuntimeError, StopIteration) as error:
            if isinstance(error, WorkerError):
                raise
            raise WorkerError(f"{name}: {error}") from None
        except MessageError as error:
            raise WorkerError(self._death(name) if self._dead() else f"{name}: {error}") from error

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def _dead(self) -> list[Any]:
        wait([process.sentinel for process in self._processes], EXIT_TIMEOUT_S)
        return [process for process in self._processes if process.exitcode is not None]

    def _death(self, name: str) -> str:
        causes = [f"(pid {process.pid}) {cause_of_death(process.exitcode)}" for process in self._dead()]
        cause = ", ".join(causes) or "closed its pipe"
        return f"{name} {cause}; workers.backend=dataloader restarts none, workers.backend=processes does"


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
