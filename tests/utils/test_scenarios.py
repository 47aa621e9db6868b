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


def wait_for_end(descriptors: list[int], deadline: float) -> int:
    """Return how many processes have not ended at the deadline."""
    left = list(descriptors)
    while left and (ended := select.select(left, [], [], max(0, deadline - time.monotonic()))[0]):
        left = [descriptor for descriptor in left if descriptor not in ended]
    return len(left)


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
    others = [pid for pid in members(main.pid) if pid != main.pid]
    assert len(others) >= 2
    descriptors = [os.pidfd_open(pid) for pid in others]
    main.kill()
    left = wait_for_end(descriptors, time.monotonic() + 5)
    for descriptor in descriptors:
        os.close(descriptor)
    main.communicate()
    assert left == 0
    assert members(main.pid) == []


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
    os.killpg(main.pid, signal.SIGINT)
    _, errors = main.communicate(timeout=LIMIT_S)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert members(main.pid) == []


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_openmp_in_the_main_process_hangs_no_worker(checkout, start_method):
    """Forking is refused as long as torch computes on several threads."""
    first, *refusal, last = output_of(command("forks_after_openmp", "pickle", start_method), checkout).splitlines()
    assert first == last == str(600.0**3)
    assert [text.rpartition(": ")[2] for text in refusal] == (
        ["torch computes in 2 threads"] if start_method == "fork" else []
    )


@pytest.mark.parametrize(
    ("transport", "warning"), [("buffer", ""), ("pickle", ""), ("queue", "open files: expected a limit of at least")]
)
def test_few_open_files_are_enough(checkout, transport, warning):
    arguments = command("in_a_small_world", transport)
    texts = json.loads(output_of(["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *arguments], checkout))
    assert [text[: len(warning)] for text in texts] == ([warning] if warning else [])


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs user namespaces: unshare -rm mount")
@pytest.mark.parametrize(("transport", "warning"), [("buffer", ""), ("pickle", ""), ("queue", "/dev/shm: expected")])
def test_a_small_shared_memory_is_enough(checkout, transport, warning):
    """Messages of 16 MB beside a /dev/shm of 8 MB: buffers do not need it, torch's sharing would be killed."""
    mount = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    arguments = command("in_a_small_world", transport)
    texts = json.loads(output_of(["unshare", "-rm", "sh", "-c", mount, "sh", *arguments], checkout))
    assert [text[: len(warning)] for text in texts] == ([warning] if warning else [])
