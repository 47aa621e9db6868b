"""Main programs for faults that would end or change the tests' own process.

Most run in a child of the fork server, which has imported torch. The end of the interpreter needs a separate process:
python -m tests.workers.scenarios NAME TRANSPORT START_METHOD.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from gflownet.workers import Endpoint, ProxyServer, Served, WorkerInfo
from gflownet.workers.pool import WorkerPool
from gflownet.workers.transport import BufferTransport, PickleTransport, QueueTransport, Transport
from tests.workers.producers import Busy, Desk, double, sample

TRANSPORTS = {"buffer": lambda: BufferTransport(1 << 26), "pickle": PickleTransport, "queue": QueueTransport}
NUM_TENSORS, MAX_OPEN_FILES = 40, 128
LARGE, SMALL = 60_000, 10  # numbers in each of the tensors: 9.6 MB together, or next to nothing
Say = Callable[[Any], None]


def waits_busily(say: Say, transport: Transport, start_method: Any) -> None:
    """Start a worker that computes and one that waits; wait to be killed."""
    desk = Desk()
    served = {"desk": Served(desk), "double": Served(double)}
    with (
        ProxyServer(served, transport=transport) as server,
        WorkerPool(sample, server, num_workers=1, start_method=start_method) as pool,
        WorkerPool(Busy(holds_interpreter=False), server, num_workers=1, start_method=start_method),
    ):
        pool.next()
        desk.reported.wait()
        say("ready")
        threading.Event().wait()


def multiply(info: WorkerInfo, endpoint: Endpoint) -> Iterator[tuple[int, float]]:
    while True:
        yield os.getpid(), float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())


def leaves_without_closing(say: Say, transport: Transport, start_method: Any) -> None:
    """Multiply on two threads, then in a worker; end while the worker is there, as an unhandled error would."""
    torch.set_num_threads(2)
    say((torch.ones(600, 600) @ torch.ones(600, 600)).sum().item())
    server = ProxyServer({}, transport=transport)
    try:
        WorkerPool(multiply, server, num_workers=1, start_method=start_method)
    except ValueError as error:
        say(str(error))
    torch.set_num_threads(1)
    pool = WorkerPool(multiply, server, num_workers=1, start_method=start_method, deadline_s=60)
    say(pool.next())
    raise KeyError("unhandled")


class Sends:
    """Sends 40 tensors, and yields the answer."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, info: WorkerInfo, endpoint: Endpoint) -> Iterator[Any]:
        while True:
            tensors = [torch.full((self.size,), float(index)) for index in range(NUM_TENSORS)]
            yield endpoint.proxy("all")(tensors)


def double_all(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor * 2 for tensor in tensors]


def has_little_shared_memory(say: Say, _: Transport, start_method: Any) -> None:
    """Send the warnings, by transport, when large messages move between four workers."""
    say({name: warnings_of(make(), LARGE, start_method) for name, make in TRANSPORTS.items()})


def may_open_few_files(say: Say, _: Transport, start_method: Any) -> None:
    """Send the warnings, by transport, when messages of many tensors move between four workers."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, MAX_OPEN_FILES))
    say({name: warnings_of(make(), SMALL, start_method) for name, make in TRANSPORTS.items()})


def warnings_of(transport: Transport, size: int, start_method: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with (
            ProxyServer({"all": Served(double_all)}, transport=transport) as server,
            WorkerPool(Sends(size), server, num_workers=4, start_method=start_method, deadline_s=60) as pool,
        ):
            for _ in range(5):
                message = pool.next()
                assert [float(tensor[-1]) for tensor in message] == [2.0 * index for index in range(NUM_TENSORS)]
    return [str(warning.message) for warning in caught]


def in_child(scenario: str, transport: str, start_method: str, outlet: Connection, errors: str) -> None:
    """Run a scenario in a new session; its results go through a pipe."""
    os.setsid()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    globals()[scenario](outlet.send, TRANSPORTS[transport](), start_method)


def say_in_json(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, scenario, name, method = sys.argv
    globals()[scenario](say_in_json, TRANSPORTS[name](), method)
