"""A pool with served test objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gflownet.workers import ProxyServer, Served
from gflownet.workers.pool import WorkerPool
from tests.workers.producers import Desk, double

SOON_S = 60.0  # timeout of a failing test


@contextmanager
def workers(transport: Any, produce: Any, desk: Desk | None = None, **options: Any) -> Iterator[Any]:
    stuck = threading.Event()
    served = {"double": Served(double), "desk": Served(desk or Desk()), "stuck": Served(stuck)}
    options = {"num_workers": 1, "deadline_s": SOON_S, **options}
    with ProxyServer(served, transport=transport) as server, WorkerPool(produce, server, **options) as pool:
        yield pool
    stuck.set()


def next_of(pool: Any, count: int) -> list[Any]:
    return [pool.next() for _ in range(count)]
