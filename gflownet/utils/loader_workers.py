"""The same workers in torch's DataLoader: an IterableDataset of messages, in order, without restarts."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import get_worker_info as get_loader_worker_info

from gflownet.utils.channel import Channel
from gflownet.utils.failures import Failure
from gflownet.utils.packing import MessageError
from gflownet.utils.proxy import Endpoint
from gflownet.utils.proxy_server import ProxyServer
from gflownet.utils.transport import remove_remains
from gflownet.utils.worker import Produce, become_worker, frames
from gflownet.utils.worker_context import WorkerInfo
from gflownet.utils.worker_processes import (
    DEATH_S,
    StartMethod,
    WorkerError,
    cause_of_death,
    forking,
    missed,
    pickled,
    start_context,
)

Line = tuple[Endpoint, Channel]  # a worker's end of the server, and of the way that its messages take


class MessageStream(IterableDataset):
    """Messages of a `Produce`, one stream per DataLoader worker.

    The loader's queue, which all workers share, carries the worker's id alone, in a few bytes that are written at once.
    The message follows by the transport: as fast as with `WorkerPool`, and a worker that dies leaves no half of one in
    the shared queue.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[int]:
        """Prepare this worker and return its stream."""
        loader_info = get_loader_worker_info()
        assert loader_info is not None, "called in a worker"
        info = WorkerInfo(loader_info.id, loader_info.num_workers, seed=loader_info.seed)
        become_worker(info)
        for number, (endpoint, channel) in enumerate(self._lines):
            if number != info.id:  # or the end of the worker that owns them would go unnoticed
                endpoint.channel.close()
                channel.close()
        return self._stream(info, *self._lines[info.id])

    def _stream(self, info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> Iterator[int]:
        try:
            for frame in frames(info, endpoint, channel):
                channel.connection.send_bytes(b"")  # ready
                yield info.id
                channel.connection.send_bytes(frame)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the main process hung up


class LoaderPool:
    """Workers of a DataLoader that produce messages, taken in turn, one prepared ahead. A context manager.

    A worker that dies or misses its deadline ends the stream with a `WorkerError`: a DataLoader replaces none.

    Args:
        produce: called in each worker; yields messages for ever, and may call the served objects.
        server: answers calls; messages take its transport; it must outlive the pool.
        num_workers: how many, at least 1.
        start_method: fork (refused where it is not safe), forkserver or spawn; auto is forkserver.
        deadline_s: how long to wait for one message at most; None: no deadline.
        seed: the loader's base seed, from which torch seeds each worker, is drawn from it.

    Raises:
        MessageError: `produce` cannot be pickled.
        ValueError: forking is not safe here, or there is no worker.
        WorkerError: a worker died while it was started, or could not be.
    """

    def __init__(
        self,
        produce: Produce,
        server: ProxyServer,
        *,
        num_workers: int,
        start_method: StartMethod = "auto",
        deadline_s: float | None = None,
        seed: int = 0,
    ) -> None:
        context = start_context(server, produce, num_workers=num_workers, start_method=start_method)
        payload = pickled(produce)
        self._deadline_s, self._num_taken, self._channels = deadline_s, 0, []
        lines: list[Line] = []
        for _ in range(num_workers):
            near, far = server.transport.pair()
            self._channels.append(near)
            lines.append((server.connect(), far))
        loader = _loader(MessageStream(lines), context, num_workers=num_workers, seed=seed)
        others = set(multiprocessing.active_children())
        try:
            with forking(server) if context.get_start_method() == "fork" else nullcontext():
                self._stream: Any = _started(loader)
        finally:
            self._processes = [process for process in multiprocessing.active_children() if process not in others]
            for endpoint, far in lines:
                endpoint.detach()
                far.detach()
            if not hasattr(self, "_stream"):
                self.close()
        for near in self._channels:
            with suppress(OSError):  # one that has died is noticed when it is its turn
                near.connection.send_bytes(payload)

    def next(self) -> Any:
        """Return the next message; its worker begins another.

        Raises:
            WorkerError: the worker failed, died or missed its deadline.
        """
        worker_id = self._num_taken % len(self._channels)
        channel = self._channels[worker_id]
        try:
            if not wait([channel.connection], self._deadline_s):
                self._end()
                raise WorkerError(f"worker {worker_id}: {missed(self._deadline_s)}")
            channel.connection.recv_bytes()
            next(self._stream)
            message = channel.receive()
        except (EOFError, OSError):
            raise WorkerError(self._death(worker_id)) from None
        except (RuntimeError, StopIteration) as error:
            if isinstance(error, WorkerError):
                raise
            raise WorkerError(f"worker {worker_id}: {error}") from None
        except MessageError as error:
            raise WorkerError(self._death(worker_id) if self._dead() else f"worker {worker_id}: {error}") from error
        self._num_taken += 1
        with suppress(OSError):  # it may have died since
            channel.connection.send_bytes(b"")
        if isinstance(message, Failure):
            raise WorkerError(f"worker {worker_id} failed: {message.summary}") from message.error()
        return message

    def close(self) -> None:
        """End all workers at once, busy or not."""
        self._end()
        for process in self._processes:
            remove_remains(process.pid or 0)
        self._stream = None  # torch closes its queues; it finds its workers dead
        while self._channels:
            self._channels.pop().close()

    def __enter__(self) -> LoaderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def _dead(self) -> list[Any]:
        wait([process.sentinel for process in self._processes], DEATH_S)
        return [process for process in self._processes if process.exitcode is not None]

    def _death(self, worker_id: int) -> str:
        causes = [f"(pid {process.pid}) {cause_of_death(process.exitcode)}" for process in self._dead()]
        how = ", ".join(causes) or "hung up"
        return f"worker {worker_id} {how}; workers.backend=dataloader restarts none, workers.backend=processes does"


def _loader(stream: MessageStream, context: Any, *, num_workers: int, seed: int) -> DataLoader:
    with _unchanged_hooks():
        return DataLoader(
            stream,
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=1,
            multiprocessing_context=context,
            generator=torch.Generator().manual_seed(seed),
        )


def _started(loader: DataLoader) -> Iterator[int]:
    """Return the loader's iterator, its workers started.

    Raises:
        WorkerError: one of them died while it was started, or the system has no resources for it.
    """
    with _unchanged_hooks():
        try:
            return iter(loader)
        except (EOFError, OSError) as error:
            reason = repr(error)
    raise WorkerError(f"a worker died while it was started: {reason}; workers.backend=processes restarts it")


@contextmanager
def _unchanged_hooks() -> Iterator[None]:
    """Undo torch's side effects of starting workers.

    Its handler of SIGCHLD would raise in the middle of a training step; deaths are noticed by the pipes, in `next`. The
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
