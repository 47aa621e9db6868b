"""Main programs of their own, for what cannot be tried inside the tests' process: python -m tests.utils.scenarios NAME.

What a scenario prints is what its test reads.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from gflownet.utils.multiprocessing_proxy import Endpoint, ProxyServer, Served
from gflownet.utils.transport import BufferTransport, PickleTransport, QueueTransport, Transport
from gflownet.utils.worker_context import WorkerInfo
from gflownet.utils.worker_processes import WorkerPool
from tests.utils.producers import Busy, Desk, double, sample

TRANSPORTS = {"buffer": lambda: BufferTransport(1 << 26), "pickle": PickleTransport, "queue": QueueTransport}


def waits_busily(transport: Transport, start_method: Any) -> None:
    """Have one worker that computes and one that waits to be asked for more; wait to be killed."""
    desk = Desk()
    served = {"desk": Served(desk), "double": Served(double)}
    with (
        ProxyServer(served, transport=transport) as server,
        WorkerPool(sample, server, num_workers=1, start_method=start_method) as pool,
        WorkerPool(Busy(holds_interpreter=False), server, num_workers=1, start_method=start_method),
    ):
        pool.next()
        desk.reported.wait()
        print("ready", flush=True)
        sys.stdin.read()


def multiply(info: WorkerInfo, endpoint: Endpoint) -> Iterator[float]:
    while True:
        yield float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())


def forks_after_openmp(transport: Transport, start_method: Any) -> None:
    """Multiply on two threads, then have workers multiply."""
    torch.set_num_threads(2)
    print((torch.ones(600, 600) @ torch.ones(600, 600)).sum().item())
    with ProxyServer({}, transport=transport) as server:
        try:
            WorkerPool(multiply, server, num_workers=1, start_method=start_method)
        except ValueError as error:
            print(error)
        torch.set_num_threads(1)
        with WorkerPool(multiply, server, num_workers=1, start_method=start_method, deadline_s=60) as pool:
            print(pool.next())


def large(info: WorkerInfo, endpoint: Endpoint) -> Iterator[Any]:
    """Send 16 MB, and get back twice as much as 40 tensors."""
    while True:
        tensors = [torch.full((100_000,), float(index)) for index in range(40)]
        yield endpoint.proxy("all")(tensors)


def double_all(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor * 2 for tensor in tensors]


def in_a_small_world(_: Transport, start_method: Any) -> None:
    """Print what is warned of when large messages of many tensors move between four workers, by transport."""
    print(json.dumps({name: warnings_of(make(), start_method) for name, make in TRANSPORTS.items()}))


def warnings_of(transport: Transport, start_method: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with (
            ProxyServer({"all": Served(double_all)}, transport=transport) as server,
            WorkerPool(large, server, num_workers=4, start_method=start_method, deadline_s=60) as pool,
        ):
            for _ in range(5):
                message = pool.next()
                assert [float(tensor[-1]) for tensor in message] == [2.0 * index for index in range(40)]
    return [str(warning.message) for warning in caught]


def leaves_without_closing(transport: Transport, start_method: Any) -> None:
    """End with workers still there, as an unhandled error would."""
    server = ProxyServer({"double": Served(double)}, transport=transport)
    pool = WorkerPool(sample, server, num_workers=2, start_method=start_method)
    print(pool.next().pid, time.monotonic(), flush=True)
    raise KeyError("unhandled")


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, scenario, name, method = sys.argv
    globals()[scenario](TRANSPORTS[name](), method)
