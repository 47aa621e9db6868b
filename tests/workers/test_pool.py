"""Restarts of worker processes; tests/contracts has the common behaviour of pools."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from itertools import count
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.workers import ProxyServer, Served
from gflownet.workers import pool as worker_processes
from gflownet.workers.pool import WorkerError, WorkerPool
from gflownet.workers.transport import PickleTransport
from tests.workers import producers
from tests.workers.messages import TRANSPORTS
from tests.workers.pools import SOON_S, next_of, workers
from tests.workers.producers import Desk, double


@pytest.fixture
def desk() -> Desk:
    return Desk()


WAYS_TO_DIE = (
    producers.die_between_messages,
    producers.die_writing_a_call,
    producers.die_writing_to_the_pipe,
    producers.die_waiting_for_an_answer,
)


# One transport for each way to die; all pairs are slow.
CHOSEN = set(zip(("buffer", "queue", "pickle", "queue"), WAYS_TO_DIE, strict=True))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=() if (name, how) in CHOSEN else pytest.mark.slow)
        for name in TRANSPORTS
        for how in WAYS_TO_DIE
    ],
)
def test_pool_replaces_killed_worker(name, how):
    with workers(TRANSPORTS[name](), producers.Dies(how), num_workers=2, max_restarts=1) as pool:
        before = next_of(pool, 4)
        with pytest.warns(UserWarning, match=r"worker 0 \(pid \d+\) was killed by SIGKILL .*restart 1 of 1"):
            after = next_of(pool, 6)
    assert [(note.worker, note.generation, note.turn) for note in before + after] == [
        *((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)),
        *((0, 1, 0), (1, 0, 2), (0, 1, 1), (1, 0, 3), (0, 1, 2), (1, 0, 4)),
    ]
    assert not torch.equal(after[0].answer, before[0].answer)


def test_pool_keeps_finished_message_of_killed_worker(desk):
    """Its message lies in the pipe already; only the one after that comes from its successor."""
    with workers(PickleTransport(), producers.reports_each, desk, max_restarts=1) as pool:
        assert pool.next() == 0
        (worker,) = pool._workers
        assert worker.channel.connection.poll(SOON_S)
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.join()
        with pytest.warns(UserWarning, match="; restart "):
            messages = next_of(pool, 2)
    assert messages == [1, 0]


def test_pool_too_many_restarts_raises():
    with workers(PickleTransport(), producers.Dies(die_now, 9), max_restarts=2) as pool:
        next_of(pool, 2)
        with pytest.warns(UserWarning, match="restart . of 2"):
            next_of(pool, 4)
        with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\) was killed by SIGKILL .* after 2 restarts"):
            pool.next()


def die_now(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesReading:
    """Kills the process that unpickles it, once: as long as a file is there."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self):
        return _die_once, (str(self.sign),)


def _die_once(sign: str) -> None:
    if os.path.exists(sign):
        os.unlink(sign)
        os.kill(os.getpid(), signal.SIGKILL)


class DeadlySeed:
    """An argument of a process: its first reader dies, later ones get a seed."""

    def __init__(self, sign: Path, padding: int) -> None:
        self.sign, self.padding = sign, bytes(padding)

    def __reduce__(self):
        return _last, (DiesReading(self.sign), self.padding, 0)


def _last(*values: Any) -> Any:
    return values[-1]


MORE_THAN_A_PIPE_HOLDS = 1 << 20  # so that the main process is still writing when the reader dies


@pytest.mark.parametrize(
    ("start_method", "padding", "loss"),
    [
        ("forkserver", MORE_THAN_A_PIPE_HOLDS, "worker 0 died during its start: BrokenPipeError"),
        ("forkserver", 0, "worker 0 .* was killed by SIGKILL"),
        pytest.param("spawn", 0, "worker 0 .* was killed by SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_pool_replaces_worker_killed_during_start(tmp_path, monkeypatch, start_method, padding, loss):
    sign = tmp_path / "sign"
    sign.touch()
    monkeypatch.setattr(worker_processes, "stream_seed", lambda *_: DeadlySeed(sign, padding))
    with (
        pytest.warns(UserWarning, match=rf"{loss}.*; restart 1 of 1"),
        workers(PickleTransport(), producers.sample, max_restarts=1, start_method=start_method) as pool,
    ):
        note = pool.next()
    assert (note.worker, note.generation, note.turn) == (0, 1, 0)


def test_pool_start_failure_raises(tmp_path, monkeypatch):
    sign = tmp_path / "sign"
    sign.touch()
    monkeypatch.setattr(worker_processes, "stream_seed", lambda *_: DeadlySeed(sign, MORE_THAN_A_PIPE_HOLDS))
    with (
        pytest.raises(WorkerError, match=r"worker 0 died during its start: .*, after 0 restarts, the max"),
        workers(PickleTransport(), producers.sample),
    ):
        pass


@pytest.mark.parametrize("produce", [producers.HangsOnce(in_a_call=False), producers.HangsOnce(in_a_call=True)])
def test_pool_replaces_hanging_worker(produce, monkeypatch):
    """Only the message of the hanging worker has a short deadline, so that none is missed on a busy machine."""
    with workers(PickleTransport(), produce, num_workers=2, max_restarts=1) as pool:
        before = next_of(pool, 2)
        waits, wait = count(), worker_processes.wait
        monkeypatch.setattr(worker_processes, "wait", lambda on, timeout: wait(on, timeout if next(waits) else 0.2))
        with pytest.warns(UserWarning, match=r"worker 0 .*: expected a message within .* s, got none; it was killed"):
            after = next_of(pool, 4)
        with pytest.raises(ProcessLookupError):
            os.kill(before[0].pid, 0)
    assert [(note.worker, note.generation, note.turn) for note in after] == [(0, 1, 0), (1, 0, 1), (0, 1, 1), (1, 0, 2)]


def test_pool_close_kills_waiting_worker():
    with workers(PickleTransport(), producers.hangs_in_a_call) as pool:
        process = pool._workers[0].process
        pool.close()
    with pytest.raises(ValueError, match="closed"):
        process.is_alive()


def refusal(served: Served) -> str:
    with (
        ProxyServer({"double": served}, transport=PickleTransport()) as server,
        pytest.raises(ValueError, match="expected auto, forkserver or spawn, got fork, which is unsafe: ") as caught,
    ):
        WorkerPool(producers.sample, server, num_workers=1, start_method="fork")
    return str(caught.value).partition("unsafe: ")[2]


def test_pool_unsafe_fork_raises(monkeypatch):
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


def test_start_context_forkserver_preload(monkeypatch):
    preloaded: list[str] = []
    monkeypatch.setattr(BaseContext, "set_forkserver_preload", lambda _, names: preloaded.extend(names))
    monkeypatch.setitem(sys.modules, "torch_geometric", sys)
    server: Any = None  # read by the start method fork only
    worker_processes.start_context(server, producers.sample, num_workers=1, start_method="auto")
    assert {"__main__", "tests.workers.producers", "gflownet.workers.transport", "torch_geometric"} <= set(preloaded)
    assert not [name for name in preloaded if name.startswith("torch.")]


def test_pool_replaces_worker_killed_while_sending(transport):
    with workers(transport, producers.dies_sending, max_restarts=1) as pool:
        first = pool.next()
        with pytest.warns(UserWarning, match="; restart "):
            second = pool.next()
    assert (first.generation, second.generation, second.turn) == (0, 1, 0)
