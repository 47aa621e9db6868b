"""Life and death of workers, in processes: rows 8, 11, 12, 13, 15 and 16 of the list of faults, and a clean end."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gflownet.utils.failures import RemoteTraceback
from gflownet.utils.multiprocessing_proxy import ProxyServer, Served
from gflownet.utils.packing import MessageError
from gflownet.utils.transport import PickleTransport
from gflownet.utils.worker_processes import WorkerError, WorkerPool
from tests.utils import producers
from tests.utils.messages import TRANSPORTS, assert_same, cases, named_memory
from tests.utils.producers import Desk, double

SOON_S = 20.0  # longer than anything here takes; reached only by a test that fails


@pytest.fixture
def desk() -> Desk:
    return Desk()


@contextmanager
def workers(transport, produce: Any, desk: Desk | None = None, **options: Any) -> Iterator[WorkerPool]:
    stuck = threading.Event()
    served = {"double": Served(double), "desk": Served(desk or Desk()), "stuck": Served(stuck, is_slow=True)}
    options = {"num_workers": 1, "deadline_s": SOON_S, **options}
    with ProxyServer(served, transport=transport) as server, WorkerPool(produce, server, **options) as pool:
        yield pool
    stuck.set()


def next_of(pool: WorkerPool, count: int) -> list[Any]:
    return [pool.next() for _ in range(count)]


def test_messages_come_in_turn_from_workers_that_call_the_main_process(transport):
    with workers(transport, producers.sample, num_workers=3) as pool:
        notes = next_of(pool, 7)
    assert [(note.worker, note.turn) for note in notes] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]
    assert len({note.pid for note in notes} | {os.getpid()}) == 4


def test_every_transport_delivers_the_same_bits():
    streams = []
    for make in TRANSPORTS.values():
        with workers(make(), producers.sample) as pool:
            streams.append([note.answer for note in next_of(pool, 3)])
    assert_same(streams[0], streams[1])
    assert_same(streams[0], streams[2])


def test_any_message_arrives_as_it_was(transport):
    with workers(transport, producers.every_case) as pool:
        for name, message in cases().items():
            assert_same(next_case(pool, name), message, name)


def next_case(pool: WorkerPool, wanted: str) -> Any:
    name, message = pool.next()
    return message if name == wanted else next_case(pool, wanted)


def test_one_message_is_prepared_ahead_and_no_more(desk):
    with workers(PickleTransport(), producers.reports_each, desk) as pool:
        assert next_of(pool, 2) == [0, 1]
        pool.next()
        assert desk.notes in ([0, 1, 2], [0, 1, 2, 3])


def test_a_worker_is_a_daemon_that_computes_on_one_thread_and_whose_calls_run_in_the_main_process(transport, desk):
    with workers(transport, producers.surroundings, desk) as pool:
        seen = pool.next()
    assert desk.notes[0] == "hello"
    assert seen.pop("pid") != os.getpid()
    assert seen == {
        "called in": os.getpid(),
        "buffers held open": 0,
        "daemon": True,
        "threads": 1,
        "device": torch.device("cpu"),
        "interrupt": True,
        "terminate": True,
    }


def test_a_worker_cannot_start_processes():
    with (
        workers(PickleTransport(), producers.starts_a_child) as pool,
        pytest.raises(WorkerError, match="daemonic processes are not allowed to have children"),
    ):
        pool.next()


def test_an_exception_of_a_worker_arrives_at_once_with_its_traceback(transport):
    with workers(transport, producers.fails) as pool:
        assert pool.next() == 0
        with pytest.raises(
            WorkerError, match=r"worker 0 \(pid \d+\) failed: .*TwoArgumentError: node 3: bad"
        ) as caught:
            pool.next()
    assert caught.value.__cause__ is not None
    remote = caught.value.__cause__.__cause__
    assert isinstance(remote, RemoteTraceback)
    assert "in fails\n    raise TwoArgumentError(3" in remote.text


def test_what_cannot_travel_is_the_workers_failure(transport):
    with (
        workers(transport, producers.sends_what_cannot_travel) as pool,
        pytest.raises(WorkerError, match=r"\['a'\]\[1\]: expected a tensor without a gradient"),
    ):
        pool.next()


def test_a_stream_that_ends_is_a_failure():
    with workers(PickleTransport(), producers.ends) as pool:
        assert pool.next() == 0
        with pytest.raises(WorkerError, match="expected messages for ever, got the end of the stream"):
            pool.next()


WAYS_TO_DIE = (
    producers.die_between_messages,
    producers.die_writing_a_call,
    producers.die_writing_to_the_pipe,
    producers.die_waiting_for_an_answer,
)


@pytest.mark.parametrize("how", WAYS_TO_DIE)
def test_a_killed_worker_is_replaced_and_the_stream_goes_on(transport, how):
    with workers(transport, producers.Dies(how), num_workers=2, max_restarts=1) as pool:
        before = next_of(pool, 4)
        with pytest.warns(UserWarning, match=r"worker 0 \(pid \d+\) was killed by SIGKILL .*restarted, 1 of 1 times"):
            after = next_of(pool, 6)
    assert [(note.worker, note.generation, note.turn) for note in before + after] == [
        *((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)),
        *((0, 1, 0), (1, 0, 2), (0, 1, 1), (1, 0, 3), (0, 1, 2), (1, 0, 4)),
    ]
    assert not torch.equal(after[0].answer, before[0].answer)


def test_a_worker_killed_while_it_sends_is_replaced(transport):
    with workers(transport, producers.dies_sending, max_restarts=1) as pool:
        first = pool.next()
        with pytest.warns(UserWarning, match="restarted"):
            second = pool.next()
    assert (first.generation, second.generation, second.turn) == (0, 1, 0)


def test_a_worker_killed_from_outside_loses_nothing_that_it_finished(transport, desk):
    """Its message lies in the pipe already; only the one after that comes from its successor."""
    with workers(transport, producers.reports_each, desk, max_restarts=1) as pool:
        assert pool.next() == 0
        (worker,) = pool._workers
        assert worker.channel.connection.poll(SOON_S)
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.join()
        with pytest.warns(UserWarning, match="restarted"):
            messages = next_of(pool, 2)
    assert messages == [1, 0]


def test_a_worker_that_dies_too_often_is_an_error_that_says_so():
    with workers(PickleTransport(), producers.Dies(die_now, 9), max_restarts=2) as pool:
        next_of(pool, 2)
        with pytest.warns(UserWarning, match="of 2 times"):
            next_of(pool, 4)
        with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\) was killed by SIGKILL .* after 2 restarts"):
            pool.next()


def test_a_worker_that_leaves_is_replaced_too():
    with workers(PickleTransport(), producers.Dies(leave), max_restarts=1) as pool:
        next_of(pool, 2)
        with pytest.warns(UserWarning, match="exited with status 7"):
            assert pool.next().generation == 1


def die_now(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(_: Any) -> None:
    os._exit(7)


@pytest.mark.parametrize("produce", [producers.hangs, producers.hangs_in_a_call])
def test_a_worker_that_hangs_is_killed_at_its_deadline(produce):
    with workers(PickleTransport(), producers.sample) as warm:  # the fork server is up
        warm.next()
    with workers(PickleTransport(), produce, deadline_s=1.5) as pool:
        start = time.monotonic()
        with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\): expected a message within 1.5 s, got none"):
            next_of(pool, 2)
        assert time.monotonic() - start < 5
        pool._workers[0].process.join(SOON_S)
        assert pool._workers[0].process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("holds_interpreter", [False, True])
def test_closing_ends_busy_workers_within_two_seconds(transport, desk, holds_interpreter):
    with workers(transport, producers.Busy(holds_interpreter), desk) as pool:
        assert desk.reported.wait(SOON_S)
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < 2
    (pid,) = desk.notes
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_closing_ends_a_worker_that_waits_for_an_answer(transport):
    with workers(transport, producers.hangs_in_a_call) as pool:
        process = pool._workers[0].process
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < 2
    with pytest.raises(ValueError, match="closed"):
        process.is_alive()


def test_nothing_is_left_behind(transport):
    """Of pools whose workers die, too."""

    def use() -> None:
        with workers(transport, producers.Dies(producers.die_sharing_memory), num_workers=2, max_restarts=1) as pool:
            pids = {note.pid for note in next_of(pool, 4)}
            with pytest.warns(UserWarning, match="restarted"):
                pids |= {note.pid for note in next_of(pool, 3)}
        assert named_memory(os.getpid(), *pids) == []

    use()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    use()
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


def test_what_workers_do_must_be_picklable():
    with (
        pytest.raises(MessageError, match="what workers do: expected something that can be pickled"),
        workers(PickleTransport(), lambda *_: iter(())),
    ):
        pass


def test_there_must_be_a_worker():
    with (
        pytest.raises(ValueError, match="num_workers: expected at least 1, got 0"),
        workers(PickleTransport(), producers.sample, num_workers=0),
    ):
        pass


def refusal(served: Served) -> str:
    """Return why forking is refused."""
    with (
        ProxyServer({"double": served}, transport=PickleTransport()) as server,
        pytest.raises(ValueError, match="expected auto, forkserver or spawn, got fork, which is unsafe: ") as caught,
    ):
        WorkerPool(producers.sample, server, num_workers=1, start_method="fork")
    return str(caught.value).partition("unsafe: ")[2]


def test_fork_is_refused_where_it_is_not_safe(monkeypatch):
    plain, slow = Served(double), Served(double, is_slow=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert refusal(plain) == "torch computes in 2 threads"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert refusal(plain) == "CUDA is in use"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert refusal(slow) == "slow objects are served, in threads"
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="something else")
    thread.start()
    assert re.fullmatch(r"other threads run \(.*something else.*\)", refusal(plain))
    stop.set()
    thread.join()
