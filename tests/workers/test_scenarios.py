"""Killed, interrupted and failing main processes, each in a separate main program."""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.workers import Endpoint, ProxyServer, Served, WorkerInfo
from gflownet.workers.pool import WorkerPool, _context
from tests.workers import producers
from tests.workers.messages import TRANSPORTS

LIMIT_S = 300.0  # reached only by a test that fails
END_S = 60.0


def wait_busily(transport: str, outlet: Connection, errors: str) -> None:
    """Start a worker that computes and one that waits, in a new session; wait to be killed."""
    os.setsid()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    desk = producers.Desk()
    served = {"desk": Served(desk), "double": Served(producers.double)}
    with (
        ProxyServer(served, transport=TRANSPORTS[transport]()) as server,
        WorkerPool(producers.sample, server, num_workers=1) as pool,
        WorkerPool(producers.Busy(holds_interpreter=False), server, num_workers=1),
    ):
        pool.next()
        desk.reported.wait()
        outlet.send("ready")
        threading.Event().wait()


@contextmanager
def busy_child(errors: Path, *, transport: str) -> Iterator[Any]:
    """Yield a main program with workers, started by the fork server, which has imported torch."""
    context = _context(producers.sample)
    near, far = multiprocessing.Pipe(duplex=False)
    process = context.Process(target=wait_busily, args=(transport, far, str(errors)))
    process.start()
    far.close()
    try:
        assert near.poll(LIMIT_S)
        assert near.recv() == "ready"
        yield process
    finally:
        process.kill()
        process.join()
        near.close()


def members(session: int) -> list[int]:
    """Return the processes of a session that live, zombies left out."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == session and state != "Z":
            pids.append(int(path.parent.name))
    return pids


@contextmanager
def end_of_all(session: int) -> Iterator[None]:
    """Check that a session has worker processes, and that all are gone after the block."""
    descriptors = [os.pidfd_open(pid) for pid in members(session) if pid != session]
    assert len(descriptors) >= 2
    yield
    left, deadline = list(descriptors), time.monotonic() + END_S
    while left and (ended := select.select(left, [], [], max(0, deadline - time.monotonic()))[0]):
        left = [descriptor for descriptor in left if descriptor not in ended]
    for descriptor in descriptors:
        os.close(descriptor)
    assert left == []


def test_workers_exit_with_killed_main_process(tmp_path):
    with busy_child(tmp_path / "errors", transport="pickle") as main:
        with end_of_all(main.pid):
            main.kill()
        main.join()


def test_context_of_workers_is_made_while_a_thread_imports():
    """As torch imports parts of itself on first use."""
    ended = threading.Event()

    def import_others() -> None:
        while not ended.is_set():
            for number in range(50):
                sys.modules[f"other_{number}"] = sys
            for number in range(50):
                del sys.modules[f"other_{number}"]

    interval, thread = sys.getswitchinterval(), threading.Thread(target=import_others)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(30):
            _context(producers.sample)
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.slow
def test_workers_ignore_ctrl_c(tmp_path):
    """A terminal sends it to all of them."""
    with busy_child(tmp_path / "errors", transport="buffer") as main:
        with end_of_all(main.pid):
            os.killpg(main.pid, signal.SIGINT)
        main.join()
    errors = (tmp_path / "errors").read_text()
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


def multiply(info: WorkerInfo, endpoint: Endpoint) -> Iterator[tuple[int, float]]:
    while True:
        yield os.getpid(), float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())


def leave_without_closing() -> None:
    """Multiply on two threads, then in a worker; end while the worker is there, as an unhandled error would."""
    torch.set_num_threads(2)
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum()
    server = ProxyServer({}, transport=TRANSPORTS["buffer"]())
    torch.set_num_threads(1)
    pool = WorkerPool(multiply, server, num_workers=1, deadline_s=60)
    print(json.dumps(pool.next()))
    raise KeyError("unhandled")


@pytest.mark.slow
def test_workers_after_openmp_and_main_failure(checkout):
    code = "from tests.workers.test_scenarios import leave_without_closing as run; run()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=LIMIT_S)
    worker, total = json.loads(done.stdout)
    assert total == 600.0**3
    assert "KeyError: 'unhandled'" in done.stderr
    assert "leaked" not in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
