"""Killed main processes and exhausted resources, each in a separate main program."""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gflownet.workers.pool import start_context
from tests.workers import producers, scenarios

LIMIT_S = 300.0  # reached only by a test that fails


def command(scenario: str, transport: str = "pickle", start_method: str = "fork") -> list[str]:
    return [sys.executable, "-m", "tests.workers.scenarios", scenario, transport, start_method]


@contextmanager
def child(scenario: str, errors: Path, *, transport: str = "pickle") -> Iterator[tuple[Any, Any]]:
    """A main program that forks its workers, started by the fork server; the process and its first result."""
    server: Any = None  # read by the start method fork only
    context = start_context(server, producers.sample, num_workers=1, start_method="forkserver")
    near, far = multiprocessing.Pipe(duplex=False)
    process = context.Process(target=scenarios.in_child, args=(scenario, transport, "fork", far, str(errors)))
    process.start()
    far.close()
    try:
        assert near.poll(LIMIT_S)
        yield process, near.recv()
    finally:
        process.kill()
        process.join()
        near.close()


def members(session: int) -> list[int]:
    """Return the processes of a session that live, zombies left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


@contextmanager
def end_of_all(session: int) -> Iterator[None]:
    """Check that a session has worker processes, and that all are gone 5 s after the block."""
    descriptors = [os.pidfd_open(pid) for pid in members(session) if pid != session]
    assert len(descriptors) >= 2
    yield
    left, deadline = list(descriptors), time.monotonic() + 5
    while left and (ended := select.select(left, [], [], max(0, deadline - time.monotonic()))[0]):
        left = [descriptor for descriptor in left if descriptor not in ended]
    for descriptor in descriptors:
        os.close(descriptor)
    assert left == []


def test_workers_exit_with_killed_main_process(tmp_path):
    with child("waits_busily", tmp_path / "errors", transport="queue") as (main, said):
        assert said == "ready"
        with end_of_all(main.pid):
            main.kill()
        main.join()
        assert members(main.pid) == []


def test_workers_ignore_ctrl_c(tmp_path):
    """A terminal sends it to all of them."""
    with child("waits_busily", tmp_path / "errors", transport="buffer") as (main, said):
        assert said == "ready"
        with end_of_all(main.pid):
            os.killpg(main.pid, signal.SIGINT)
        main.join()
    errors = (tmp_path / "errors").read_text()
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_workers_exit_with_killed_main_process_all_start_methods(checkout, start_method):
    main = subprocess.Popen(
        command("waits_busily", "queue", start_method),
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert main.stdout is not None
    assert main.stdout.readline() == '"ready"\n'
    with end_of_all(main.pid):
        main.kill()
    main.communicate()
    assert members(main.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_workers_after_openmp_and_main_failure(checkout, start_method):
    """Forking is refused as long as torch computes on several threads."""
    done = subprocess.run(
        command("leaves_without_closing", "buffer", start_method),
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    first, *refusal, (worker, last) = map(json.loads, done.stdout.splitlines())
    assert first == last == 600.0**3
    assert [text.rpartition(": ")[2] for text in refusal] == (
        ["torch computes in 2 threads"] if start_method == "fork" else []
    )
    assert "KeyError: 'unhandled'" in done.stderr
    assert "leaked" not in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def assert_only_the_queue_warns(texts: dict[str, list[str]], warning: str) -> None:
    assert (texts["buffer"], texts["pickle"], len(texts["queue"])) == ([], [], 1)
    assert texts["queue"][0].startswith(warning)


def test_workers_with_few_open_files(tmp_path):
    with child("may_open_few_files", tmp_path / "errors") as (_, texts):
        assert_only_the_queue_warns(texts, "open files: expected a limit of at least")


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=False).returncode == 0


@pytest.mark.slow  # tests/workers/test_transport.py has a full /dev/shm in this process
def test_workers_with_small_shared_memory(checkout):
    """Messages of 10 MB with a /dev/shm of 8 MB: buffers do not need it, torch's sharing would be killed."""
    if not can_mount():
        pytest.skip("needs user namespaces: unshare -rm mount")
    mount = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    limited = ["unshare", "-rm", "sh", "-c", mount, "sh", *command("has_little_shared_memory")]
    done = subprocess.run(limited, cwd=checkout, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert_only_the_queue_warns(json.loads(done.stdout), "/dev/shm: expected")
