"""Worker functions and served objects of the tests."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflownet.workers import Endpoint, WorkerInfo, get_worker_device, get_worker_info, get_worker_rng
from tests.workers.messages import TwoArgumentError


class Desk:
    """Records reports of workers; lives in the main process."""

    def __init__(self) -> None:
        self.reported = threading.Event()
        self.notes: list[Any] = []

    def report(self, note: Any) -> int:
        self.notes.append(note)
        self.reported.set()
        return os.getpid()


def double(rows: Tensor) -> Tensor:
    return rows * 2


@dataclass(frozen=True)
class Note:
    worker: int
    turn: int
    pid: int
    answer: Any


def sample(info: WorkerInfo, endpoint: Endpoint) -> Iterator[Note]:
    """Walk at random, by a policy in the main process."""
    generator = torch.Generator().manual_seed(7 + 100 * info.id)
    policy, turn = endpoint.proxy("double"), 0
    while True:
        rows = torch.randn(100, generator=generator)
        for _ in range(5):
            rows = torch.cos(policy(rows))
        yield Note(info.id, turn, os.getpid(), rows)
        turn += 1


def buffers_held_open() -> int:
    return sum("memfd" in os.readlink(entry.path) for entry in os.scandir("/proc/self/fd"))


def surroundings(info: WorkerInfo, endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    while True:
        yield {
            "pid": os.getpid(),
            "called in": endpoint.proxy("desk").report("hello"),
            "buffers held open": buffers_held_open(),
            "daemon": multiprocessing.current_process().daemon,
            "threads": torch.get_num_threads(),
            "device": get_worker_device(),
            "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "terminate": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        }


@dataclass(frozen=True)
class Draw:
    worker: int
    num_workers: int
    values: tuple[float, ...]


def draws(info: WorkerInfo, endpoint: Endpoint) -> Iterator[Draw]:
    while True:
        own = get_worker_info()
        assert own is not None
        assert own == info
        values = (random.random(), float(torch.rand(())), float(np.random.rand()), float(get_worker_rng().rand()))
        yield Draw(own.id, own.num_workers, values)


def starts_a_child(info: WorkerInfo, endpoint: Endpoint) -> Iterator[None]:
    multiprocessing.get_context("forkserver").Process(target=print).start()
    yield None


def reports_each(info: WorkerInfo, endpoint: Endpoint) -> Iterator[int]:
    turn = 0
    while True:
        endpoint.proxy("desk").report(turn)
        yield turn
        turn += 1


def fails(info: WorkerInfo, endpoint: Endpoint) -> Iterator[int]:
    yield 0
    raise TwoArgumentError(3, "bad")


def ends(info: WorkerInfo, endpoint: Endpoint) -> Iterator[int]:
    yield 0


def hangs(info: WorkerInfo, endpoint: Endpoint) -> Iterator[int]:
    yield 0
    threading.Event().wait()


def hangs_in_a_call(info: WorkerInfo, endpoint: Endpoint) -> Iterator[int]:
    yield endpoint.proxy("stuck").wait()


@dataclass(frozen=True)
class Busy:
    holds_interpreter: bool

    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[int]:
        endpoint.proxy("desk").report(os.getpid())
        while True:
            if self.holds_interpreter:
                sum(range(10**15))
        yield 0


class KillsItsReader:
    """Ends the process that takes it apart, in the middle of that."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        return int, ()


def die_writing_a_call(endpoint: Endpoint) -> None:
    endpoint.proxy("double")([torch.ones(1000), KillsItsReader()])


def die_writing_to_the_pipe(endpoint: Endpoint) -> None:
    os.write(endpoint._own_caller().channel.connection.fileno(), b"\x00\x10\x00\x00half a message")
    os.kill(os.getpid(), signal.SIGKILL)


def die_waiting_for_an_answer(endpoint: Endpoint) -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    endpoint.proxy("stuck").wait(5.0)  # the call of another worker waits behind this one


def die_between_messages(endpoint: Endpoint) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Dies:
    """Worker 0 samples twice and dies; other workers only sample."""

    how: Any

    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[Any]:
        for note in sample(info, endpoint):
            if note.turn == 2 and info.id == 0:
                self.how(endpoint)
            yield note


@dataclass(frozen=True)
class DiesAtOnce:
    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[Any]:
        if info.id == 0:
            die_between_messages(endpoint)
        yield from sample(info, endpoint)


def dies_sending(info: WorkerInfo, endpoint: Endpoint) -> Iterator[Any]:
    for note in sample(info, endpoint):
        yield (torch.ones(1000), KillsItsReader()) if note.turn == 1 else note
