"""Faults of the whole machine: rows 9, 10, 23 and 24 of the list, each in a main program of its own."""

from __future__ import annotations

import json
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

import pytest

LIMIT_S = 60.0  # reached only by a test that fails
START_METHODS = ("fork", "forkserver", "spawn")


def command(scenario: str, transport: str = "pickle", start_method: str = "fork") -> list[str]:
    return [sys.executable, "-m", "tests.utils.scenarios", scenario, transport, start_method]


def output_of(arguments: list[str], checkout: Path) -> str:
    done = subprocess.run(arguments, cwd=checkout, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
def end_of_all(main: subprocess.Popen) -> Iterator[None]:
    """Check that the processes of a session are gone within 5 s of what is done here, and that there were some."""
    descriptors = [os.pidfd_open(pid) for pid in members(main.pid) if pid != main.pid]
    assert len(descriptors) >= 2
    yield
    left, deadline = list(descriptors), time.monotonic() + 5
    while left and (ended := select.select(left, [], [], max(0, deadline - time.monotonic()))[0]):
        left = [descriptor for descriptor in left if descriptor not in ended]
    for descriptor in descriptors:
        os.close(descriptor)
    assert left == []
    main.communicate()
    assert members(main.pid) == []


@pytest.mark.parametrize("start_method", START_METHODS)
def test_nothing_is_left_when_the_main_process_is_killed(checkout, start_method):
    main = subprocess.Popen(
        command("waits_busily", "queue", start_method),
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert main.stdout is not None
    assert main.stdout.readline() == "ready\n"
    with end_of_all(main):
        main.kill()


def test_nothing_is_left_when_the_main_process_fails(checkout):
    done = subprocess.run(
        command("leaves_without_closing", "buffer"),
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    end = time.monotonic()
    worker, start = done.stdout.split()
    assert "KeyError: 'unhandled'" in done.stderr
    assert end - float(start) < 4
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker), 0)
    assert "leaked" not in done.stderr


def test_ctrl_c_reaches_the_main_process_alone(checkout):
    """A terminal sends it to all of them."""
    main = subprocess.Popen(
        command("waits_busily", "buffer", "forkserver"),
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert main.stdout is not None
    assert main.stdout.readline() == "ready\n"
    assert main.stderr is not None
    with end_of_all(main):
        os.killpg(main.pid, signal.SIGINT)
        errors = main.stderr.read()
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_openmp_in_the_main_process_hangs_no_worker(checkout, start_method):
    """Forking is refused as long as torch computes on several threads."""
    first, *refusal, last = output_of(command("forks_after_openmp", "pickle", start_method), checkout).splitlines()
    assert first == last == str(600.0**3)
    assert [text.rpartition(": ")[2] for text in refusal] == (
        ["torch computes in 2 threads"] if start_method == "fork" else []
    )


def assert_only_the_queue_warns(output: str, warning: str) -> None:
    texts = json.loads(output)
    assert (texts["buffer"], texts["pickle"], len(texts["queue"])) == ([], [], 1)
    assert texts["queue"][0].startswith(warning)


def test_few_open_files_are_enough(checkout):
    limited = ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *command("in_a_small_world")]
    assert_only_the_queue_warns(output_of(limited, checkout), "open files: expected a limit of at least")


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs user namespaces: unshare -rm mount")
def test_a_small_shared_memory_is_enough(checkout):
    """Messages of 16 MB beside a /dev/shm of 8 MB: buffers do not need it, torch's sharing would be killed."""
    mount = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    limited = ["unshare", "-rm", "sh", "-c", mount, "sh", *command("in_a_small_world")]
    assert_only_the_queue_warns(output_of(limited, checkout), "/dev/shm: expected")
