"""Contract of the worker backends: process pool and torch DataLoader."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from multiprocessing import active_children
from typing import Any

import pytest
import torch

from gflownet.workers import ProxyServer
from gflownet.workers.packing import MessageError
from gflownet.workers.pool import WorkerError
from gflownet.workers.proxy import RemoteTraceback
from gflownet.workers.transport import PickleTransport
from tests.test_trainer import wait_until
from tests.workers import producers
from tests.workers.conftest import transport  # noqa: F401
from tests.workers.messages import TRANSPORTS, assert_same, cases, named_memory
from tests.workers.pools import BACKENDS, SOON_S, next_of, workers
from tests.workers.producers import Desk


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_worker_pool_returns_messages_in_worker_order(backend, transport):  # noqa: F811
    with workers(transport, producers.sample, backend=backend, num_workers=3) as pool:
        notes = next_of(pool, 7)
    assert [(note.worker, note.turn) for note in notes] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]
    assert len({note.pid for note in notes} | {os.getpid()}) == 4


def test_worker_backends_and_transports_give_equal_messages():
    streams = []
    for backend in BACKENDS:
        for make in TRANSPORTS.values():
            with workers(make(), producers.sample, backend=backend) as pool:
                streams.append([note.answer for note in next_of(pool, 3)])
    for stream in streams[1:]:
        assert_same(stream, streams[0])


def test_worker_message_round_trip(backend, transport):  # noqa: F811
    with workers(transport, producers.every_case, backend=backend) as pool:
        for name, message in cases().items():
            assert_same(next_case(pool, name), message, name)


def next_case(pool: Any, expected_name: str) -> Any:
    name, message = pool.next()
    return message if name == expected_name else next_case(pool, expected_name)


def test_worker_prefetches_one_message(backend, desk):
    with workers(PickleTransport(), producers.reports_each, desk, backend=backend) as pool:
        assert next_of(pool, 2) == [0, 1]
        pool.next()
        assert desk.notes in ([0, 1, 2], [0, 1, 2, 3])


def test_worker_process_environment(backend, desk):
    with workers(TRANSPORTS["buffer"](), producers.surroundings, desk, backend=backend) as pool:
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


def test_worker_info_and_seeded_generators_per_worker(backend):
    """As in a DataLoader: worker_info holds the index, and global generators differ between workers."""
    streams = []
    for _ in range(2):
        with workers(PickleTransport(), producers.draws, backend=backend, num_workers=2, seed=5) as pool:
            streams.append(next_of(pool, 4))
    with workers(PickleTransport(), producers.draws, backend=backend, num_workers=2, seed=6) as pool:
        streams.append(next_of(pool, 4))
    assert [(draw.worker, draw.num_workers) for draw in streams[0]] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    values = [[draw.values for draw in stream] for stream in streams]
    assert values[0] == values[1]
    flat = [value for stream in (values[0], values[2]) for draws in stream for value in draws]
    assert len(set(flat)) == len(flat) == 32


def test_worker_starting_a_process_raises(backend):
    with (
        workers(PickleTransport(), producers.starts_a_child, backend=backend) as pool,
        pytest.raises(WorkerError, match="daemonic processes are not allowed to have children"),
    ):
        pool.next()


def test_worker_exception_is_raised_with_remote_traceback(backend):
    with workers(TRANSPORTS["queue"](), producers.fails, backend=backend) as pool:
        assert pool.next() == 0
        with pytest.raises(WorkerError, match=r"worker 0 .*failed: .*TwoArgumentError: node 3: bad") as caught:
            pool.next()
    assert caught.value.__cause__ is not None
    remote = caught.value.__cause__.__cause__
    assert isinstance(remote, RemoteTraceback)
    assert "in fails\n    raise TwoArgumentError(3" in remote.text


def test_worker_unsupported_message_raises_worker_error(backend):
    with (
        workers(TRANSPORTS["buffer"](), producers.sends_what_cannot_travel, backend=backend) as pool,
        pytest.raises(WorkerError, match=r"\['a'\]\[1\]: expected a tensor without a gradient"),
    ):
        pool.next()


def test_worker_end_of_stream_raises(backend):
    with workers(PickleTransport(), producers.ends, backend=backend) as pool:
        assert pool.next() == 0
        with pytest.raises(WorkerError, match="expected messages without end, got the end of the stream"):
            pool.next()


@pytest.mark.parametrize("how", [producers.die_between_messages, producers.die_waiting_for_an_answer])
def test_worker_killed_raises_worker_error(backend, how):
    with workers(TRANSPORTS["buffer"](), producers.Dies(how), backend=backend, num_workers=2) as pool:
        next_of(pool, 4)
        with pytest.raises(WorkerError, match=r"^worker 0 \(pid \d+\) was killed by SIGKILL \(out of memory\?\)"):
            next_of(pool, 2)


def test_worker_exit_raises_worker_error(backend):
    with workers(PickleTransport(), producers.Dies(producers.leave), backend=backend) as pool:
        next_of(pool, 2)
        with pytest.raises(WorkerError, match=r"^worker 0 \(pid \d+\) exited with status 7"):
            pool.next()


@pytest.mark.parametrize("produce", [producers.hangs, producers.hangs_in_a_call])
def test_worker_hanging_is_killed_at_deadline(backend, produce):
    with workers(PickleTransport(), produce, backend=backend, deadline_s=1.0) as pool:
        with pytest.raises(WorkerError, match=r"worker 0.*: expected a message within 1.0 s, got none; it was killed"):
            next_of(pool, 2)
        assert active_children() == []


@pytest.mark.parametrize("holds_interpreter", [False, True])
def test_pool_close_ends_busy_workers(backend, desk, holds_interpreter):
    with workers(TRANSPORTS["buffer"](), producers.Busy(holds_interpreter), desk, backend=backend) as pool:
        assert desk.reported.wait(SOON_S)
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < SOON_S
    (pid,) = desk.notes
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("name", ["buffer", "queue"])
def test_pool_close_releases_memory_files_and_threads(backend, name):
    def use() -> None:
        with workers(TRANSPORTS[name](), producers.sample, backend=backend, num_workers=2) as pool:
            pids = {note.pid for note in next_of(pool, 4)}
        assert named_memory(os.getpid(), *pids) == []
        for thread in threading.enumerate():
            if thread.name.startswith("QueueFeederThread"):  # of torch; it closes its pipe when it ends
                thread.join(SOON_S)

    use()
    gc.collect()  # leftovers of earlier tests
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    use()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before and threading.active_count() <= threads, seconds=60)


def test_pool_with_more_workers_than_processors_does_not_warn(backend):
    with warnings.catch_warnings(), workers(PickleTransport(), producers.sample, backend=backend, num_workers=3):
        warnings.simplefilter("error")


def test_pool_with_unpicklable_function_raises(backend):
    with (
        pytest.raises(MessageError, match="worker function: expected a picklable object"),
        workers(PickleTransport(), lambda *_: iter(()), backend=backend),
    ):
        pass


def test_pool_without_workers_raises(backend):
    with (
        pytest.raises(ValueError, match="num_workers: expected at least 1, got 0"),
        workers(PickleTransport(), producers.sample, backend=backend, num_workers=0),
    ):
        pass


def test_pool_with_unsafe_fork_raises(backend, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with (
        ProxyServer({}, transport=PickleTransport()) as server,
        pytest.raises(ValueError, match="got fork, which is unsafe: torch computes in 2 threads"),
    ):
        BACKENDS[backend](producers.sample, server, num_workers=1, start_method="fork")
