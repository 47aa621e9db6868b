"""Workers of a pool: order, environment, failures, deaths, deadlines, resources."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing import active_children
from multiprocessing.context import BaseContext
from typing import Any

import pytest
import torch
from torch.utils.data._utils import signal_handling

from gflownet.workers import pool as worker_processes
from gflownet.workers import transport as transports
from gflownet.workers.packing import MessageError
from gflownet.workers.pool import WorkerError
from gflownet.workers.proxy import RemoteTraceback
from gflownet.workers.transport import Transport
from tests.test_trainer import wait_until
from tests.workers import producers
from tests.workers.messages import TRANSPORTS
from tests.workers.pools import SOON_S, next_of, workers
from tests.workers.producers import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_worker_pool_returns_messages_in_worker_order(transport):
    with workers(transport, producers.sample, num_workers=3) as pool:
        notes = next_of(pool, 7)
    assert [(note.worker, note.turn) for note in notes] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]
    assert len({note.pid for note in notes} | {os.getpid()}) == 4


def test_worker_prefetches_one_message(desk):
    with workers(Transport(None), producers.reports_each, desk) as pool:
        assert next_of(pool, 2) == [0, 1]
        pool.next()
        assert desk.notes in ([0, 1, 2], [0, 1, 2, 3])


def test_worker_process_environment(desk):
    with workers(TRANSPORTS["buffer"](), producers.surroundings, desk) as pool:
        surroundings = pool.next()
    assert desk.notes[0] == "hello"
    assert surroundings.pop("pid") != os.getpid()
    assert surroundings == {
        "called in": os.getpid(),
        "buffers held open": 0,
        "daemon": True,
        "threads": 1,
        "device": torch.device("cpu"),
        "interrupt": True,
        "terminate": True,
    }


def test_worker_info_and_seeded_generators_per_worker():
    """As in a DataLoader: worker_info holds the index, and global generators differ between workers."""
    streams = []
    for _ in range(2):
        with workers(Transport(None), producers.draws, num_workers=2, seed=5) as pool:
            streams.append(next_of(pool, 4))
    with workers(Transport(None), producers.draws, num_workers=2, seed=6) as pool:
        streams.append(next_of(pool, 4))
    assert [(draw.worker, draw.num_workers) for draw in streams[0]] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    values = [[draw.values for draw in stream] for stream in streams]
    assert values[0] == values[1]
    flat = [value for stream in (values[0], values[2]) for draws in stream for value in draws]
    assert len(set(flat)) == len(flat) == 32


def test_worker_starting_a_process_raises():
    with (
        workers(Transport(None), producers.starts_a_child) as pool,
        pytest.raises(WorkerError, match="daemonic processes are not allowed to have children"),
    ):
        pool.next()


def test_worker_exception_is_raised_with_remote_traceback():
    with workers(TRANSPORTS["pickle"](), producers.fails) as pool:
        assert pool.next() == 0
        with pytest.raises(WorkerError, match=r"worker 0 .*failed: .*TwoArgumentError: node 3: bad") as caught:
            pool.next()
    assert caught.value.__cause__ is not None
    remote = caught.value.__cause__.__cause__
    assert isinstance(remote, RemoteTraceback)
    assert "in fails\n    raise TwoArgumentError(3" in remote.text


def test_worker_end_of_stream_raises():
    with workers(Transport(None), producers.ends) as pool:
        assert pool.next() == 0
        with pytest.raises(WorkerError, match="expected messages without end, got the end of the stream"):
            pool.next()


WAYS_TO_DIE = (
    producers.die_between_messages,
    producers.die_writing_a_call,
    producers.die_writing_to_the_pipe,
    producers.die_waiting_for_an_answer,
)
# One transport for each way to die; all pairs are slow.
CHOSEN = set(zip(("buffer", "pickle", "pickle", "buffer"), WAYS_TO_DIE, strict=True))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=() if (name, how) in CHOSEN else pytest.mark.slow)
        for name in TRANSPORTS
        for how in WAYS_TO_DIE
    ],
)
def test_worker_killed_raises_worker_error(name, how):
    with workers(TRANSPORTS[name](), producers.Dies(how), num_workers=2) as pool:
        next_of(pool, 4)
        with pytest.raises(
            WorkerError, match=r"^worker 0 \(pid \d+\) was killed by SIGKILL \(out of memory\?\)$"
        ) as caught:
            next_of(pool, 2)
    assert caught.value.__suppress_context__


def test_worker_killed_while_sending_raises_worker_error(transport):
    with workers(transport, producers.dies_sending) as pool:
        pool.next()
        with pytest.raises(WorkerError, match=r"^worker 0 \(pid \d+\) was killed by SIGKILL"):
            pool.next()


@pytest.mark.slow
def test_worker_killed_after_its_message(desk):
    """Its finished message is in the pipe already; only the one after that is missing."""
    with workers(Transport(None), producers.reports_each, desk) as pool:
        assert pool.next() == 0
        worker = pool._workers[0]
        assert worker.channel.connection.poll(SOON_S)
        os.kill(worker.process.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="was killed by SIGKILL"):
            next_of(pool, 2)


class DiesWhenRead:
    """A worker function whose pickle kills its reader."""

    def __reduce__(self):
        return os._exit, (3,)

    def __call__(self, info: Any, endpoint: Any) -> Iterator[int]:
        yield 0


def test_worker_killed_during_start_raises_worker_error():
    """Also where it died before its first message."""
    with pytest.raises(WorkerError, match="exited with status 3"), workers(Transport(None), DiesWhenRead()) as pool:
        pool.next()
    with (
        pytest.raises(WorkerError, match="was killed by SIGKILL"),
        workers(Transport(None), producers.DiesAtOnce(), num_workers=2) as pool,
    ):
        pool.next()


def test_worker_that_cannot_connect_raises_worker_error(monkeypatch):
    monkeypatch.setattr(transports, "Address", UselessAddress)
    with (
        pytest.raises(WorkerError, match=r"^a worker \(pid \d+\) exited with status 1 during its start$"),
        workers(Transport(None), producers.sample),
    ):
        pass


class UselessAddress(transports.Address):
    def connect(self) -> Any:
        raise OSError(24, "Too many open files")


def ignore(*_: Any) -> None:
    pass


def test_worker_death_does_not_interrupt_main(monkeypatch):
    """Torch's own handler of SIGCHLD would raise there; it is the next message that fails."""
    usual = signal.signal(signal.SIGCHLD, ignore)
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)  # as in a process without DataLoaders
    try:
        with workers(Transport(None), producers.sample) as pool:
            os.kill(pool.next().pid, signal.SIGKILL)
            assert signal.getsignal(signal.SIGCHLD) is ignore
            with pytest.raises(WorkerError, match="was killed by SIGKILL"):
                [pool.next() for _ in range(2)]
    finally:
        signal.signal(signal.SIGCHLD, usual)


def test_a_worker_that_is_killed_with_a_lock_does_not_stop_the_end_of_the_pool(monkeypatch):
    monkeypatch.setattr(worker_processes, "_EXIT_TIMEOUT_S", 0.2)
    with workers(Transport(None), producers.sample) as pool:
        next_of(pool, 1)
        lock = pool._stream._workers_done_event._cond
        lock.acquire()  # as a worker does while it asks whether to end
    lock.release()


@pytest.mark.parametrize("produce", [producers.hangs, producers.hangs_in_a_call])
def test_worker_hanging_is_killed_at_deadline(produce):
    with workers(Transport(None), produce, deadline_s=1.0) as pool:
        with pytest.raises(WorkerError, match=r"worker 0.*: expected a message within 1.0 s, got none; it was killed"):
            next_of(pool, 2)
        assert active_children() == []


@pytest.mark.parametrize("holds_interpreter", [False, True])
def test_pool_close_ends_busy_workers(desk, holds_interpreter):
    with workers(TRANSPORTS["buffer"](), producers.Busy(holds_interpreter), desk) as pool:
        assert desk.reported.wait(SOON_S)
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < SOON_S
    (pid,) = desk.notes
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("name", TRANSPORTS)
def test_pool_close_releases_memory_files_and_threads(name):
    def use() -> None:
        earlier = threading.enumerate()
        with workers(TRANSPORTS[name](), producers.sample, num_workers=2) as pool:
            next_of(pool, 4)
        for thread in {*threading.enumerate()}.difference(earlier):
            if thread.name.startswith("QueueFeederThread"):  # of torch; it closes its pipe when it ends
                thread.join(SOON_S)

    use()
    gc.collect()  # leftovers of earlier tests
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    use()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before and threading.active_count() <= threads, seconds=60)


def test_pool_with_more_workers_than_processors_does_not_warn():
    with warnings.catch_warnings(), workers(Transport(None), producers.sample, num_workers=3):
        warnings.simplefilter("error")


def test_pool_with_unpicklable_function_raises():
    with (
        pytest.raises(MessageError, match="worker function: expected a picklable object"),
        workers(Transport(None), lambda *_: iter(())),
    ):
        pass


def test_pool_without_workers_raises():
    with (
        pytest.raises(ValueError, match="num_workers: expected at least 1, got 0"),
        workers(Transport(None), producers.sample, num_workers=0),
    ):
        pass


def test_pool_forkserver_preload(monkeypatch):
    preloaded: list[str] = []
    monkeypatch.setattr(BaseContext, "set_forkserver_preload", lambda _, names: preloaded.extend(names))
    monkeypatch.setitem(sys.modules, "torch_geometric", sys)
    worker_processes._context(producers.sample)
    assert {"__main__", "tests.workers.producers", "gflownet.workers.transport", "torch_geometric"} <= set(preloaded)
    assert not [name for name in preloaded if name.startswith("torch.")]
